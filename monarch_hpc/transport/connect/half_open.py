"""Limits on half-open connections, which have not authenticated yet: their number, age, and order of eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["GRACE_S", "MAX_PER_ADDRESS", "SLOW_S", "HalfOpen", "Unproven"]

MAX_PER_ADDRESS = 8
"""Slow connections allowed per address. Fast ones are limited only in total: a host with 128 procs dials at once."""

SLOW_S = 1.0
"""From this age on a connection counts as slow: a lost packet of an honest peer is repeated within 200 ms. Even when
full, the table leaves this long to connections whose hello used the key: they were answered, and do not retry."""

GRACE_S = 0.01
"""Minimum time that even a full table leaves each connection: several round trips of a cluster's network. Short,
because others wait in the backlog meanwhile: a thousand silent strangers are through in 0.2 s."""


class Unproven(Protocol):
    """A connection that has not authenticated."""

    @property
    def host(self) -> str:
        """The IP address that it came from."""
        ...

    @property
    def at_s(self) -> float:
        """When it was accepted."""
        ...

    @property
    def greeted(self) -> bool:
        """Whether its hello was made with the key; the hello may still be a recording."""
        ...


A = TypeVar("A", bound=Unproven)


class HalfOpen(Generic[A]):
    """At most *limit* half-open connections, each for at most *timeout_s* seconds.

    Pure: the caller reads the clock and closes the connections.
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._arrivals: dict[A, None] = {}  # in order of arrival
        self._num_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._arrivals)

    def __iter__(self) -> Iterator[A]:
        return iter(self._arrivals)

    def __contains__(self, arrival: object) -> bool:
        return arrival in self._arrivals

    @property
    def full(self) -> bool:
        """Whether a connection must be evicted before the next can be accepted."""
        return len(self._arrivals) >= self._limit

    def add(self, arrival: A) -> None:
        """Add a connection, as the latest."""
        self._arrivals[arrival] = None
        self._num_of[arrival.host] += 1

    def remove(self, arrival: A) -> None:
        """Remove a connection, which has authenticated or is closed."""
        del self._arrivals[arrival]
        self._num_of[arrival.host] -= 1
        if not self._num_of[arrival.host]:
            del self._num_of[arrival.host]

    def evictable(self, now_s: float) -> A | None:
        """The connection to evict next; None while all of them are within their minimum time.

        The address with the most connections loses its oldest one, so that a flood from one address displaces only
        itself. Connections whose hello used the key go last, and only once they are slow.
        """
        strangers = [arrival for arrival in self._arrivals if not arrival.greeted]
        candidates, grace_s = (strangers, GRACE_S) if strangers else (list(self._arrivals), SLOW_S)
        most = max((self._num_of[arrival.host] for arrival in candidates), default=0)
        first = next((arrival for arrival in candidates if self._num_of[arrival.host] == most), None)
        return first if first is not None and now_s - first.at_s >= grace_s else None

    def due(self, now_s: float) -> list[A]:
        """The connections that have timed out, and the slow ones beyond the limit per address.

        Connections whose hello used the key are exempt from that limit: procs of a busy host that dial all at once may
        be slow.
        """
        left = self._num_of.copy()
        due = []
        for arrival in self._arrivals:
            age_s = now_s - arrival.at_s
            is_slow = age_s >= SLOW_S and not arrival.greeted
            if age_s >= self._timeout_s or (is_slow and left[arrival.host] > MAX_PER_ADDRESS):
                left[arrival.host] -= 1
                due.append(arrival)
        return due

    def next_s(self) -> float | None:
        """When to call `due` next; None if there are no connections."""
        short_s = min(SLOW_S, self._timeout_s)
        times = [
            arrival.at_s
            + (short_s if self._num_of[arrival.host] > MAX_PER_ADDRESS and not arrival.greeted else self._timeout_s)
            for arrival in self._arrivals
        ]
        return min(times, default=None)
