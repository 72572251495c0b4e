"""The actor that runs this code, as `context().actor_instance`."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_hpc.actor.context import Context
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.shape import Point
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.program.registry import proc_of

__all__ = ["ActorId", "Instance"]


@dataclass(frozen=True, slots=True)
class ActorId:
    """Which actor, for messages, logs and dictionaries.

    Attributes:
        proc_id: its process, ``HOST/PID``.
        label: the name given to `spawn`.
        number: the same for all actors of a mesh; 0 for the program.
        rank: in the mesh that was spawned.
    """

    proc_id: str
    label: str
    number: int
    rank: int

    @property
    def actor_name(self) -> str:
        """The name given to `spawn`."""
        return self.label

    def __str__(self) -> str:
        return f"{self.proc_id}/{self.label}[{self.rank}]"


class Instance:
    """The running actor; in the program, the program itself."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"<Instance {self.actor_id}>"

    @property
    def name(self) -> str:
        """The name given to `spawn`."""
        return self._context.actor_name

    @property
    def rank(self) -> Point:
        """Where the actor stands in the mesh that was spawned, whichever slice the message was sent to."""
        return self._context.spawn_rank

    @property
    def proc_id(self) -> str:
        """Its process, ``HOST/PID``."""
        own = current_runtime().own
        return f"{own.host}/{own.pid}"

    @property
    def actor_id(self) -> ActorId:
        """Which actor it is."""
        return ActorId(self.proc_id, self.name, self._context.actor, self.rank.rank)

    @property
    def proc(self) -> ProcMesh:
        """Its process, as a mesh of one proc without dimensions: for actors beside it."""
        return proc_of(current_runtime())

    def stop(self, reason: str | None = None) -> None:
        """End this actor after what is queued for it, with its `__cleanup__`.

        Raises:
            RuntimeError: there is no actor: this is the program.
        """
        runtime = current_runtime()
        runtime.stop(runtime.own, self._number("stop"))

    def kill(self, reason: str | None = None) -> None:
        """Fail this actor once the running endpoint has returned: its owner is told, as if it had raised.

        Raises:
            RuntimeError: there is no actor: this is the program.
        """
        cell = current_runtime().cell(self._number("kill"))
        if cell is not None:
            cell.kill(reason or "no reason was given")

    def abort(self, reason: str | None = None) -> None:
        """The same as `kill`."""
        self.kill(reason)

    def set_system(self) -> None:
        """For moved programs; listings here do not tell system actors from others."""

    def _number(self, what: str) -> int:
        if not self._context.actor:
            raise RuntimeError(f"{what}() ends an actor; this is the program: return from it, or shutdown_context()")
        return self._context.actor
