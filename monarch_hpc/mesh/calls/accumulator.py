"""A call to many actors whose results are combined into one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from monarch_hpc.actor.casts.reduction import Folding
from monarch_hpc.actor.future import Future
from monarch_hpc.core.arguments import check_callable, check_instance
from monarch_hpc.core.shape import Point
from monarch_hpc.mesh.calls.endpoint import Endpoint

__all__ = ["Accumulator"]

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Accumulator(Generic[P, R, A]):
    """Calls an endpoint on a whole mesh and combines the results.

    Args:
        endpoint: an endpoint of an actor mesh, with or without `options`.
        identity: the initial value. With *merge* it must be the neutral element: ``merge(identity, x)`` is ``x``.
        combine: takes the value so far and one result, and returns the new value; it must not modify its arguments.
        merge: takes the values of two adjacent ranges of ranks, the lower one first, and returns the value of both
            together. It must be associative, and agree with *combine*: ``merge(x, combine(identity, r))`` is
            ``combine(x, r)``. It need not be commutative: the order of ranks is kept. With *merge*, the results of a
            mesh that is called through the agents are combined on its hosts, by its procs, on separate threads; so the
            bytes that arrive at the caller do not grow with the mesh. If both arguments of *combine* have the same
            type, as for `operator.add`, *merge* is the same function.

    Raises:
        TypeError: *endpoint* is not an endpoint of an actor mesh, or *combine* or *merge* cannot be called.
        ValueError: the endpoint has ``on_error="collect"``: exceptions would be combined as results; call `collect`.
    """

    def __init__(
        self,
        endpoint: Endpoint[P, R],
        identity: A,
        combine: Callable[[A, R], A],
        merge: Callable[[A, A], A] | None = None,
    ) -> None:
        check_instance("endpoint", endpoint, Endpoint, "an endpoint of an actor mesh, such as workers.loss")
        check_callable("combine", combine)
        if merge is not None:
            check_callable("merge", merge)
        if endpoint.collects:
            raise ValueError("leave out on_error='collect', and call collect() of the Accumulator: it lists failures")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine
        self._folding = None if merge is None else Folding(identity, combine, merge)

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call every actor; the future gives the combined value of their results, in the order of ranks.

        The future fails as for `Endpoint.call`. `combine` runs in the thread that reads the future. With `merge`, both
        functions may also run in procs of the mesh; an exception there, or the death of such a proc, fails the call.

        Raises:
            TypeError: the endpoint does not take these arguments; or `identity`, `combine` or `merge` must be sent to
                procs, and cannot be pickled.
        """
        if self._folding is not None:
            return self._endpoint.reduce(self._folding, *args, **kwargs)
        return self._endpoint.fold(self._fold, *args, **kwargs)

    def collect(self, *args: P.args, **kwargs: P.kwargs) -> Future[tuple[A, dict[Point, BaseException]]]:
        """Call every actor; the future gives the combined value of the ranks that succeeded, and the failures.

        Waits for all ranks, like a call with ``on_error="collect"``. Ranks that failed are left out of the value, and
        listed by coordinate. All results are sent to the caller and combined there, even with `merge`: on the hosts, a
        failed rank would break a range into parts that are not adjacent.

        Raises:
            TypeError: the endpoint does not take these arguments.
        """
        return self._endpoint.fold_some(lambda results, failures: (self._fold(results), failures), *args, **kwargs)

    def _fold(self, results: list[R]) -> A:
        return functools.reduce(self._combine, results, self._identity)
