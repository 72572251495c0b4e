"""Two streams of one sender become one again, in the order in which it sent: what came directly, and its casts.

Each stream keeps its own order. Marks among the direct messages say where casts belong: BEFORE a cast all that precedes
the mark was sent, AFTER one all that follows it. A cast that has direct messages before it says that it waits for its
mark. A machine without I/O, locks or time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from monarch_hpc.wire.casts import Mark

__all__ = ["Merge"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    """A cast that has come."""

    number: int
    waits: bool
    item: T


class Merge(Generic[T]):
    """What one sender has sent; each method returns what can be handed on now, in order."""

    def __init__(self) -> None:
        self._direct: deque[T | tuple[Mark, int]] = deque()
        self._casts: deque[_Held[T]] = deque()
        self._announced = 0  # all that was sent directly before this cast has come
        self._cast = 0  # number of the last cast that was handed on, or will not come
        self._cut = False

    @property
    def num_held(self) -> int:
        """How many messages and marks wait."""
        return len(self._direct) + len(self._casts)

    def direct(self, item: T) -> list[T]:
        """A message came directly."""
        if not self._direct:
            return [item]
        self._direct.append(item)
        return []

    def mark(self, mark: Mark, number: int) -> list[T]:
        """A mark came directly."""
        if mark is Mark.SKIP:  # does not stand in line: those that do may wait for it
            self._cast = max(self._cast, number)
        else:
            self._direct.append((mark, number))
        return self._go_on()

    def cast(self, number: int, item: T, *, waits: bool) -> list[T] | None:
        """A cast came; None if it is too late, and must not be handed on at all."""
        last = self._casts[-1].number if self._casts else 0
        if number <= max(self._cast, last):
            return None
        self._casts.append(_Held(number, waits, item))
        return self._go_on()

    def cut(self) -> list[T]:
        """The channel of the direct messages is over: those that wait are lost with it, and no cast waits for more."""
        self._cut = True
        self._direct.clear()
        return self._go_on()

    def _go_on(self) -> list[T]:
        ready: list[T] = []
        while self._step(ready):
            pass
        return ready

    def _step(self, ready: list[T]) -> bool:
        if self._casts:
            held = self._casts[0]
            if not held.waits or held.number <= self._announced or self._cut:
                self._casts.popleft()
                self._cast = held.number
                ready.append(held.item)
                return True
        if self._direct:
            first = self._direct[0]
            if not isinstance(first, tuple):
                ready.append(first)
            elif first[0] is Mark.BEFORE:
                self._announced = max(self._announced, first[1])
            elif first[1] > self._cast:
                return False
            self._direct.popleft()
            return True
        return False
