"""Meshes of actors, and the ways to call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, Self, TypeVar

from monarch_hpc.actor.endpoint import Actor, EndpointMethod, endpoints_of
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.payload import pack_call, unpack_failure
from monarch_hpc.actor.runtime import Answer, ProcRef, Runtime
from monarch_hpc.core.errors import MeshError, MonarchError, TransportError
from monarch_hpc.core.shape import Region
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.mesh.view import MeshView
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["ActorMesh", "Endpoint"]

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")
R = TypeVar("R")

_SETTLE_S = 0.25
"""After the first failure of a call, how long to wait for those of other ranks.

Long enough that a bug which strikes every rank is reported as one `MeshError`; short, because ranks
that now wait for the failed one would never answer.
"""


class ActorMesh(MeshView, Generic[A]):
    """The same actor on every proc of a mesh; its endpoints are its attributes.

    It may be sent to other actors, which then call it directly.
    """

    def __init__(self, name: str, actor: int, cls: type[A], region: Region, procs: Mapping[int, ProcRef]) -> None:
        super().__init__(region)
        self._name = name
        self._actor = actor
        self._cls = cls
        self._procs = procs
        self._endpoints = endpoints_of(cls)

    def __getattr__(self, name: str) -> Endpoint[..., Any]:
        method = self.__dict__.get("_endpoints", {}).get(name)
        if method is None:
            known = ", ".join(sorted(self.__dict__.get("_endpoints", ()))) or "none"
            raise AttributeError(f"{self.__dict__.get('_name', 'this mesh')} has no endpoint {name!r}; it has: {known}")
        return Endpoint(self, name, method)

    def __reduce__(self) -> tuple[object, ...]:
        kept = {rank: self._procs[rank] for rank in self._region.base_ranks()}
        return ActorMesh, (self._name, self._actor, self._cls, self._region, kept)

    def __repr__(self) -> str:
        return f"<ActorMesh {self._name} of {self._cls.__name__}, {self.extent}>"

    def _viewing(self, region: Region) -> Self:
        return type(self)(self._name, self._actor, self._cls, region, self._procs)

    @property
    def name(self) -> str:
        """The name given to `spawn`."""
        return self._name

    def stop(self) -> None:
        """End these actors after what is queued for them; their procs live on."""
        runtime = _runtime()
        for rank in self._region.base_ranks():
            try:
                runtime.stop(self._procs[rank], self._actor)
            except TransportError:
                continue  # a proc that is gone has no actor left to stop

    # ---- for endpoints ----

    def send(self, method: str, args: tuple[object, ...], kwargs: dict[str, object], gather: _Gather | None) -> None:
        """Send one call to every actor of this view; the arguments are serialized once."""
        runtime = _runtime()
        body, buffers = pack_call(method, self._region, args, kwargs)
        for index, rank in enumerate(self._region.base_ranks()):
            proc = self._procs[rank]
            where = f"actor {self._name}[{rank}] on {proc.host}, endpoint {method}"
            runtime.call(proc, self._actor, where, body, buffers, None if gather is None else gather.slot(index))


class Endpoint(Generic[P, R]):
    """One endpoint of an actor mesh, ready to be called."""

    def __init__(self, mesh: ActorMesh[Any], name: str, method: EndpointMethod[P, R]) -> None:
        self._mesh = mesh
        self._name = name
        self._method = method

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor; the future gives their results by coordinate.

        It fails as soon as one rank fails: with that rank's exception, or with `MeshError` where
        several ranks fail together.

        Raises:
            TypeError: the endpoint does not take these arguments.
        """
        gather = self._send(args, kwargs)
        future: Future[ValueMesh[R]] = Future(gather.runtime.engine)
        gather.finish(lambda: future.set_resolver(lambda: ValueMesh(Region.whole(self._mesh.extent), gather.values())))
        return future

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the only actor of the mesh; the future gives its result.

        Raises:
            ValueError: the mesh does not hold exactly one actor; nothing was sent.
            TypeError: the endpoint does not take these arguments.
        """
        if len(self._mesh) != 1:
            raise ValueError(
                f"call_one needs a mesh of one actor, {self._mesh!r} has {len(self._mesh)}: slice it, or use call"
            )
        gather = self._send(args, kwargs)
        future: Future[R] = Future(gather.runtime.engine)
        gather.finish(lambda: future.set_resolver(lambda: gather.values()[0]))
        return future

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to every actor and wait for nothing; what goes wrong there is printed there."""
        self._method.check(args, kwargs)
        self._mesh.send(self._name, args, kwargs, None)

    def _send(self, args: tuple[object, ...], kwargs: dict[str, object]) -> _Gather:
        self._method.check(args, kwargs)
        gather = _Gather(_runtime(), f"{self._mesh.name}.{self._name}", len(self._mesh))
        self._mesh.send(self._name, args, kwargs, gather)
        return gather


class _Gather:
    """Collects the answers of one call, rank by rank; values are rebuilt by whoever reads them."""

    def __init__(self, runtime: Runtime, where: str, num_ranks: int) -> None:
        self.runtime = runtime
        self._where = where
        self._answers: list[Frame | MonarchError | None] = [None] * num_ranks
        self._num_missing = num_ranks
        self._settling = False
        self._over = False
        self._completed: Callable[[], None] | None = None

    def slot(self, index: int) -> Answer:
        """The callback for the answer of rank *index*."""

        def answer(given: Frame | MonarchError) -> None:
            self._answers[index] = given
            self._num_missing -= 1
            if not self._num_missing:
                self._complete()
            elif not self._settling and not (isinstance(given, Frame) and given.kind is Kind.RESULT):
                self._settling = True
                self.runtime.engine.call_later(_SETTLE_S, self._complete)

        return answer

    def finish(self, completed: Callable[[], None]) -> None:
        """Call *completed* once when the call is over; it may be over already."""
        self._completed = completed
        if self._over:
            completed()

    def _complete(self) -> None:
        if not self._over:
            self._over = True
            if self._completed is not None:
                self._completed()

    def values(self) -> list[Any]:
        """The values by rank.

        Raises:
            Exception: what the ranks raised.
        """
        failures: dict[int, BaseException] = {}
        values: list[object] = []
        for rank, answer in enumerate(self._answers):
            if isinstance(answer, Frame):
                if answer.kind is Kind.RESULT:
                    values.append(loads(answer.body, answer.buffers))
                else:
                    failures[rank] = unpack_failure(answer)
            elif answer is not None:
                failures[rank] = answer
        if len(failures) == 1:
            raise next(iter(failures.values()))
        if failures:
            raise MeshError(self._where, failures)
        return values


def _runtime() -> Runtime:
    runtime = Runtime.current
    if runtime is None:
        raise RuntimeError("this process is not part of an allocation: call monarch_hpc.hosts() first")
    return runtime
