"""The in-flight calls of this process to each rank of an actor mesh, from which `choose` finds the least busy one."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Collection, Iterable, Mapping

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Region

__all__ = ["Load"]

_KEEP_VIEWS = 64
"""Views of a mesh with a remembered round-robin position; a loop over more views starts each one anew."""


class Load:
    """Counts the in-flight calls to each rank; for any thread. Views of one mesh share it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._choosing = RLock()
        self._nums: dict[int, int] = {}
        self._dead: dict[int, int] = {}  # rank -> incarnation of its proc
        self._last: Recent[Region, int] = Recent(_KEEP_VIEWS)  # the place chosen last, by view

    def begin(self, rank: int) -> None:
        """Count one more call to *rank*."""
        with self._lock:  # nothing is called while it is held, see `Credit.try_take`
            self._nums[rank] = self._nums[rank] + 1 if rank in self._nums else 1

    def begin_all(self, ranks: Iterable[int]) -> None:
        """Count one more call to each of *ranks*."""
        with self._lock:
            for rank in ranks:
                self._nums[rank] = self._nums.get(rank, 0) + 1

    def end(self, rank: int, died: int = 0) -> None:
        """Count one call to *rank* less.

        Args:
            rank: the rank that has answered.
            died: incarnation of its proc if the actor is dead. Calls to it fail at once, so it would seem the least
                busy one.
        """
        with self._lock:
            left = self._nums.pop(rank, 0) - 1
            if left > 0:
                self._nums[rank] = left
            if died:
                self._dead[rank] = died
            elif self._dead:
                self._dead.pop(rank, None)

    def end_all(self, ranks: Collection[int]) -> None:
        """Count one call to each of *ranks* less; all of them are alive."""
        with self._lock:
            for rank in ranks:
                left = self._nums.pop(rank, 0) - 1
                if left > 0:
                    self._nums[rank] = left
                self._dead.pop(rank, None)

    def choose(self, region: Region, procs: Mapping[int, ProcRef]) -> int:
        """The place in *region* of the least busy rank, round-robin among equally busy ones.

        A dead rank is chosen only if no other is left.

        Args:
            procs: the current procs; a rank whose proc has replaced a dead one is alive.
        """
        with self._choosing:
            # Continue after the rank chosen last. If the position just advanced by one, the rank behind busy ones would
            # be chosen for each of them too.
            chosen = self._last[region] = self._find(region, procs, self._last.get(region) or 0)
        return chosen

    def _find(self, region: Region, procs: Mapping[int, ProcRef], last: int) -> int:
        num = len(region)
        best, fewest = (last + 1) % num, None
        for step in range(1, num + 1):
            place = (last + step) % num
            rank = region.base_rank(place)
            died = self._dead.get(rank)
            if died is not None and died == procs[rank].incarnation:
                continue
            waiting = self._nums.get(rank, 0)
            if not waiting:
                return place
            if fewest is None or waiting < fewest:
                best, fewest = place, waiting
        return best
