"""An endpoint of an actor mesh, and the ways to call it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

from monarch_hpc.actor.casts.reduction import Folding
from monarch_hpc.actor.cell.response_port import AnswerTo
from monarch_hpc.actor.endpoint import EndpointMethod
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import call_head
from monarch_hpc.actor.ports.port import Port
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_seconds
from monarch_hpc.core.errors import CallTimeout
from monarch_hpc.core.shape import Point, Region
from monarch_hpc.mesh.calls.answer import CallOptions
from monarch_hpc.mesh.calls.call_one import FoldedCall, SingleCall
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.gather import Gather
from monarch_hpc.mesh.calls.landing import Landing
from monarch_hpc.mesh.calls.reduce import ReducedCall
from monarch_hpc.mesh.calls.stream import Queue, Stream
from monarch_hpc.mesh.value import ValueMesh

__all__ = ["Endpoint"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
G = TypeVar("G", bound=Gather)

_DEFAULTS, _COLLECTING = CallOptions(), CallOptions(collects=True)
_TENSORS = "monarch_hpc.tensor.actor_calls"
"""Calls with mesh tensors, by name: this layer does not depend on them."""


class Endpoint(Generic[P, R]):
    """One endpoint of an actor mesh, ready to be called.

    All ways to call it send the arguments to the actors without waiting for an answer, though a full mailbox blocks the
    sender. `call` returns one future of all results, `call_one` and `choose` the future of one result, `stream` one
    future for each answer, and `broadcast` nothing.
    """

    def __init__(
        self, callee: Callee, name: str, method: EndpointMethod[P, R], options: CallOptions = _DEFAULTS
    ) -> None:
        self._callee = callee
        self._name = name
        self._method = method
        self._options = options
        self._head = call_head(name, callee.region)

    def __repr__(self) -> str:
        return f"<Endpoint {self._name} of {self._callee.name}>"

    if not TYPE_CHECKING:  # type checkers must report the call as an error

        def __call__(self, *args: object, **kwargs: object) -> NoReturn:
            """Raise an error that lists the ways to call an endpoint.

            Raises:
                TypeError: always.
            """
            name = f"{self._callee.name}.{self._name}"
            raise TypeError(
                f"{name} is an endpoint: write {name}.call(...) for all actors of the mesh, .call_one(...) for its "
                "only one, .choose(...) for any of them, .stream(...) for one answer after the other, or "
                ".broadcast(...) to wait for nothing"
            )

    @overload
    def options(
        self, *, timeout: float | None = ..., on_error: Literal["raise"] = ..., out: object = ...
    ) -> Endpoint[P, R]: ...
    @overload
    def options(
        self, *, timeout: float | None = ..., on_error: Literal["collect"], out: object = ...
    ) -> Endpoint[P, R | BaseException]: ...
    def options(
        self, *, timeout: float | None = None, on_error: Literal["raise", "collect"] = "raise", out: object = None
    ) -> Endpoint[P, Any]:
        """The same endpoint, to be called with a time limit, for partial results, or into memory of the caller.

        Args:
            timeout: seconds after the call at which it ends: a rank that has not answered by then fails with
                `CallTimeout`, which is a `TimeoutError`, and its call is cancelled as by `Future.cancel`. Time spent
                waiting for a full mailbox counts: a call held back until the end is not sent. None sets no limit.
            on_error: ``raise`` fails a call with its first failures. ``collect`` waits for all ranks, and the
                exception of a rank that failed takes the place of its result.
            out: an array or a tensor, or dicts, lists and tuples of them, that results are written to, for `call_one`,
                `choose` and `call`. For `call`, each begins with the dimensions of the mesh. It is written when the
                future is read, and is its value, or the values are its parts. Results of another structure, shape or
                type fail that read with `ValueError`, and nothing is written.

        Raises:
            TypeError: the timeout is not a number, or *out* has other parts.
            ValueError: the timeout is not above 0, *on_error* is neither ``raise`` nor ``collect``, or *out* is
                read-only.
        """
        if timeout is not None:
            timeout = check_seconds("timeout", timeout)
        if on_error not in ("raise", "collect"):
            raise ValueError(f"on_error is {on_error!r}; it is 'raise' or 'collect'")
        landing = None if out is None else Landing(out)
        if landing is not None:
            landing.check()
        options = CallOptions(timeout, on_error == "collect", landing=landing)
        return Endpoint(self._callee, self._name, self._method, options)

    def answering_to(self, port: Port[Any]) -> Endpoint[P, R]:
        """The same endpoint, whose response ports send their answers to *port*, for `choose` and `stream`."""
        return Endpoint(self._callee, self._name, self._method, replace(self._options, answer_to=AnswerTo(port)))

    @property
    def takes_port(self) -> bool:
        """Whether the method answers through a response port."""
        return self._method.explicit

    @property
    def collects(self) -> bool:
        """Whether the exceptions of failed ranks are results: ``on_error="collect"``."""
        return self._options.collects

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every actor; the future gives their results by coordinate.

        The future fails soon after the first rank has failed: with `MeshDied` if a rank is gone, else with `MeshError`;
        both are of the class that all failed ranks raised, too.

        Raises:
            TypeError: the endpoint does not take these arguments.
            ValueError: the mesh does not fit `options(out=)`.
        """
        region = Region.whole(self._callee.region.extent)
        landing = self._options.landing
        if landing is not None:
            landing.check_mesh(region.extent)

        def finish(gather: Gather) -> ValueMesh[R]:
            values, failures = gather.collect()
            if landing is not None:
                values = landing.take_all(values, region.extent, set(failures))
            return ValueMesh(region, values, failures)

        return self._start(args, kwargs, finish)

    def fold(self, finish: Callable[[list[R]], T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call every actor; the future gives what *finish* returns for the list of results, in the order of ranks."""
        self._check_new("fold")
        return self._start(args, kwargs, lambda gather: finish(gather.collect()[0]))

    def fold_some(
        self, finish: Callable[[list[R], dict[Point, BaseException]], T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Call every actor; when all ranks have answered, the future gives what *finish* returns.

        *finish* gets the results of the ranks that succeeded, in the order of ranks, and the exceptions of the others
        by coordinate.
        """
        self._check_new("fold")
        options = _COLLECTING if self._options is _DEFAULTS else replace(self._options, collects=True)
        if len(self._callee.ranks) == 1:
            return self._fold_one(finish, options, args, kwargs)
        gather = Gather(current_runtime(), self._callee, self._name, options)

        def read(gather: Gather) -> T:
            values, failures = gather.collect()
            results = [value for place, value in enumerate(values) if place not in failures]
            return finish(results, {self._callee.region.extent.point(place): one for place, one in failures.items()})

        return self._begin(gather, args, kwargs, read)

    def _fold_one(
        self,
        finish: Callable[[list[R], dict[Point, BaseException]], T],
        options: CallOptions,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Future[T]:
        """`fold_some` of the only actor, at the cost of `call_one`."""
        extent = self._callee.region.extent

        def read(value: Any, failure: BaseException | None) -> T:
            return finish([value], {}) if failure is None else finish([], {extent.point(0): failure})

        self._method.check(args, kwargs)
        single: FoldedCall[T] = FoldedCall(current_runtime(), self._callee, self._name, options, read)
        single.send(self._head, args, kwargs)
        return single

    def reduce(self, folding: Folding[T, R], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call every actor; the future gives the value that *folding* makes of the results.

        The results of a cast are combined on the hosts.

        Raises:
            TypeError: a part of *folding* must be sent to procs, and cannot be pickled; or the endpoint does not take
                these arguments.
        """
        self._check_new("reduce")
        gather = ReducedCall(current_runtime(), self._callee, self._name, self._options, folding)
        return self._begin(gather, args, kwargs, lambda gather: gather.reduced())

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the only actor of the mesh; the future gives its result.

        Raises:
            ValueError: the mesh does not have exactly one actor; nothing was sent.
            TypeError: the endpoint does not take these arguments.
        """
        if len(self._callee.ranks) != 1:
            raise ValueError(
                f"call_one needs a mesh of one actor, {self._callee} has {len(self._callee.region)}: "
                "slice it, or use call or choose"
            )
        return self._ask(args, kwargs, 0)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call one actor of the mesh; the future gives its result.

        Chooses the actor with the fewest calls of this process in flight, round-robin among equals. An actor that is
        known to be dead is not chosen while others live.

        Raises:
            TypeError: the endpoint does not take these arguments.
        """
        return self._ask(args, kwargs, self._callee.choose())

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        """Call every actor; the stream gives their answers in the order of arrival.

        Raises:
            TypeError: the endpoint does not take these arguments.
        """
        self._check_new("stream")
        self._method.check(args, kwargs)
        queue = Queue(current_runtime(), self._callee, self._name, self._options)
        queue.send(self._head, self._options.arguments(args), kwargs)
        return Stream(queue, self._callee.region.extent)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send to every actor without waiting for answers; an exception in the endpoint fails its actor.

        Raises:
            CallTimeout: with `options(timeout=)`, if mailboxes stayed full; nothing was sent to the actors named.
            TypeError: the endpoint does not take these arguments.
        """
        self._check_new("broadcast")
        self._method.check(args, kwargs)
        timeout_s = self._options.timeout_s
        if timeout_s is None:
            self._callee.send(self._name, self._head, args, kwargs, None)
            return
        end_s = current_runtime().engine.clock() + timeout_s
        held = self._callee.send_by(self._name, self._head, args, kwargs, None, end_s)
        if held:
            raise CallTimeout(self._callee.where(self._name, held[0]), held[1:], timeout_s)

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call every actor in its turn among the operations on mesh tensors; needs torch.

        The actors get their ranks' own tensors for mesh tensors among the arguments, and tensors in the result become
        mesh tensors. The first call with arguments of certain shapes waits for the shapes of the result.

        Raises:
            TypeError: the endpoint does not take these arguments.
            ValueError: the actors are not on the ranks of the tensors, or of the active mesh.
        """
        self._check_new("rref")
        self._method.check(args, kwargs)
        return importlib.import_module(_TENSORS).rref(self._callee, self._name, self._method.propagate, args, kwargs)

    def _check_new(self, name: str) -> None:
        if self._options.landing is not None:
            raise ValueError(f"{name} has no results that options(out=) could take: use call, call_one or choose")

    def _start(self, args: tuple[object, ...], kwargs: dict[str, object], finish: Callable[[Gather], T]) -> Future[T]:
        gather = Gather(current_runtime(), self._callee, self._name, self._options)
        return self._begin(gather, args, kwargs, finish)

    def _begin(
        self, gather: G, args: tuple[object, ...], kwargs: dict[str, object], finish: Callable[[G], T]
    ) -> Future[T]:
        self._method.check(args, kwargs)
        runtime = gather.runtime
        future: Future[T] = Future(runtime.engine, gather.missing, gather.give_up)
        future.watch(runtime.recorder, gather.calls)
        gather.completed = lambda: future.set_resolver(lambda: finish(gather), fails=gather.fails)
        gather.send(self._head, args, kwargs)
        return future

    def _ask(self, args: tuple[object, ...], kwargs: dict[str, object], place: int) -> Future[R]:
        self._method.check(args, kwargs)
        single: SingleCall[R] = SingleCall(current_runtime(), self._callee, self._name, place, self._options)
        single.send(self._head, self._options.arguments(args), kwargs)
        return single
