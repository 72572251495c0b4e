"""The actors and procs that a process has spawned, their owners and failures, and what the actors are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from monarch_hpc.actor.context import context
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.wire.frames import Buffer, copy_of

__all__ = ["End", "OwnedMesh", "Ownership", "Recipe"]

End = Callable[[Callable[[], None]], None]
"""Requests the end of procs, and calls back when they are gone, or known to be late."""


@dataclass(slots=True, eq=False)
class Recipe:
    """What the actors of a mesh are made of, to make one again in a proc that replaces another.

    Attributes:
        mesh: number of their proc mesh.
        region: their place among its procs.
        cls: their class.
        body, buffers: of the message that spawns them; None if they take more than may be kept.
        num_bytes: the size of that message.
        states: what they had to say at the last checkpoint, by rank in the proc mesh; see `actor.states`.
        stopped: ranks in the proc mesh of those that were asked to end.
    """

    mesh: int
    region: Region
    cls: type
    body: bytes | None
    buffers: Sequence[Buffer]
    num_bytes: int
    states: Mapping[int, bytes | str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)


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
        recipe: what the actors are made of; None if they cannot be made again.
    """

    actor: int
    owner: int
    name: str
    procs: Mapping[int, ProcRef]
    ranks: dict[int, int]
    end: End | None = None
    class_name: str = ""
    recipe: Recipe | None = None

    def where(self, rank: int) -> str:
        """Describe the actor, or proc, at *rank*."""
        if self.end is not None:
            return f"proc {rank} of {self.name} on {self.procs[rank].host}"
        return f"actor {self.name}[{rank}] on {self.procs[rank].host}"


class Ownership:
    """Spawned meshes by number. A failure is reported once: by the caller that removes its rank. For any thread.

    Args:
        kept_bytes: limit on the messages kept in recipes, config key `procs.kept_bytes`.
    """

    def __init__(self, recorder: Recorder, kept_bytes: int = 0) -> None:
        self._recorder = recorder
        self._left_bytes = kept_bytes
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
            if mesh.recipe is not None and mesh.recipe.body is not None:
                self._left_bytes += mesh.recipe.num_bytes
            self._note(RecordKind.MESH_STOPPED, mesh)

    def keep(self, actor: int, mesh: int, region: Region, cls: type, body: bytes, buffers: Sequence[Buffer]) -> None:
        """Keep a copy of what the actors of a mesh are made of, unless it takes more than may be kept.

        Args:
            actor: number of the actor mesh.
            mesh: number of their proc mesh; *region* is their place there.
            cls: their class.
            body: that of the message that spawns them; *buffers* likewise.
        """
        owned = self._meshes.get(actor)
        if owned is None:
            return  # they have ended meanwhile
        num_bytes = len(body) + sum(memoryview(buffer).nbytes for buffer in buffers)
        recipe = Recipe(mesh, region, cls, None, (), num_bytes)
        if num_bytes <= self._left_bytes:
            self._left_bytes -= num_bytes
            recipe.body, recipe.buffers = body, [copy_of(buffer) for buffer in buffers]
        self._meshes[actor] = replace(owned, recipe=recipe)

    def made_in(self, mesh: int) -> list[tuple[OwnedMesh, Recipe]]:
        """The meshes of actors with recipes in the procs of mesh *mesh*, in the order in which they were spawned."""
        found = [(owned, owned.recipe) for owned in list(self._meshes.values())]
        return [(owned, recipe) for owned, recipe in found if recipe is not None and recipe.mesh == mesh]

    def state_files(self) -> set[str]:
        """The files with the states of the last checkpoints."""
        recipes = [owned.recipe for owned in list(self._meshes.values()) if owned.recipe is not None]
        return {state for recipe in recipes for state in recipe.states.values() if isinstance(state, str)}

    def revive(self, number: int, rank: int, proc: ProcRef) -> bool:
        """Note that the actor at *rank* of a mesh lives again, in *proc*; of a mesh of procs, that this is its proc.

        Returns:
            Whether the mesh is still there.
        """
        owned = self._meshes.get(number)
        if owned is None:
            return False
        self._meshes[number] = replace(owned, procs={**owned.procs, rank: proc})
        owned.ranks[proc.incarnation] = rank
        return True

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
        rank = mesh.ranks.pop(incarnation, None)
        if mesh.recipe is not None:
            if rank is None:  # its proc is dead, and it must not come back with it
                rank = next((rank for rank, proc in mesh.procs.items() if proc.incarnation == incarnation), None)
            if rank is not None:
                mesh.recipe.stopped.add(mesh.recipe.region.base_rank(rank))
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
