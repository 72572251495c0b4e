"""The interface of the running actor, as returned by `context().actor_instance`; `mesh.instance` implements it."""

from __future__ import annotations

from typing import Any, Protocol

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Point

__all__ = ["ActorId", "ActorInstance", "CreatorInstance"]


@dataclass(frozen=True, slots=True)
class ActorId:
    """Identity of an actor, for messages, logs and as a dictionary key.

    Attributes:
        proc_id: the actor's process, ``HOST/PID``.
        label: the name passed to `ProcMesh.spawn`.
        number: number of the actor mesh, the same for all actors in it; 0 for the program.
        rank: rank in the spawned mesh, row by row from 0.
    """

    proc_id: str
    label: str
    number: int
    rank: int

    @property
    def actor_name(self) -> str:
        """The name passed to `ProcMesh.spawn`."""
        return self.label

    def __str__(self) -> str:
        return f"{self.proc_id}/{self.label}[{self.rank}]"


class CreatorInstance(Protocol):
    """An actor, or the program, as seen by the actors that it has spawned."""

    @property
    def name(self) -> str:
        """The name passed to `ProcMesh.spawn`."""
        ...

    @property
    def class_name(self) -> str | None:
        """Module and name of the actor's class; None for the program."""
        ...

    @property
    def creator(self) -> CreatorInstance | None:
        """The actor or program that has spawned it; None for the program."""
        ...

    @property
    def rank(self) -> Point:
        """Coordinates of the actor in the spawned mesh, whichever slice the message was sent to."""
        ...

    @property
    def proc(self) -> Any:  # a `ProcMesh`, which is a name of a layer above
        """The actor's process, as a mesh of one proc without dimensions; actors spawned on it share the process."""
        ...

    @property
    def proc_mesh(self) -> Any:
        """The procs that its mesh of actors was spawned on, as a `ProcMesh`; in the program its own process.

        The program is asked for them if there are several.

        Raises:
            RuntimeError: the program has stopped them.
        """
        ...


class ActorInstance(CreatorInstance, Protocol):
    """The running actor; in the program, the program itself."""

    @property
    def proc_id(self) -> str:
        """The actor's process, ``HOST/PID``."""
        ...

    @property
    def actor_id(self) -> ActorId:
        """Identity of the actor."""
        ...

    def stop(self, reason: str | None = None) -> None:
        """Stop this actor once it has handled the messages queued for it; its `__cleanup__` runs.

        Args:
            reason: stands in the `ActorDied` of later calls.

        Raises:
            RuntimeError: called in the program, which is not an actor.
        """
        ...

    def kill(self, reason: str | None = None) -> None:
        """Fail this actor once the running endpoint has returned; the failure goes to its owner, like an exception.

        Args:
            reason: stands in the failure that the owner receives.

        Raises:
            RuntimeError: called in the program, which is not an actor.
        """
        ...

    def abort(self, reason: str | None = None) -> None:
        """The same as `kill`."""
        ...

    def set_system(self) -> None:
        """For moved programs, without effect: listings do not distinguish system actors."""
        ...
