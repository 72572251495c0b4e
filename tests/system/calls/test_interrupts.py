"""Ctrl-C in a program that continues: no answer is lost, and nothing waits forever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from monarch_hpc.transport.engine.engine import Engine

_PATIENCE_S = 60.0

Handler = Callable[[int, FrameType | None], object]


@pytest.fixture(autouse=True)
def handler() -> Iterator[Handler]:
    """Install the default SIGINT handler, whatever pytest inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_callback_is_not_interrupted(engine: Engine, handler: Handler) -> None:
    done: list[str] = []

    def callback() -> None:
        if threading.current_thread() is not threading.main_thread():
            engine.call_later(0.01, callback)  # the main thread does not wait yet
            return
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")

    engine.call_later(0.01, callback)
    with pytest.raises(KeyboardInterrupt):
        engine.wait(lambda: False, _PATIENCE_S)
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is handler
    engine.call_soon(lambda: done.append("later"))
    assert engine.wait(lambda: len(done) == 2, _PATIENCE_S)


def test_whoever_sleeps_while_another_thread_drives_is_woken(engine: Engine) -> None:
    drives = threading.Event()
    ends = threading.Event()

    def drive() -> None:
        engine.call_soon(drives.set)
        engine.wait(ends.is_set, _PATIENCE_S)

    other = threading.Thread(target=drive)
    other.start()
    assert drives.wait(_PATIENCE_S)
    shooter = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 it may come before the wait
        shooter.start()
        engine.wait(lambda: False, _PATIENCE_S)
    shooter.join(_PATIENCE_S)
    ends.set()
    engine.wake_waiters()
    other.join(_PATIENCE_S)
    assert not other.is_alive()


def test_a_handler_that_returns_lets_the_wait_go_on(engine: Engine) -> None:
    called: list[int] = []
    ready: list[bool] = []
    signal.signal(signal.SIGINT, lambda number, _frame: called.append(number))
    engine.call_later(0.01, lambda: signal.raise_signal(signal.SIGINT))
    engine.call_later(0.05, lambda: ready.append(True))
    assert engine.wait(lambda: bool(ready), _PATIENCE_S)
    assert called == [signal.SIGINT]


def test_whoever_ignores_it_goes_on_to_do_so(engine: Engine) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignored: list[bool] = []

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        ignored.append(True)

    engine.call_later(0.01, interrupt)
    assert engine.wait(lambda: bool(ignored), _PATIENCE_S)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_it_is_raised_at_the_end_of_the_outermost(engine: Engine) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), engine.undisturbed():  # noqa: PT012 raised at the end of the block
        signal.raise_signal(signal.SIGINT)
        assert not engine.wait(lambda: False, _PATIENCE_S), "a wait within it ends before its timeout"
        with engine.undisturbed():
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_other_threads_are_not_disturbed_anyway(engine: Engine, handler: Handler) -> None:
    seen: list[object] = []

    def look() -> None:
        with engine.undisturbed():
            seen.append(signal.getsignal(signal.SIGINT))

    other = threading.Thread(target=look)
    other.start()
    other.join(_PATIENCE_S)
    assert seen == [handler]


_PROGRAM = """
import os, random, signal, sys, threading, time
from monarch_hpc import Actor, endpoint, this_host


class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x


mesh = this_host().spawn_procs(per_host={"p": 2}).spawn("echo", Echo)
one = mesh.slice(p=0)
mesh.echo.call(0).get()
over = False


def shoot():
    dice = random.Random(int(sys.argv[1]))
    for _ in range(300):
        time.sleep(dice.uniform(0.0005, 0.01))  # the passing of time is the point
        os.kill(os.getpid(), signal.SIGINT)
    global over
    over = True


def play():
    while not over:
        calls = []
        kept.append(calls)
        for number in range(20):
            calls.append(one.echo.call_one(number))
        calls.append(mesh.echo.call(bytes(100_000)))
        for call in calls:
            call.get()
        kept.pop()


def interrupt(number, frame):
    global armed
    if armed:
        armed = False  # else the next one might come before the program is back in its `try`
        raise KeyboardInterrupt


shooter = threading.Thread(target=shoot)
kept, interrupts, armed = [], 0, False
signal.signal(signal.SIGINT, interrupt)
shooter.start()
while not over:
    try:
        armed = True
        play()
        armed = False
    except KeyboardInterrupt:
        interrupts += 1
shooter.join()
kept = [call for calls in kept for call in calls]
lost = sum(call.exception(30) is not None for call in kept)
print(interrupts, len(kept), lost, list(mesh.echo.call(1).get(30).values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["[ucx, tcp]", "[tcp]"])
def test_no_answer_is_lost(tmp_path: Path, order: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    seed = int.from_bytes(os.urandom(2))
    print(f"seed {seed}")
    environment = {**os.environ, "MONARCH_HPC_FABRIC__ORDER": order}
    told = subprocess.run(
        [sys.executable, str(program), str(seed)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stderr
    interrupts, kept, lost, values = told.stdout.split(maxsplit=3)
    assert int(interrupts) > 20
    assert int(kept) > 0
    assert lost == "0", told.stdout
    assert "[1, 1]" in values
