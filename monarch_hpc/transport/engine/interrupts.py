"""Defers Ctrl-C while the main thread drives the engine, so that no callback is left half done.

Python runs a signal handler between any two instructions of the main thread. In the middle of an engine callback it
would lose the frames that were just read, and their receivers would wait for ever; and programs go on after Ctrl-C,
above all in notebooks.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself wraps it, and takes ten times as long
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

from monarch_hpc.core.process.thread import in_main_thread
from monarch_hpc.core.text.description import traceback_of
from monarch_hpc.transport.engine.wakeup import Sleeper

__all__ = ["ThreadSleeper", "from_handler", "make_sleeper", "may_be_signal"]

_SIGINT = int(signal.SIGINT)


class ThreadSleeper(Sleeper):
    """The sleeper of a thread that may drive.

    While it is entered, no SIGINT handler runs in the thread. A deferred SIGINT is handled when the outermost context
    exits; the handler may raise there.

    Attributes:
        defers_sigint: whether entering has an effect: it is the main thread's sleeper.
        interrupted: whether a SIGINT is deferred.
    """

    __slots__ = ("interrupted",)

    defers_sigint = False

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _MainThreadSleeper(ThreadSleeper):
    __slots__ = ("_depth", "_frame", "_handler", "_poke")

    defers_sigint = True

    def __init__(self, poke: Callable[[], None]) -> None:
        super().__init__()
        self._poke = poke
        self._depth = 0
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._frame: FrameType | None = None

    def __enter__(self) -> Self:
        if not self._depth:
            handler = _signal.getsignal(_SIGINT)
            if callable(handler):  # neither ignored nor handled in C
                self._handler = handler
                _signal.signal(_SIGINT, self._defer)
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        handler, self._handler = self._handler, None
        if handler is None:
            return
        _signal.signal(_SIGINT, handler)
        if self.interrupted:
            self.interrupted = False
            frame, self._frame = self._frame, None
            handler(_SIGINT, frame)

    def _defer(self, _number: int, frame: FrameType | None) -> None:
        self._frame = frame
        self.interrupted = True
        self.wake()
        self._poke()


def make_sleeper(poke: Callable[[], None]) -> ThreadSleeper:
    """Make a sleeper for the calling thread.

    Args:
        poke: wakes the driver; called from the signal handler, between any two instructions of the main thread.
    """
    return _MainThreadSleeper(poke) if in_main_thread() else ThreadSleeper()


def may_be_signal(error: BaseException) -> bool:
    """Whether a signal handler may have raised *error*; then it is for the program, whatever code it interrupted."""
    return issubclass(type(error), (KeyboardInterrupt, SystemExit)) and in_main_thread()


def from_handler(error: BaseException) -> bool:
    """Whether *error* is Ctrl-C, or the SystemExit of a signal handler rather than of the code that it interrupted."""
    if not may_be_signal(error) or issubclass(type(error), KeyboardInterrupt):
        return may_be_signal(error)
    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    trace = traceback_of(error)
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None
