"""The actors and procs that a process has spawned: who owns them, and which of them have failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from monarch_hpc.actor.context import context
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.recorder import Recorder

__all__ = ["OwnedMesh", "Ownership"]


@dataclass(frozen=True, slots=True)
class OwnedMesh:
    """A mesh of actors, or of procs, that was spawned here.

    Attributes:
        actor: its number; that of the mesh in its run for procs.
        owner: number of the actor that spawned it; 0 for the program.
        procs: by rank of the mesh.
        ranks: by incarnation of the proc, those that are not known to have failed.
        end: for procs: ends them all, and waits for nothing.
    """

    actor: int
    owner: int
    name: str
    procs: Mapping[int, ProcRef]
    ranks: dict[int, int]
    end: Callable[[], None] | None = None

    def where(self, rank: int) -> str:
        """One of its actors, or procs, in words."""
        if self.end is not None:
            return f"proc {rank} of {self.name} on {self.procs[rank].host}"
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"


class Ownership:
    """Each failure is told once: whoever takes a rank out of its mesh tells the owner. From any thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._meshes: dict[int, OwnedMesh] = {}
        self._told: set[tuple[int, int]] = set()  # owners, and procs of whose death they hear through an actor there

    def add(
        self, actor: int, owner: int, name: str, procs: Mapping[int, ProcRef], end: Callable[[], None] | None = None
    ) -> None:
        """Note that *owner* spawns *actor* in each of *procs*; with *end* it is the procs that it has spawned."""
        ranks = {proc.incarnation: rank for rank, proc in procs.items()}
        self._meshes[actor] = OwnedMesh(actor, owner, name, procs, ranks, end)
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
        """Note that the actor in that proc is asked to end: that it does is no failure.

        Returns:
            The mesh, if it was the last of it.
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
        """The same for all of *procs*."""
        for proc in procs:
            self.stop(actor, proc.incarnation)

    def lose(self, incarnation: int) -> list[tuple[OwnedMesh, int]]:
        """A proc is gone: return those that had an actor there, and its rank."""
        lost = []
        for mesh in list(self._meshes.values()):
            # That a proc is lost does not mean that it is dead: who started it is told of that.
            rank = mesh.ranks.pop(incarnation, None) if mesh.end is None else None
            if rank is not None:
                self._told.add((mesh.owner, incarnation))
                lost.append((mesh, rank))
        return lost

    def fail(self, actor: int, rank: int) -> int | None:
        """The actor or proc at *rank* has failed: return its owner, None if he knows, or it is none of ours.

        Who hears of the end of his actors in a proc is not told of that of the proc as well.
        """
        mesh = self._meshes.get(actor)
        if mesh is None:
            return None
        incarnation = mesh.procs[rank].incarnation
        if mesh.ranks.pop(incarnation, None) is None:
            return None
        if mesh.end is not None:
            actors = [other for other in self.of(mesh.owner) if other.end is None]
            if (mesh.owner, incarnation) in self._told or any(incarnation in other.ranks for other in actors):
                return None
        return mesh.owner

    def of(self, owner: int) -> list[OwnedMesh]:
        """All that an actor has spawned, actors and procs."""
        return [mesh for mesh in list(self._meshes.values()) if mesh.owner == owner]
