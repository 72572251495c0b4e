"""Deadlines of calls, with one engine timer for all calls that have the same time limit.

A cancelled timer stays in the engine's heap until it is due. With one timer per call and a limit of a minute, the heap
would hold a minute of calls, although hardly any call expires.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import Protocol

__all__ = ["Deadlines", "Expiring"]


class Expiring(Protocol):
    """A call with a time limit."""

    def expire(self) -> None:
        """Handle the timeout; on the driver."""
        ...


class _Queue:
    """Calls with the same time limit, which expire in the order in which they were added."""

    def __init__(self) -> None:
        self.ends_s: dict[Expiring, float] = {}
        self.armed = False


class Deadlines:
    """Expires calls that are not done in time; for any thread.

    Args:
        clock: a monotonic clock, in seconds.
        later: runs a callback on the driver after so many seconds.
    """

    def __init__(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock = clock
        self._later = later
        self._queues: dict[float, _Queue] = {}
        self._lock = RLock()

    def add(self, limit_s: float, what: Expiring) -> None:
        """Expire *what* in *limit_s* seconds, unless it is removed first."""
        end_s, another = self._clock() + limit_s, _Queue()
        with self._lock:  # nothing is called while it is held, see `Credit.try_take`
            if limit_s not in self._queues:
                self._queues[limit_s] = another
            queue = self._queues[limit_s]
            queue.ends_s[what] = end_s
            armed, queue.armed = queue.armed, True
        if not armed:
            self._later(limit_s, lambda: self._look(limit_s, queue))

    def remove(self, limit_s: float, what: Expiring) -> None:
        """Forget *what*, which is done. No-op if it was never added or has expired."""
        with self._lock:
            if limit_s in self._queues and what in self._queues[limit_s].ends_s:
                del self._queues[limit_s].ends_s[what]

    def _look(self, limit_s: float, queue: _Queue) -> None:
        due: list[Expiring] = []
        with self._lock:
            now_s = self._clock()
            next_s = 0.0
            for what, end_s in list(queue.ends_s.items()):
                if end_s > now_s:
                    next_s = end_s
                    break
                due.append(what)
            for what in due:
                queue.ends_s.pop(what, None)
            if not queue.ends_s:
                queue.armed = False
                del self._queues[limit_s]
        if queue.armed:
            self._later(next_s - now_s, lambda: self._look(limit_s, queue))
        for what in due:
            what.expire()
