"""The actors and procs that a process has spawned, with their owners and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from monarch_hpc.actor.context import context
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.recorder import Recorder

__all__ = ["End", "OwnedMesh", "Ownership"]

End = Callable[[Callable[[], None]], None]
"""Requests the end of procs, and calls back when they are gone, or known to be late."""


@dataclass(frozen=True, slots=True)
class OwnedMesh:
    """A mesh of actors, or of procs, that was spawned here.

    Attributes:
        actor: number of the actor mesh; for procs, number of the proc mesh in its run.
        owner: number of the actor that spawned the mesh; 0 for the program.
        procs: procs by rank in the mesh.
        ranks: ranks not known to have failed, by incarnation of their proc.
        end: for procs: requests the end of all. None for actors.
        class_name: module and name of the actors' class; empty for procs.
    """

    actor: int
    owner: int
    name: str
    procs: Mapping[int, ProcRef]
    ranks: dict[int, int]
    end: End | None = None
    class_name: str = ""

    def where(self, rank: int) -> str:
        """Describe the actor, or proc, at *rank*."""
        if self.end is not None:
            return f"proc {rank} of {self.name} on {self.procs[rank].host}"
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"


class Ownership:
    """Spawned meshes by number. A failure is reported once: by the caller that removes its rank. For any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._meshes: dict[int, OwnedMesh] = {}
        # Owner and incarnation of each lost proc whose death is reported through an actor of that owner.
        self._reported: set[tuple[int, int]] = set()

    def add(
        self,
        actor: int,
        owner: int,
        name: str,
        procs: Mapping[int, ProcRef],
        end: End | None = None,
        class_name: str = "",
    ) -> None:
        """Add a mesh of actors that *owner* spawns in *procs*; or, with *end*, a mesh of procs that it has spawned."""
        ranks = {proc.incarnation: rank for rank, proc in procs.items()}
        self._meshes[actor] = OwnedMesh(actor, owner, name, procs, ranks, end, class_name)
        self._note(RecordKind.MESH_SPAWNED, self._meshes[actor])

    def remove(self, actor: int) -> None:
        """Forget a mesh of actors, or procs."""
        mesh = self._meshes.pop(actor, None)
        if mesh is not None:
            self._note(RecordKind.MESH_STOPPED, mesh)

    def _note(self, kind: RecordKind, mesh: OwnedMesh) -> None:
        name = self._recorder.names.text(mesh.name)
        self._recorder.change(kind, mark=context().mark, name=name, msg=mesh.actor, value=len(mesh.procs))

    def stop(self, actor: int, incarnation: int) -> OwnedMesh | None:
        """Note that one actor is asked to end, so that its end is not a failure.

        Returns:
            The mesh, if this was its last actor; else None.
        """
        mesh = self._meshes.get(actor)
        if mesh is None:
            return None
        mesh.ranks.pop(incarnation, None)
        if mesh.ranks:
            return None
        self.remove(actor)
        return mesh

    def stop_many(self, actor: int, procs: Iterable[ProcRef]) -> None:
        """Likewise for all of *procs*."""
        for proc in procs:
            self.stop(actor, proc.incarnation)

    def lose(self, incarnation: int) -> list[tuple[OwnedMesh, int]]:
        """Remove a lost proc; return the meshes that had an actor there, each with the rank of that actor."""
        lost = []
        for mesh in list(self._meshes.values()):
            # Actor meshes only: losing the channel to a proc does not prove its death, which its starter reports.
            rank = mesh.ranks.pop(incarnation, None) if mesh.end is None else None
            if rank is not None:
                self._reported.add((mesh.owner, incarnation))
                lost.append((mesh, rank))
        return lost

    def class_of(self, actor: int) -> str:
        """Module and name of the class of a mesh of actors; empty if it is unknown here."""
        mesh = self._meshes.get(actor)
        return "" if mesh is None else mesh.class_name

    def fail(self, actor: int, rank: int) -> int | None:
        """Remove a rank that has failed; return the owner to notify, or None.

        None if the mesh is unknown, the failure is reported already, or a proc has failed and its owner gets the
        failure of an actor in that proc.
        """
        mesh = self._meshes.get(actor)
        if mesh is None:
            return None
        incarnation = mesh.procs[rank].incarnation
        if mesh.ranks.pop(incarnation, None) is None:
            return None
        if mesh.end is not None:
            actors = [other for other in self.of(mesh.owner) if other.end is None]
            if (mesh.owner, incarnation) in self._reported or any(incarnation in other.ranks for other in actors):
                return None
        return mesh.owner

    def of(self, owner: int) -> list[OwnedMesh]:
        """The meshes, of actors and of procs, that an actor has spawned."""
        return [mesh for mesh in list(self._meshes.values()) if mesh.owner == owner]
