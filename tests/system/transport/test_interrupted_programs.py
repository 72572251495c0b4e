"""Programs that signals interrupt all the time: no answer is lost, and handlers may call actors themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, random, signal, sys, threading, time
number = int(sys.argv[2])
Interrupt = KeyboardInterrupt if number == signal.SIGINT else type("Interrupt", (Exception,), {})
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
        os.kill(os.getpid(), number)
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


def interrupt(_number, _frame):
    global armed
    if armed:
        armed = False  # else the next one might come before the program is back in its `try`
        raise Interrupt


shooter = threading.Thread(target=shoot)
kept, interrupts, armed = [], 0, False
signal.signal(number, interrupt)
shooter.start()
while not over:
    try:
        armed = True
        play()
        armed = False
    except Interrupt:
        interrupts += 1
shooter.join()
kept = [call for calls in kept for call in calls]
lost = sum(call.exception(30) is not None for call in kept)
print(interrupts, len(kept), lost, list(mesh.echo.call(1).get(30).values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "number"), [("[ucx, tcp]", signal.SIGINT), ("[tcp]", signal.SIGINT), ("[ucx, tcp]", signal.SIGALRM)]
)
def test_no_answer_is_lost(tmp_path: Path, order: str, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    seed = int.from_bytes(os.urandom(2))
    print(f"seed {seed}")
    environment = {**os.environ, "MONARCH_HPC_FABRIC__ORDER": order}
    told = subprocess.run(
        [sys.executable, str(program), str(seed), str(int(number))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    interrupts, kept, lost, values = told.stdout.split(maxsplit=3)
    assert int(interrupts) > 20
    assert int(kept) > 0
    assert lost == "0", told.stdout
    assert "[1, 1]" in values


_CALLING_PROGRAM = """
import itertools, signal, sys
from monarch_hpc import Actor, endpoint, this_host


class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x


mesh = this_host().spawn_procs(per_host={"p": 2}).spawn("echo", Echo)
one = mesh.slice(p=0)
mesh.echo.call(0).get()
inside, handled = False, 0


def ask(_number, _frame):
    global inside, handled
    if not inside:
        inside = True
        assert one.echo.call_one("signal").get(60) == "signal"
        assert list(mesh.echo.call(bytes(100_000)).get(60).values()) == [bytes(100_000)] * 2
        handled += 1
        inside = False


signal.signal(signal.SIGALRM, ask)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0013)
for number in itertools.count():
    assert one.echo.call_one(number).get(60) == number
    calls = [one.echo.call_one(each) for each in range(30)]
    assert [call.get(60) for call in calls] == list(range(30))
    if handled > 300:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["[ucx, tcp]", "[tcp]"])
def test_a_handler_may_call_actors_at_any_moment_of_a_call(tmp_path: Path, order: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_CALLING_PROGRAM)
    environment = {**os.environ, "MONARCH_HPC_FABRIC__ORDER": order}
    told = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr


_FILLING_PROGRAM = """
import signal
import numpy as np
from monarch_hpc import Actor, endpoint, this_host


class Reader(Actor):
    @endpoint
    def ends(self, data):
        return int(data.min()), int(data.max())


reader = this_host().spawn_procs().spawn("reader", Reader)
handled = 0


def count(_number, _frame):
    global handled
    handled += 1


data = np.zeros(8_000_000, np.uint8)
reader.ends.call_one(data).get(60)
signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for number in range(20):
    data[:] = number
    answer = reader.ends.call_one(data)
    data[:] = 255  # it is the program's again
    assert answer.get(60) == (number, number), number
signal.setitimer(signal.ITIMER_REAL, 0)
assert handled > 20
"""


@pytest.mark.parametrize("order", ["[ucx, tcp]", "[tcp]"])
def test_an_array_is_sent_whole_before_it_is_the_programs_again(tmp_path: Path, order: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_FILLING_PROGRAM)
    environment = {**os.environ, "MONARCH_HPC_FABRIC__ORDER": order}
    told = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
