"""A call of many actors whose results become one value."""

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
        endpoint: of an actor mesh, with or without `options`.
        identity: what to begin with. With *merge*: what changes nothing, ``merge(identity, x)`` is ``x``.
        combine: takes what there is and one result, and returns both in one; it must not change what it is given.
        merge: takes what came of two ranges of ranks, the second right behind the first, and returns both in one. It
            must be associative, and agree with *combine*: ``merge(x, combine(identity, r))`` is ``combine(x, r)``.
            It need not be commutative: the order of ranks is kept. With it, the results of a mesh that is called
            through the agents are combined on its hosts, by its procs, on threads of their own; so the bytes that
            come to the caller do not grow with the mesh. Where *combine* takes two of a kind, such as
            `operator.add`, it is the same function.

    Raises:
        TypeError: *endpoint* is not an endpoint of a mesh, or one of the functions not a function.
        ValueError: the endpoint collects failures, which `collect` does: as results they would be combined.
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
        """Call every actor; the future gives their results combined, in the order of their ranks.

        It fails as `Endpoint.call` does. `combine` runs in the thread that reads the future; with `merge` both may
        run in procs of the mesh as well, and what they raise there fails the call, as does the death of such a proc.

        Raises:
            TypeError: the endpoint does not take these arguments; or `identity`, `combine` or `merge` has to travel,
                and cannot be pickled.
        """
        if self._folding is not None:
            return self._endpoint.reduce(self._folding, *args, **kwargs)
        return self._endpoint.fold(self._fold, *args, **kwargs)

    def collect(self, *args: P.args, **kwargs: P.kwargs) -> Future[tuple[A, dict[Point, BaseException]]]:
        """Call every actor; the future gives the results of those that did not fail combined, and the failures.

        It waits for all ranks, as a call with ``on_error="collect"``. Those that failed are left out of the value, and
        listed by their coordinates. All results come to the caller and are combined there, also with `merge`: on the
        hosts one that failed would cut the ranges that follow each other.

        Raises:
            TypeError: the endpoint does not take these arguments.
        """
        return self._endpoint.fold_some(lambda results, failures: (self._fold(results), failures), *args, **kwargs)

    def _fold(self, results: list[R]) -> A:
        return functools.reduce(self._combine, results, self._identity)
