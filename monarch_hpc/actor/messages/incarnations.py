"""The current proc of each rank of each mesh that this process knows, so that a proc can be replaced under a mesh.

A mesh and all views of it hold the same table: a call finds its proc by rank, at the cost of a look-up in a dict. It is
sent to the incarnation that it found, or fails if that one is dead: a channel never leads to another.
"""

from __future__ import annotations

import weakref
from _thread import RLock
from collections.abc import Callable, Iterable, Mapping

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.recent import Recent

__all__ = ["CurrentProcs", "Incarnations"]

_KEEP = 65536
"""Meshes whose replaced procs are remembered, for references from before that arrive late."""


class CurrentProcs(dict[int, ProcRef]):
    """The current proc of each rank of a mesh; travels as a plain dict.

    Attributes:
        lives: the number of earlier procs of each rank whose proc has replaced another.
    """

    def __init__(self, procs: Mapping[int, ProcRef]) -> None:
        super().__init__(procs)
        self.lives = {rank: proc.restarts for rank, proc in procs.items() if proc.restarts}

    def put(self, rank: int, proc: ProcRef) -> None:
        """Make *proc* the current one of *rank*, unless one that has replaced it is known already."""
        known = self.get(rank)
        if known is None or proc.restarts >= known.restarts:
            self[rank] = proc
            if proc.restarts:
                self.lives = {**self.lives, rank: proc.restarts}  # another one: senders may be reading it

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return dict, (dict(self),)


class Incarnations:
    """The tables of current procs by number of their mesh, of procs or actors; each lives as long as its meshes.

    An actor mesh has a table of its own: its actors live in the procs that they were spawned in, and are not in a proc
    that replaces one of these until they have been spawned there too.
    """

    def __init__(self) -> None:
        self._meshes: weakref.WeakValueDictionary[int, CurrentProcs] = weakref.WeakValueDictionary()
        self._replaced: Recent[int, dict[int, ProcRef]] = Recent(_KEEP)  # by number of the mesh, and rank
        self._lock = RLock()  # meshes arrive on any thread

    def of(self, number: int, procs: Mapping[int, ProcRef]) -> CurrentProcs:
        """Return the table of mesh *number*, with *procs* where no later incarnation is known."""
        with self._lock:
            known = self._meshes.get(number)
            if known is None:
                known = self._meshes[number] = CurrentProcs(procs)
            elif known is not procs:
                for rank, proc in procs.items():
                    known.put(rank, proc)
            for rank, proc in (self._replaced.get(number) or {}).items():
                if rank in known:
                    known.put(rank, proc)
            return known

    def replace(self, proc: ProcRef, numbers: Iterable[int]) -> None:
        """Make *proc* the current one of its rank in the meshes with these *numbers*, also if they arrive later."""
        with self._lock:
            for number in numbers:
                replaced = self._replaced.setdefault(number, {})
                known = replaced.get(proc.rank)
                if known is None or proc.restarts >= known.restarts:
                    replaced[proc.rank] = proc
                table = self._meshes.get(number)
                if table is not None and proc.rank in table:
                    table.put(proc.rank, proc)

    def replacements(self) -> list[tuple[ProcRef, list[int]]]:
        """The procs that have replaced others, each with the numbers of the meshes in which it has."""
        with self._lock:
            found: dict[ProcRef, list[int]] = {}
            for number in self._replaced:
                for proc in (self._replaced.get(number) or {}).values():
                    found.setdefault(proc, []).append(number)
            return list(found.items())
