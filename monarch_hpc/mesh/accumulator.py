"""A call of many actors whose results become one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.endpoint import Endpoint

__all__ = ["Accumulator"]

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


class Accumulator(Generic[P, R, A]):
    """Calls an endpoint on a whole mesh and combines the results.

    Args:
        endpoint: of an actor mesh, with or without `options`.
        identity: what to begin with.
        combine: takes what there is and one result, and returns both in one; it must not change what it is given.

    Raises:
        ValueError: the endpoint collects failures: they would be combined like results.
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        if endpoint.collects:
            raise ValueError("an Accumulator needs every result: leave out on_error='collect', or reduce a call's own")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Call every actor; the future gives their results combined, in the order of their ranks.

        It fails as `Endpoint.call` does. `combine` runs in the thread that reads the future.
        """
        return self._endpoint.fold(self._fold, *args, **kwargs)

    def _fold(self, results: list[R]) -> A:
        return functools.reduce(self._combine, results, self._identity)
