"""Meshes of procs: where actors are spawned."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, check_arguments
from monarch_hpc.actor.payload import pack_spawn
from monarch_hpc.actor.reference import ProcRef
from monarch_hpc.actor.runtime import Runtime, current_runtime
from monarch_hpc.core.errors import ActorDied, TransportError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.view import MeshView

__all__ = ["ProcMesh", "ProcOwner"]

A = TypeVar("A", bound=Actor)


class ProcOwner(Protocol):
    """Who started the procs and can end them."""

    def stop_procs(self, mesh: int, timeout_s: float | None) -> None:
        """End all procs of a mesh and wait until they are gone."""
        ...


class ProcMesh(MeshView):
    """Procs, their dimensions those of the hosts followed by those of `per_host`.

    It may be sent to actors, which then spawn on these procs; only who started them can stop them.
    """

    def __init__(
        self,
        name: str,
        mesh: int,
        region: Region,
        procs: Mapping[int, ProcRef],
        runtime: Runtime | None = None,
        owner: ProcOwner | None = None,
    ) -> None:
        super().__init__(region)
        self._name = name
        self._mesh = mesh
        self._procs = procs
        self._runtime = runtime or current_runtime()
        self._owner = owner

    def _viewing(self, region: Region) -> Self:
        return type(self)(self._name, self._mesh, region, self._procs, self._runtime, self._owner)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._procs[rank] for rank in self._region.base_ranks()}
        return ProcMesh, (self._name, self._mesh, self._region, kept)

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name}, {self.extent}>"

    @property
    def procs(self) -> list[ProcRef]:
        """The procs of this view, row by row."""
        return [self._procs[rank] for rank in self._region.base_ranks()]

    def spawn(self, name: str, cls: type[A], *args: object, **kwargs: object) -> ActorMesh[A]:
        """Make an actor of *cls* on every proc of this view and return their mesh.

        Does not wait for the constructors: one that raises shows as `ActorDied` at the first call, and
        to the owner, which is the actor that spawns, or the program: see `monarch_hpc.actor`.

        Args:
            name: for messages and logs.
            *args: for the constructor, the same on every proc.
            **kwargs: likewise.

        Raises:
            TypeError: *cls* is no actor class, its constructor does not take these arguments, or one of
                them cannot be pickled; nothing was sent.
            ActorDied: a proc is gone.
        """
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise TypeError(f"spawn takes a subclass of Actor, not {cls!r}")
        check_arguments(f"{cls.__name__}.__init__", inspect.signature(cls.__init__), args, kwargs)
        body, buffers = pack_spawn(name, self._region, cls, args, kwargs)
        actor = new_incarnation()
        try:
            self._runtime.spawn(name, actor, context().actor, dict(enumerate(self.procs)), body, buffers)
        except TransportError as error:
            raise ActorDied(f"a proc of {self!r}", str(error)) from error
        return ActorMesh(name, actor, cls, self._region, self._procs)

    def stop(self, timeout: float | None = None) -> None:
        """End all procs of the mesh, also those outside this view, and wait until they are gone.

        Args:
            timeout: seconds; None takes config key `procs.stop_s` and the time to report.

        Raises:
            TimeoutError: a host did not report in time.
            RuntimeError: this process did not start them.
        """
        if self._owner is None:
            raise RuntimeError(f"{self!r} was not started here: only who called spawn_procs can stop it")
        self._owner.stop_procs(self._mesh, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
