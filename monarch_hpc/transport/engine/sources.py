"""Sources of the events that the engine serves: descriptors, timers, and libraries that must be polled."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_hpc.core.clock import real_monotonic
from monarch_hpc.core.process.fork import Owned
from monarch_hpc.transport.engine.wakeup import Wakeup

try:
    from select import EPOLLIN, EPOLLOUT, epoll
except ImportError as error:
    raise ImportError(
        "select.epoll is missing: gevent, eventlet or another library has replaced the functions that wait for I/O. "
        "Let it do so after the first hosts() or this_host() of the program, or not at all"
    ) from error

__all__ = ["Poller", "Sources", "Timer"]

_FEW_TIMERS = 256
"""Cancelled timers are not looked for among fewer than this: that would take longer than it would save memory."""


class Timer:
    """A callback that will run once, unless cancelled first."""

    __slots__ = ("_callback", "at_s")

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self._callback: Callable[[], None] | None = callback

    @property
    def waits(self) -> bool:
        """Whether it will run: it has not yet, and was not cancelled."""
        return self._callback is not None

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self._callback = None

    def fire(self) -> None:
        """Run the callback, unless it was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Poller(Protocol):
    """A library with its own events, which must be polled before a thread may sleep."""

    @property
    def fd(self) -> int:
        """A descriptor that is readable when there are events."""
        ...

    def poll(self, epoll_fd: int, spin_s: float, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Wait for the library's events or *epoll_fd*, which contains *fd*; at most *timeout_s* seconds (-1: for ever).

        Returns:
            The descriptors of *epoll_fd* that are ready, with their event masks.
        """
        ...

    def wait_away(self) -> None:
        """Return when no thread has polled for some milliseconds, or the poller is closed; from any thread.

        A thread that waits here costs nothing while drivers come and go.
        """
        ...

    def dispatch(self) -> None:
        """Deliver the library's events."""
        ...


class Sources(Owned):
    """What an engine serves.

    Attributes:
        clock: a monotonic clock, in seconds.
        driver: id of the thread that serves them now, the driver; 0 for none.
        poller: a library that is polled too.
    """

    def __init__(self) -> None:
        self.clock = real_monotonic()
        self.driver = 0
        self.poller: Poller | None = None
        self._epoll = epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _FEW_TIMERS  # at this number the cancelled ones are looked for
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self._last: list[Callable[[], None]] = []
        self._wakeup = Wakeup()
        self._epoll.register(self._wakeup.fd, EPOLLIN)

    @property
    def driving(self) -> bool:
        """Whether the calling thread is the driver, i.e. runs inside a callback."""
        return self.driver == get_ident()

    def watch(self, fd: int, callback: Callable[[int], None], *, read: bool = True, write: bool = False) -> None:
        """Call *callback* with the epoll event mask whenever *fd* is ready; replaces an earlier watch of *fd*."""
        mask = (EPOLLIN if read else 0) | (EPOLLOUT if write else 0)
        known = fd in self._callbacks
        self._callbacks[fd] = callback
        (self._epoll.modify if known else self._epoll.register)(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*; call this before closing the descriptor. Unknown descriptors are ignored."""
        if self._callbacks.pop(fd, None) is not None and not self._epoll.closed:
            with contextlib.suppress(OSError):  # other code has closed it: then the kernel does not watch it either
                self._epoll.unregister(fd)

    def attach(self, poller: Poller) -> None:
        """Poll through *poller* from here on; call on the driver."""
        self._epoll.register(poller.fd, EPOLLIN)
        self.poller = poller

    def detach(self) -> None:
        """Stop polling through the poller; call on the driver, before the poller is closed."""
        if self.poller is not None:
            self._epoll.unregister(self.poller.fd)
            self.poller = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run *callback* on the driver in *delay_s* seconds; from any thread."""
        timer = Timer(self.clock() + delay_s, callback)
        entry = (timer.at_s, next(self._order), timer)
        if self.driving:
            self._keep(entry)
        else:
            self.call_soon(lambda: self._keep(entry))
        return timer

    def _keep(self, entry: tuple[float, int, Timer]) -> None:
        """Keep a timer until its time; those that were cancelled are let go of whenever the number has doubled."""
        if len(self._timers) >= self._most_timers:
            self._timers[:] = [known for known in self._timers if known[2].waits]
            heapq.heapify(self._timers)
            self._most_timers = max(_FEW_TIMERS, 2 * len(self._timers))
        heapq.heappush(self._timers, entry)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run *callback* on the driver as soon as possible; from any thread."""
        self._soon.append(callback)
        if not self.driving:
            self._poke()

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Run *callback* after the callbacks that are due now, before the driver sleeps or leaves; from callbacks."""
        self._last.append(callback)

    def _poke(self) -> None:
        """Wake the driver."""
        raise NotImplementedError
