"""The actors that a process has spawned: who owns them, and which of them have failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monarch_hpc.actor.reference import ProcRef

__all__ = ["Ward", "Wards"]


@dataclass(frozen=True, slots=True)
class Ward:
    """A mesh of actors that was spawned here.

    Attributes:
        actor: its number.
        owner: number of the actor that spawned it; 0 for the program.
        procs: by rank of the mesh.
        ranks: by incarnation of the proc, those that are not known to have failed.
    """

    actor: int
    owner: int
    name: str
    procs: Mapping[int, ProcRef]
    ranks: dict[int, int]

    def where(self, rank: int) -> str:
        """One of its actors, in words."""
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"


class Wards:
    """Each failure is told once: whoever takes a rank out of its ward tells the owner. From any thread."""

    def __init__(self) -> None:
        self._wards: dict[int, Ward] = {}

    def add(self, actor: int, owner: int, name: str, procs: Mapping[int, ProcRef]) -> None:
        """Note that *owner* spawns *actor* in each of *procs*."""
        self._wards[actor] = Ward(actor, owner, name, procs, {proc.incarnation: rank for rank, proc in procs.items()})

    def remove(self, actor: int) -> None:
        """Forget a mesh of actors."""
        self._wards.pop(actor, None)

    def stop(self, actor: int, incarnation: int) -> None:
        """Note that the actor in that proc is asked to end: that it does is no failure."""
        ward = self._wards.get(actor)
        if ward is not None:
            ward.ranks.pop(incarnation, None)
            if not ward.ranks:
                self.remove(actor)

    def lose(self, incarnation: int) -> list[tuple[Ward, int]]:
        """A proc is gone: return those that had an actor there, and its rank."""
        lost = []
        for ward in list(self._wards.values()):
            rank = ward.ranks.pop(incarnation, None)
            if rank is not None:
                lost.append((ward, rank))
        return lost

    def fail(self, actor: int, rank: int) -> int | None:
        """The actor at *rank* has failed: return its owner, None if that is known, or it is none of ours."""
        ward = self._wards.get(actor)
        if ward is None or ward.ranks.pop(ward.procs[rank].incarnation, None) is None:
            return None
        return ward.owner

    def of(self, owner: int) -> list[Ward]:
        """All that an actor has spawned."""
        return [ward for ward in list(self._wards.values()) if ward.owner == owner]
