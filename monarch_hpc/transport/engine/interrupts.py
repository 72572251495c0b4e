"""Defers signal handlers while the main thread drives the engine, so that no callback is left half done.

Python runs a signal handler between any two instructions of the main thread. One that raises (Ctrl-C, a timeout by
`signal.alarm`, a SIGTERM that becomes SystemExit) in the middle of an engine callback would lose the frames that were
just read, and their receivers would wait for ever; and programs go on after it, above all in notebooks.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself wraps it, and takes ten times as long
import signal
from collections.abc import Callable
from types import FrameType
from typing import Self

from monarch_hpc.core.clock import real_monotonic
from monarch_hpc.core.process.thread import in_main_thread
from monarch_hpc.transport.engine.wakeup import Sleeper

__all__ = ["ThreadSleeper", "make_sleeper"]

Handler = Callable[[int, FrameType | None], object]

_SIGINT = int(signal.SIGINT)

_OTHERS = tuple(
    int(number)
    for number in (
        signal.SIGALRM,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGXCPU,
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGWINCH,
    )
)
"""Signals that programs handle, besides SIGINT. To ask for the handlers of all of them costs as much as half a call."""

_getsignal, _setsignal = _signal.getsignal, _signal.signal

_LOOK_S = 0.0005
"""Interval at which the handlers of `_OTHERS` are looked up: one that was set since may interrupt a callback."""


class ThreadSleeper(Sleeper):
    """The sleeper of a thread that may drive.

    While it is entered, no signal handler runs in the thread. The handlers of deferred signals run when the outermost
    context exits; they may raise there.

    Attributes:
        defers: whether entering has an effect: it is the main thread's sleeper.
        interrupted: whether a signal is deferred.
    """

    __slots__ = ("interrupted",)

    defers = False

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        """Defer handlers that were set while it is entered, too; for long waits."""

    @property
    def nested(self) -> bool:
        """Whether it was entered more than once."""
        return False


class _MainThreadSleeper(ThreadSleeper):
    __slots__ = (
        "_clock",
        "_defer",
        "_deferred",
        "_depth",
        "_exits",
        "_handlers",
        "_look_s",
        "_others",
        "_poke",
        "_replaced",
    )

    defers = True

    def __init__(self, poke: Callable[[], None]) -> None:
        super().__init__()
        self._poke = poke
        self._clock = real_monotonic()
        self._depth = 0
        self._exits = 0
        self._handlers: dict[int, Handler] = {}  # kept: a callback may have asked for a handler, and set `_defer` later
        self._replaced: list[int] = []  # the signals of `_handlers` that `_defer` takes
        self._others: list[int] = []  # of `_OTHERS`, those that had a handler at the last look
        self._look_s = 0.0
        self._deferred: dict[int, tuple[Handler, FrameType | None]] = {}  # by signal, which counts once as the kernel's
        self._defer = self._on_signal  # one object, so that it can be told from other handlers

    # A handler that runs in the middle of these may wait for calls itself: it enters and exits in between.

    def __enter__(self) -> Self:
        if self._depth:
            self._depth += 1
            return self
        while True:
            exits = self._exits
            self._put_in_place()
            if exits == self._exits:
                self._depth = 1
                return self

    def _put_in_place(self) -> None:
        now_s = self._clock()
        if now_s >= self._look_s:
            self._others = [number for number in _OTHERS if callable(_getsignal(number))]
            self._look_s = now_s + _LOOK_S
        handler = _getsignal(_SIGINT)
        if callable(handler) and not self._replaced and handler is not self._defer:  # nearly always, so in place
            self._handlers[_SIGINT] = handler
            self._replaced.append(_SIGINT)
            _setsignal(_SIGINT, self._defer)
        else:
            self._replace(_SIGINT)
        if self._others:
            for number in self._others:
                self._replace(number)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._exits += 1
        replaced = self._replaced
        try:
            while True:
                try:
                    number = replaced.pop()
                except IndexError:
                    break
                found = _setsignal(number, self._handlers[number])
                if found is not self._defer:  # a callback has set another handler, or a handler took it away before
                    _setsignal(number, found)
        finally:  # a handler that is back in place may raise
            if self.interrupted:
                self.interrupted = False
                self._handle()

    @property
    def nested(self) -> bool:
        """See `ThreadSleeper.nested`."""
        return self._depth > 1

    def look(self) -> None:
        """See `ThreadSleeper.look`."""
        now_s = self._clock()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_S
            for number in _OTHERS:
                self._replace(number)

    def _replace(self, number: int) -> None:
        handler = _getsignal(number)
        if not callable(handler):  # ignored, or handled in C
            return
        if number not in self._replaced:
            self._replaced.append(number)
        if handler is not self._defer:
            self._handlers[number] = handler
            _setsignal(number, self._defer)

    def _handle(self) -> None:
        """Run the handlers of all deferred signals; the last exception that one raises has the others as context."""
        while True:
            try:
                number, (handler, frame) = self._deferred.popitem()
            except KeyError:
                return
            try:
                handler(number, frame)
            finally:
                self._handle()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        handler = self._handlers[number]
        if not self._depth:  # while it was put in place or taken away
            handler(number, frame)
            return
        self._deferred[number] = handler, frame
        self.interrupted = True
        self.wake()
        self._poke()


def make_sleeper(poke: Callable[[], None]) -> ThreadSleeper:
    """Make a sleeper for the calling thread.

    Args:
        poke: wakes the driver; called from the signal handler, between any two instructions of the main thread.
    """
    return _MainThreadSleeper(poke) if in_main_thread() else ThreadSleeper()
