"""Ctrl-C where the main thread drives the engine: held back until nothing is half done.

Python runs the handler of a signal between any two instructions of the main thread. In the middle of a callback of the
engine it would lose the frames that were just read, and whoever waits for them would wait for ever; and programs go on
after Ctrl-C, in notebooks above all.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of: that takes ten times as long
import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

from monarch_hpc.transport.engine.sleeper import Sleeper

__all__ = ["ThreadSleeper", "make_sleeper", "may_be_signal"]

_SIGINT = int(signal.SIGINT)


class ThreadSleeper(Sleeper):
    """Where a thread sleeps that may drive.

    While it is entered, no handler of SIGINT runs in the thread. What was held is handled at the end of the outermost,
    where the handler raises, or does not.

    Attributes:
        defers_sigint: entering has an effect: it is the main thread's.
        interrupted: Ctrl-C was pressed, and is held.
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
            if callable(handler):  # and not ignored, or handled in C
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
    """A bed for the calling thread.

    Args:
        poke: ends the sleep of the driver; between any two instructions of the main thread.
    """
    return _MainThreadSleeper(poke) if _in_main_thread() else ThreadSleeper()


def may_be_signal(error: BaseException) -> bool:
    """Whether a signal handler may have raised *error*: it is then for the program, whatever code it interrupted."""
    return issubclass(type(error), (KeyboardInterrupt, SystemExit)) and _in_main_thread()


def _in_main_thread() -> bool:
    return _thread.get_ident() == threading.main_thread().ident
