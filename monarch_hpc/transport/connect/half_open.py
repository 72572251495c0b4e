"""Who has connected and proved nothing yet: how many may stay, for how long, and who goes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["GRACE_S", "MAX_PER_ADDRESS", "SLOW_S", "HalfOpen", "Unproven"]

MAX_PER_ADDRESS = 8
"""Of one address, so many may be slow. Fast ones may be as many as all: a host with 128 procs dials at once."""

SLOW_S = 1.0
"""From here on a connection counts as slow: a lost packet of an honest one is repeated within 200 ms. So long a full
crowd also leaves to those that greeted with the key: they have an answer already, and do not try again."""

GRACE_S = 0.01
"""What even a full crowd leaves to each: several round trips of a cluster's network. Short, because meanwhile others
wait in the kernel's queue: a thousand silent strangers are through in 0.2 s."""


class Unproven(Protocol):
    """One connection without proof."""

    @property
    def host(self) -> str:
        """The IP address that it came from."""
        ...

    @property
    def at_s(self) -> float:
        """When it came."""
        ...

    @property
    def greeted(self) -> bool:
        """Whether it sent a greeting made with the key, which may still be a recorded one."""
        ...


A = TypeVar("A", bound=Unproven)


class HalfOpen(Generic[A]):
    """At most *limit* arrivals, each for at most *timeout_s* seconds.

    Pure: the caller reads the clock and closes what is to go.
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
        """Whether somebody has to go before the next may come."""
        return len(self._arrivals) >= self._limit

    def add(self, arrival: A) -> None:
        """Somebody came, after all others."""
        self._arrivals[arrival] = None
        self._num_of[arrival.host] += 1

    def remove(self, arrival: A) -> None:
        """Somebody proved himself or went."""
        del self._arrivals[arrival]
        self._num_of[arrival.host] -= 1
        if not self._num_of[arrival.host]:
            del self._num_of[arrival.host]

    def evictable(self, now_s: float) -> A | None:
        """Who goes first to make room; None while all deserve some more time.

        Whoever has the most connections loses the oldest of them, so that a flood from one address only
        displaces itself. Those who greeted with the key go last, and only when they are slow.
        """
        strangers = [arrival for arrival in self._arrivals if not arrival.greeted]
        candidates, grace_s = (strangers, GRACE_S) if strangers else (list(self._arrivals), SLOW_S)
        most = max((self._num_of[arrival.host] for arrival in candidates), default=0)
        first = next((arrival for arrival in candidates if self._num_of[arrival.host] == most), None)
        return first if first is not None and now_s - first.at_s >= grace_s else None

    def due(self, now_s: float) -> list[A]:
        """Who has had all the time there is: for anybody, or for one of many slow strangers of its address.

        Those who greeted with the key are no strangers: procs of a busy host that all dial at once may be slow.
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
        """When to ask again who is due; None when nobody is here."""
        short_s = min(SLOW_S, self._timeout_s)
        times = [
            arrival.at_s
            + (short_s if self._num_of[arrival.host] > MAX_PER_ADDRESS and not arrival.greeted else self._timeout_s)
            for arrival in self._arrivals
        ]
        return min(times, default=None)
