"""Meshes of actors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Self, TypeVar

from monarch_hpc.actor.endpoint import Actor, check_arguments, endpoints_of
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_text, shown
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.shape import Region
from monarch_hpc.core.text.description import text_of
from monarch_hpc.mesh.calls.as_endpoint import attribute_of
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.mesh.calls.load import Load
from monarch_hpc.mesh.view import MeshView, ShownRows, hosts_of

__all__ = ["ActorMesh", "check_actor", "procs_of"]

A = TypeVar("A", bound=Actor)

_NUM_SIGNATURES = 256
"""Number of constructors whose signatures are cached: reading one takes longer than the rest of a spawn."""


def check_actor(name: object, cls: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Refuse a class or arguments that cannot be spawned, before anything is sent.

    Raises:
        TypeError: the name is not a string, *cls* is not a subclass of `Actor`, or its constructor does not take the
            arguments.
        ValueError: the name is empty, or an endpoint has the name of an attribute of actor meshes.
    """
    check_text("name, the first argument of spawn,", name, filled=True)
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise TypeError(f"spawn takes a subclass of Actor, then its constructor's arguments, not {shown(cls)}")
    _check_names(cls)
    check_arguments(f"{cls.__name__}.__init__", _signature_of(cls.__init__), args, kwargs)


@functools.lru_cache(_NUM_SIGNATURES)
def _signature_of(constructor: Callable[..., None]) -> inspect.Signature:
    return inspect.signature(constructor)


def _check_names(cls: type[Actor]) -> None:
    """Refuse endpoints that could not be called because `ActorMesh` has an attribute of the same name.

    Raises:
        ValueError: *cls* has such an endpoint; the message lists them.
    """
    hidden = sorted(name for name in endpoints_of(cls) if hasattr(ActorMesh, name))
    if hidden:
        raise ValueError(
            f"a mesh of actors has {', '.join(hidden)} itself: give these endpoints of {cls.__name__} other names"
        )


class ActorMesh(MeshView, Generic[A]):
    """An actor of the same class on every proc of a mesh; its endpoints are attributes of the mesh.

    A mesh can be passed to other actors as an argument; they then call its actors directly.
    """

    def __init__(
        self,
        name: str,
        actor: int,
        cls: type[A],
        region: Region,
        procs: Mapping[int, ProcRef],
        load: Load | None = None,
    ) -> None:
        super().__init__(region)
        # Private attributes only: a public one would hide an endpoint of the same name.
        self._callee = Callee(name, actor, region, procs, load)
        self._cls = cls
        self._endpoints = endpoints_of(cls)

    def __getattr__(self, name: str) -> Endpoint[..., Any]:
        method = self.__dict__.get("_endpoints", {}).get(name)
        if method is None and "_cls" in self.__dict__ and (other := attribute_of(self._callee, self._cls, name)):
            return other  # type: ignore[return-value]  # an attribute that is not an endpoint
        if method is None:
            known = ", ".join(sorted(self.__dict__.get("_endpoints", ()))) or "none"
            mesh = self.__dict__["_callee"].name if "_callee" in self.__dict__ else "this mesh"
            raise AttributeError(f"{mesh} has no endpoint {name!r}; it has: {known}")
        found: Endpoint[..., Any] = Endpoint(self._callee, name, method)
        self.__dict__[name] = found  # cached: the next access does not come here
        return found

    def __reduce__(self) -> tuple[object, ...]:
        callee = self._callee
        launch = callee.launch  # another thread may learn meanwhile that the procs are there
        procs = callee.procs if launch is None else launch.settle()
        kept = {rank: procs[rank] for rank in self._region.base_ranks()}
        return _receive, (callee.name, callee.actor, self._cls, self._region, kept)

    def __repr__(self) -> str:
        return f"<ActorMesh {self._callee.name} of {self._cls.__name__}, {self.extent}>"

    def _shown_rows(self) -> ShownRows:
        return hosts_of(self._callee.procs)

    def _healable(self) -> tuple[str, Mapping[int, ProcRef]]:
        return self._callee.name, self._callee.procs

    def _viewing(self, region: Region) -> Self:
        callee = self._callee
        return type(self)(callee.name, callee.actor, self._cls, region, callee.procs, callee.load)

    @property
    def name(self) -> str:
        """The name passed to `ProcMesh.spawn`."""
        return self._callee.name

    def stop(self, reason: str = "") -> Future[None]:
        """Stop these actors once they have handled the messages queued for them; their procs live on.

        What they have not handled within `procs.stop_s` (config key) fails: coroutines are cancelled, and a function
        that still runs is left to itself.

        Args:
            reason: stands in the `ActorDied` of calls that fail, and of later calls.

        Returns:
            A future that is done when every actor has run its `__cleanup__` or is gone, and everything that it has
            spawned is gone too. The actors stop whether or not it is awaited.

        Raises:
            TypeError: the reason is not a string.
        """
        reason = text_of(check_text("reason", reason))
        launch = self._callee.launch
        if launch is not None:
            return launch.after(lambda: self._stop(reason), f"the end of {self!r}")
        return self._stop(reason)

    def _stop(self, reason: str) -> Future[None]:
        runtime = current_runtime()
        future: Future[None] = Future(runtime.engine, lambda: f"the end of {self!r}")
        left = set(self._region.base_ranks())  # needs no lock: set operations are atomic, answers come on the driver

        def ended(rank: int, _answer: object = None) -> None:
            left.discard(rank)
            if not left:
                future.set_result(None)

        ranks = self._callee.ranks
        procs, actor = self._callee.procs, self._callee.actor
        if runtime.casts.stop(self._region, procs, actor, lambda place, answer: ended(ranks[place], answer), reason):
            runtime.ownership.stop_many(actor, [procs[rank] for rank in ranks])
            return future
        for rank in ranks:
            try:
                runtime.stop(procs[rank], actor, partial(ended, rank), reason)
            except TransportError:
                ended(rank)  # the proc is gone, and its actor with it
        return future


def procs_of(mesh: ActorMesh[Any]) -> list[ProcRef]:
    """The procs of the actors of *mesh*, row by row; waits for them if they start.

    Raises:
        SpawnError: they did not start.
    """
    callee = mesh._callee
    procs = callee.procs if callee.launch is None else callee.launch.settle()
    return [procs[rank] for rank in mesh._region.base_ranks()]


def _receive(name: str, actor: int, cls: type[A], region: Region, procs: Mapping[int, ProcRef]) -> ActorMesh[A]:
    """Return a mesh that came in a message; its procs are the current ones, as far as this process knows."""
    runtime = Runtime.current
    known = procs if runtime is None else runtime.incarnations.of(actor, procs)
    return ActorMesh(name, actor, cls, region, known)
