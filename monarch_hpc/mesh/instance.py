"""The running actor, as returned by `context().actor_instance`; see `actor.instance.ActorInstance`."""

from __future__ import annotations

from monarch_hpc.actor.context import Context
from monarch_hpc.actor.instance import ActorId
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.shape import Point
from monarch_hpc.mesh.proc import ProcMesh, proc_of

__all__ = ["Instance"]


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
    def rank(self) -> Point:
        """Coordinates of the actor in the spawned mesh, whichever slice the message was sent to."""
        return self._context.spawn_rank

    @property
    def proc_id(self) -> str:
        """The actor's process, ``HOST/PID``."""
        own = current_runtime().own
        return f"{own.host}/{own.pid}"

    @property
    def actor_id(self) -> ActorId:
        """Identity of the actor."""
        return ActorId(self.proc_id, self.name, self._context.actor, self.rank.rank)

    @property
    def proc(self) -> ProcMesh:
        """The actor's process, as a mesh of one proc without dimensions; actors spawned on it share the process."""
        return proc_of(current_runtime())

    def stop(self, reason: str | None = None) -> None:
        """See `ActorInstance.stop`."""
        runtime = current_runtime()
        runtime.stop(runtime.own, self._number("stop"))

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
