"""The actors that another program has spawned, found again in what its procs tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from monarch_hpc.actor.messages.incarnations import Incarnations
from monarch_hpc.actor.messages.payload import region_of
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.program.takeover.survey import SurveyedProc
from monarch_hpc.wire.serializer import loads

__all__ = ["FoundActors", "find_actors", "free_name"]


@dataclass(slots=True, eq=False)
class FoundActors:
    """One mesh of actors.

    Attributes:
        actor: its number.
        region: its place in the mesh of procs.
        cls: its class; None if *problem* says why that is not known here.
    """

    actor: int
    name: str
    region: Region
    cls: type | None
    class_name: str
    problem: str

    def mesh(self, incarnations: Incarnations, procs: Mapping[int, ProcRef]) -> ActorMesh[Any]:
        """Return the mesh; *procs* are those of its mesh of procs, by rank."""
        assert self.cls is not None, "its problem comes first"
        kept = {rank: procs[rank] for rank in self.region.base_ranks()}
        return ActorMesh(self.name, self.actor, self.cls, self.region, incarnations.of(self.actor, kept))


def find_actors(findings: Iterable[SurveyedProc]) -> list[FoundActors]:
    """Return the meshes of actors in the procs of one mesh; loads their classes, which runs user code."""
    known: dict[int, FoundActors] = {}
    for finding in findings:
        for actor, name, view, packed, class_name in finding.actors:
            if actor not in known or known[actor].cls is None:
                cls, problem = _load_class(packed, class_name)
                known[actor] = FoundActors(actor, name, region_of(view), cls, class_name, problem)
    return list(known.values())


def free_name(name: str, taken: Collection[str]) -> str:
    """Return *name*, with a number behind it if it is taken."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def _load_class(packed: bytes, name: str) -> tuple[type | None, str]:
    if not packed:
        return None, "its constructor still runs, or its class cannot be pickled"
    try:
        cls = loads(packed)
    except BaseException as error:  # noqa: BLE001 unpickling runs user code
        return None, f"its class {name} cannot be loaded here: {summary_of(error)}"
    return (cls, "") if isinstance(cls, type) else (None, f"{name} is not a class")
