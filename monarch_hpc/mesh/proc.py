"""Meshes of procs: where actors are spawned."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

from monarch_hpc.actor.endpoint import Actor, check_arguments
from monarch_hpc.actor.payload import view_of
from monarch_hpc.actor.runtime import ProcRef, Runtime
from monarch_hpc.core.errors import ActorDied, TransportError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.wire.serializer import dumps

__all__ = ["ProcMesh", "ProcOwner"]

A = TypeVar("A", bound=Actor)


class ProcOwner(Protocol):
    """Who started the procs and can end them."""

    def stop_procs(self, mesh: int, timeout_s: float | None) -> None:
        """End all procs of a mesh and wait until they are gone."""
        ...


class ProcMesh(MeshView):
    """Procs, their dimensions those of the hosts followed by those of `per_host`."""

    def __init__(
        self, name: str, mesh: int, region: Region, procs: Mapping[int, ProcRef], runtime: Runtime, owner: ProcOwner
    ) -> None:
        super().__init__(region)
        self._name = name
        self._mesh = mesh
        self._procs = procs
        self._runtime = runtime
        self._owner = owner

    def _viewing(self, region: Region) -> Self:
        return type(self)(self._name, self._mesh, region, self._procs, self._runtime, self._owner)

    def __repr__(self) -> str:
        return f"<ProcMesh {self._name}, {self.extent}>"

    @property
    def procs(self) -> list[ProcRef]:
        """The procs of this view, row by row."""
        return [self._procs[rank] for rank in self._region.base_ranks()]

    def spawn(self, name: str, cls: type[A], *args: object, **kwargs: object) -> ActorMesh[A]:
        """Make an actor of *cls* on every proc of this view and return their mesh.

        Does not wait for the constructors: one that raises shows as `ActorDied` at the first call.

        Args:
            name: for messages and logs.
            *args: for the constructor, the same on every proc.
            **kwargs: likewise.

        Raises:
            TypeError: *cls* is no actor class, or its constructor does not take these arguments.
            ActorDied: a proc is gone.
        """
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise TypeError(f"spawn takes a subclass of Actor, not {cls!r}")
        check_arguments(f"{cls.__name__}.__init__", inspect.signature(cls.__init__), args, kwargs)
        body, buffers = dumps((name, view_of(self._region), cls, args, kwargs))
        actor = new_incarnation()
        for proc in self.procs:
            try:
                self._runtime.spawn(proc, actor, body, buffers)
            except TransportError as error:
                raise ActorDied(f"proc {proc.rank} on {proc.host}", str(error)) from error
        return ActorMesh(name, actor, cls, self._region, self._procs)

    def stop(self, timeout: float | None = None) -> None:
        """End all procs of the mesh, also those outside this view, and wait until they are gone.

        Args:
            timeout: seconds; None takes config key `procs.stop_s` and the time to report.

        Raises:
            TimeoutError: a host did not report in time.
        """
        self._owner.stop_procs(self._mesh, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
