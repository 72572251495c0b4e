"""Merges the direct messages and the casts of one sender back into the order in which they were sent.

Each stream keeps its own order. Marks among the direct messages place the casts: whatever precedes a BEFORE mark was
sent before that cast, whatever follows an AFTER mark was sent after it. A cast sent after direct messages carries a
flag that it waits for its mark. A state machine without I/O, locks or time.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.casts import Mark

__all__ = ["SendOrder"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Held(Generic[T]):
    """A cast that has arrived."""

    number: int
    waits: bool
    item: T


class SendOrder(Generic[T]):
    """The merged stream of one sender; each method returns the items that can be delivered now, in order."""

    def __init__(self) -> None:
        self._direct: deque[T | tuple[Mark, int]] = deque()
        self._casts: deque[_Held[T]] = deque()
        self._announced = 0  # all direct messages sent before this cast have arrived
        self._cast = 0  # number of the last cast that was delivered, or will never arrive
        self._cut = False

    @property
    def num_held(self) -> int:
        """Number of messages and marks held back."""
        return len(self._direct) + len(self._casts)

    @property
    def awaited(self) -> int:
        """Number of the last cast that direct messages wait for; 0 if none does."""
        marks = (item for item in self._direct if isinstance(item, tuple))
        return max((number for mark, number in marks if mark is Mark.AFTER and number > self._cast), default=0)

    def direct(self, item: T) -> list[T]:
        """Add a direct message."""
        if not self._direct:
            return [item]
        self._direct.append(item)
        return []

    def mark(self, mark: Mark, number: int) -> list[T]:
        """Add a mark."""
        if mark is Mark.SKIP:  # takes effect at once: queued marks may wait for it
            self._cast = max(self._cast, number)
        else:
            self._direct.append((mark, number))
        return self._go_on()

    def cast(self, number: int, item: T, *, waits: bool) -> list[T] | None:
        """Add a cast; None if it is too late and must never be delivered."""
        last = self._casts[-1].number if self._casts else 0
        if number <= max(self._cast, last):
            return None
        self._casts.append(_Held(number, waits, item))
        return self._go_on()

    def cut(self) -> list[T]:
        """Handle the end of the direct channel: casts stop waiting for marks that have not come.

        Direct messages go on waiting for casts, which come another way; `Mark.SKIP` ends that.
        """
        self._cut = True
        return self._go_on()

    def _is_announced(self, number: int) -> bool:
        return any(isinstance(item, tuple) and item[0] is Mark.BEFORE and item[1] >= number for item in self._direct)

    def _go_on(self) -> list[T]:
        ready: list[T] = []
        while self._step(ready):
            pass
        return ready

    def _step(self, ready: list[T]) -> bool:
        if self._casts:
            held = self._casts[0]
            if not held.waits or held.number <= self._announced or (self._cut and not self._is_announced(held.number)):
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
