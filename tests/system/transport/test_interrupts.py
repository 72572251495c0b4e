"""Signals in a program that continues, such as Ctrl-C: no answer is lost, and nothing waits forever."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import pack_call
from monarch_hpc.transport.engine import interrupts
from monarch_hpc.transport.engine.engine import Engine

_PATIENCE_S = 60.0
_LOOK_S = 0.01  # a wait of this time sees handlers that were set before

Handler = Callable[[int, FrameType | None], object]


@pytest.fixture(autouse=True)
def handler() -> Iterator[Handler]:
    """Install the default SIGINT handler, whatever pytest inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def kept_handlers() -> Iterator[None]:
    """Put the handlers of other signals back."""
    numbers = (signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_no_signal_interrupts_a_callback(engine: Engine, kept_handlers: None, number: signal.Signals) -> None:
    done: list[str] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        done.append("handler")
        raise LookupError("the time is over")

    def callback() -> None:
        if threading.current_thread() is not threading.main_thread():
            engine.call_later(0.01, callback)  # the main thread does not wait yet
            return
        signal.raise_signal(number)
        done.append("the rest")

    engine.call_soon(lambda: None)
    engine.wait(lambda: True, _PATIENCE_S)
    signal.signal(number, handle)  # another one than at the last wait
    engine.call_later(0.01, callback)
    with pytest.raises(LookupError, match="the time is over"):
        engine.wait(lambda: False, _PATIENCE_S)
    assert done == ["the rest", "handler"]
    assert signal.getsignal(number) is handle
    engine.call_soon(lambda: done.append("later"))
    assert engine.wait(lambda: done[-1] == "later", _PATIENCE_S)


def test_all_deferred_signals_are_handled_also_where_one_handler_raises(engine: Engine, kept_handlers: None) -> None:
    handled: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        handled.append(number)
        raise LookupError(number)

    numbers = [signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2]
    for number in numbers:
        signal.signal(number, handle)
    engine.wait(lambda: False, _LOOK_S)
    with pytest.raises(LookupError), engine.undisturbed():  # noqa: PT012 raised at the end of the block
        for number in (*numbers, *numbers):  # as the kernel's, signals that come twice count once
            signal.raise_signal(number)
        assert not handled
    assert sorted(handled) == sorted(numbers)


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_handler_may_wait_while_the_handlers_are_put_in_place_or_taken_away(
    engine: Engine, kept_handlers: None, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    handled: list[str] = []
    waits = True

    def handle(_number: int, _frame: FrameType | None) -> None:
        handled.append("handler")
        if waits:
            assert not engine.wait(lambda: False, _LOOK_S)

    numbers = [signal.SIGUSR1, signal.SIGUSR2]
    for number in numbers:
        signal.signal(number, handle)
    engine.wait(lambda: False, _LOOK_S)
    shots: list[int] = []

    def set_signal(number: int, handler: Handler) -> object:
        """Set a handler, and have the signal come at this very moment, twice each time."""
        shoots = number in numbers and len(shots) < 4
        if shoots and at == "before":
            shots.append(number)
            signal.raise_signal(number)
        found = signal.signal(number, handler)
        if shoots and at == "after":
            shots.append(number)
            signal.raise_signal(number)
        return found

    monkeypatch.setattr(interrupts, "_setsignal", set_signal)
    with engine.undisturbed():
        inside = len(handled)
        waits = False
        signal.raise_signal(signal.SIGUSR1)
        assert len(handled) == inside, "it was not deferred"
        waits = True
        shots.clear()
    assert len(shots) == 4
    assert len(handled) > inside
    assert [signal.getsignal(number) for number in numbers] == [handle, handle]
    with engine.undisturbed():
        waits, inside = False, len(handled)
        signal.raise_signal(signal.SIGUSR2)
        assert len(handled) == inside
    assert len(handled) == inside + 1


def test_a_handler_that_a_callback_sets_stays(engine: Engine, kept_handlers: None) -> None:
    def first(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("the handler of before")

    def second(number: int, _frame: FrameType | None) -> None:
        called.append(number)

    called: list[int] = []
    signal.signal(signal.SIGUSR1, first)
    engine.wait(lambda: False, _LOOK_S)
    with engine.undisturbed():
        signal.signal(signal.SIGUSR1, second)
    assert signal.getsignal(signal.SIGUSR1) is second
    signal.raise_signal(signal.SIGUSR1)
    assert called == [signal.SIGUSR1]


class Alarmed:
    """Its pickling, or its rebuilding, is interrupted by a signal."""

    def __init__(self, *, packed: bool) -> None:
        self.packed = packed

    def __reduce__(self) -> tuple[object, ...]:
        if self.packed:
            signal.raise_signal(signal.SIGALRM)
        return _rebuild_alarmed, ()


def _rebuild_alarmed() -> str:
    if armed:
        armed.pop()
        signal.raise_signal(signal.SIGALRM)
    return "rebuilt"


armed: list[bool] = []


def test_what_a_handler_raises_is_not_taken_for_an_error_of_values(engine: Engine, kept_handlers: None) -> None:
    def handle(_number: int, _frame: FrameType | None) -> None:
        raise LookupError("the time is over")

    signal.signal(signal.SIGALRM, handle)
    with pytest.raises(LookupError, match="the time is over"):
        pack_call(b"", (Alarmed(packed=True),), {})
    future: Future[object] = Future(engine, lambda: "actor a[0] on n1, endpoint e")
    answer = pickle.dumps(Alarmed(packed=False))
    future.set_resolver(lambda: pickle.loads(answer))
    armed.append(True)
    with pytest.raises(LookupError, match="the time is over"):
        future.get()
    assert future.get() == "rebuilt"  # the next read has the answer


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
