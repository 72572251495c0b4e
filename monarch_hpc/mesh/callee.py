"""The actors that a call goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from monarch_hpc.actor.payload import pack_call
from monarch_hpc.actor.reference import ProcRef
from monarch_hpc.actor.runtime import Answer, current_runtime
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.load import Load

__all__ = ["Callee"]

Slot = Callable[[int, int], Answer]
"""Makes the callback for the answer of the actor that is asked as number so, and has that base rank."""


@dataclass(frozen=True, slots=True)
class Callee:
    """One actor on each proc of a view.

    Attributes:
        name: the name given to `spawn`.
        actor: its number, the same in every proc.
        procs: by base rank; those of the view at least.
        load: of all views of the mesh.
    """

    name: str
    actor: int
    region: Region
    procs: Mapping[int, ProcRef]
    load: Load

    def __str__(self) -> str:
        return f"{self.name} ({self.region.extent})"

    def where(self, method: str, place: int) -> str:
        """The actor at *place* of the view and one of its endpoints, in words."""
        rank = self.region.base_rank(place)
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}, endpoint {method}"

    def send(
        self, method: str, args: tuple[object, ...], kwargs: dict[str, object], slot: Slot | None, place: int | None
    ) -> None:
        """Send one call to every actor, or to the one at *place*; the arguments are serialized once.

        Args:
            slot: who is told the answers; None for a call that has none.
        """
        runtime = current_runtime()
        body, buffers = pack_call(method, self.region, args, kwargs)
        ranks = self.region.base_ranks() if place is None else (self.region.base_rank(place),)
        for index, rank in enumerate(ranks):
            proc = self.procs[rank]
            where = f"actor {self.name}[{rank}] on {proc.host}, endpoint {method}"
            if slot is None:
                runtime.call(proc, self.actor, where, body, buffers, None)
                continue
            try:
                runtime.call(proc, self.actor, where, body, buffers, slot(index, rank))
            except BaseException:
                self.load.end(rank)  # it was not sent
                raise
