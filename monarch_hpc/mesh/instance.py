"""The running actor, as returned by `context().actor_instance`; see `actor.instance.ActorInstance`."""

from __future__ import annotations

from monarch_hpc.actor.context import Context
from monarch_hpc.actor.instance import ActorId
from monarch_hpc.actor.messages.creator import Creator, unpack_creator
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.shape import Point, Region
from monarch_hpc.mesh.door import door_of
from monarch_hpc.mesh.proc import ProcMesh, mesh_around, proc_of

__all__ = ["CreatorView", "Instance"]


class CreatorView:
    """The actor or program that has spawned an actor; see `actor.instance.CreatorInstance`."""

    def __init__(self, creator: Creator) -> None:
        self._creator = creator

    def __repr__(self) -> str:
        return f"<CreatorInstance {self.name}[{self.rank.rank}] on {self._creator.proc.host}>"

    @property
    def name(self) -> str:
        """See `ActorInstance.name`."""
        return self._creator.name

    @property
    def class_name(self) -> str | None:
        """See `ActorInstance.class_name`."""
        return self._creator.class_name or None

    @property
    def rank(self) -> Point:
        """See `ActorInstance.rank`."""
        return self._creator.rank

    @property
    def creator(self) -> CreatorView | None:
        """See `ActorInstance.creator`."""
        return _creator_of(self._creator.creator)

    @property
    def proc(self) -> ProcMesh:
        """See `ActorInstance.proc`."""
        proc, runtime = self._creator.proc, current_runtime()
        return proc_of(runtime) if proc == runtime.own else _mesh_of(proc.region, proc, runtime)

    @property
    def proc_mesh(self) -> ProcMesh:
        """See `ActorInstance.proc_mesh`."""
        return _mesh_of(self._creator.region, self._creator.proc, current_runtime())


class Instance:
    """The running actor; in the program, the program itself."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<Instance {self.actor_id}>"

    @property
    def name(self) -> str:
        """The name passed to `ProcMesh.spawn`."""
        return self._context.actor_name

    @property
    def class_name(self) -> str | None:
        """Module and name of the actor's class; None for the program."""
        return self._context.class_name or None

    @property
    def rank(self) -> Point:
        """Coordinates of the actor in the spawned mesh, whichever slice the message was sent to."""
        return self._context.spawn_rank

    @property
    def creator(self) -> CreatorView | None:
        """The actor or program that has spawned this actor; None for the program."""
        return _creator_of(self._context.creator)

    @property
    def proc_id(self) -> str:
        """The actor's process, ``HOST/PID``."""
        return self.actor_id.proc_id

    @property
    def actor_id(self) -> ActorId:
        """Identity of the actor."""
        return self._context.actor_id

    @property
    def proc(self) -> ProcMesh:
        """The actor's process, as a mesh of one proc without dimensions; actors spawned on it share the process."""
        return proc_of(current_runtime())

    @property
    def proc_mesh(self) -> ProcMesh:
        """See `ActorInstance.proc_mesh`."""
        runtime = current_runtime()
        region = self._context.region
        return proc_of(runtime) if region is None else _mesh_of(region, runtime.own, runtime)

    def stop(self, reason: str | None = None) -> None:
        """See `ActorInstance.stop`."""
        runtime = current_runtime()
        runtime.stop(runtime.own, self._number("stop"), None, reason or "")

    def kill(self, reason: str | None = None) -> None:
        """See `ActorInstance.kill`."""
        cell = current_runtime().actors.cells.get(self._number("kill"))
        if cell is not None:
            cell.kill(reason or "no reason was given")

    def abort(self, reason: str | None = None) -> None:
        """The same as `kill`."""
        self.kill(reason)

    def set_system(self) -> None:
        """For moved programs, without effect: listings do not distinguish system actors."""

    def _number(self, what: str) -> int:
        if not self._context.actor:
            raise RuntimeError(f"{what}() ends an actor; this is the program: return from it, or shutdown_context()")
        return self._context.actor


def _creator_of(packed: object) -> CreatorView | None:
    return None if packed is None else CreatorView(unpack_creator(packed))


def _mesh_of(region: Region, proc: ProcRef, runtime: Runtime) -> ProcMesh:
    """The procs of *region* in the mesh of *proc*, which is one of them; only the program has them all."""
    if len(region) == 1:
        return mesh_around(f"proc {proc.rank} on {proc.host}", region, {proc.rank: proc}, runtime)
    name, procs = door_of(runtime).procs(proc.mesh)
    return mesh_around(name, region, procs, runtime)
