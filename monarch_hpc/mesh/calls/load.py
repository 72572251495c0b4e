"""Who is least busy: what this process has asked of each rank of an actor mesh and not heard of yet."""

from __future__ import annotations

import _thread
from collections.abc import Collection, Iterable

from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Region

__all__ = ["Load"]

_KEEP_TURNS = 64
"""Views of a mesh that have turns of their own; of those of a loop, each in its turn begins anew."""


class Load:
    """Counts the unanswered calls to each rank; for any thread. Views of one mesh share it."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._nums: dict[int, int] = {}
        self._dead: set[int] = set()
        self._turns: Recent[Region, int] = Recent(_KEEP_TURNS)

    def begin(self, rank: int) -> None:
        """One more call to *rank* is under way."""
        with self._lock:
            self._nums[rank] = self._nums.get(rank, 0) + 1

    def begin_all(self, ranks: Iterable[int]) -> None:
        """One more call to each of *ranks* is under way."""
        with self._lock:
            for rank in ranks:
                self._nums[rank] = self._nums.get(rank, 0) + 1

    def end(self, rank: int, *, died: bool = False) -> None:
        """One of them is over.

        Args:
            died: the actor is gone. It answers at once, and would seem the least busy of all.
        """
        with self._lock:
            left = self._nums.pop(rank, 0) - 1
            if left > 0:
                self._nums[rank] = left
            if died:
                self._dead.add(rank)
            elif self._dead:
                self._dead.discard(rank)

    def end_all(self, ranks: Collection[int]) -> None:
        """One call to each of *ranks* is over, and none of them died."""
        with self._lock:
            for rank in ranks:
                left = self._nums.pop(rank, 0) - 1
                if left > 0:
                    self._nums[rank] = left
            self._dead.difference_update(ranks)

    def choose(self, region: Region) -> int:
        """The place in *region* of the least busy rank; those that are equally busy take turns.

        A rank that died is chosen where no other is left.
        """
        with self._lock:
            # On from the one that was chosen, not from the one that had its turn: or whoever follows those that are
            # passed over has their turns beside its own.
            chosen = self._turns[region] = self._find(region, self._turns.get(region) or 0)
        return chosen

    def _find(self, region: Region, last: int) -> int:
        num = len(region)
        best, fewest = (last + 1) % num, None
        for step in range(1, num + 1):
            place = (last + step) % num
            rank = region.base_rank(place)
            if rank in self._dead:
                continue
            waiting = self._nums.get(rank, 0)
            if not waiting:
                return place
            if fewest is None or waiting < fewest:
                best, fewest = place, waiting
        return best
