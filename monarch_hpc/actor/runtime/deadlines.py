"""When calls must be over: one timer for all that have the same time limit, not one for each.

A timer that is cancelled stays in the engine's heap until it is due: a minute of calls, where nearly
none needs its own.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Protocol

__all__ = ["Deadlines", "Expiring"]


class Expiring(Protocol):
    """What has a time limit."""

    def expire(self) -> None:
        """The time is over; on the driver."""
        ...


class _Queue:
    """Those with one time limit: they expire in the order in which they began."""

    def __init__(self) -> None:
        self.ends_s: dict[Expiring, float] = {}
        self.armed = False


class Deadlines:
    """Expires what is not done in time; for any thread.

    Args:
        clock: seconds that only grow.
        later: runs a callback on the driver in so many seconds.
    """

    def __init__(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock = clock
        self._later = later
        self._queues: dict[float, _Queue] = {}
        self._lock = _thread.allocate_lock()

    def add(self, limit_s: float, what: Expiring) -> None:
        """Expire *what* in *limit_s* seconds, unless it is removed first."""
        with self._lock:
            queue = self._queues.setdefault(limit_s, _Queue())
            queue.ends_s[what] = self._clock() + limit_s
            if queue.armed:
                return
            queue.armed = True
        self._later(limit_s, lambda: self._look(limit_s, queue))

    def remove(self, limit_s: float, what: Expiring) -> None:
        """*what* is done; or it never was added, or has expired."""
        with self._lock:
            queue = self._queues.get(limit_s)
            if queue is not None:
                queue.ends_s.pop(what, None)

    def _look(self, limit_s: float, queue: _Queue) -> None:
        due: list[Expiring] = []
        with self._lock:
            now_s = self._clock()
            next_s = 0.0
            for what, end_s in queue.ends_s.items():
                if end_s > now_s:
                    next_s = end_s
                    break
                due.append(what)
            for what in due:
                del queue.ends_s[what]
            if not queue.ends_s:
                queue.armed = False
                del self._queues[limit_s]
        if queue.armed:
            self._later(next_s - now_s, lambda: self._look(limit_s, queue))
        for what in due:
            what.expire()
