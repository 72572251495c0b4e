"""Calls of actors that take their turn among the operations on mesh tensors: ``actors.method.rref(t)``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import EndpointMethod
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.messages.remote_error import as_raised
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ActorError
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.tensor.remote_functions import Remote, view_for

__all__ = ["rref"]

_MAX_FUNCTIONS = 256
"""Number of functions whose shapes are remembered; more are made at run time, and never called again."""


@dataclass(frozen=True, slots=True)
class _Target:
    """An endpoint of actors, one on each rank.

    Attributes:
        procs: the procs by rank, in order.
    """

    name: str
    actor: int
    method: str
    procs: tuple[ProcRef, ...]


def _call_here(target: _Target, args: Any, kwargs: Any) -> Any:
    """Call the actor of this proc; on each rank."""
    rank = context().proc.rank
    proc = next(proc for proc in target.procs if proc.rank == rank)
    callee = Callee(target.name, target.actor, proc.region, {rank: proc})
    endpoint: Endpoint[..., Any] = Endpoint(callee, target.method, EndpointMethod(_any))
    try:
        return endpoint.call_one(*args, **kwargs).get()
    except ActorError as error:
        raise as_raised(error)  # noqa: B904 it is the same one


def _any(_self: object, *_args: object, **_kwargs: object) -> None:
    """Stands for a method whose arguments are checked where it was called."""


@lru_cache(_MAX_FUNCTIONS)
def _remote_of(name: str, propagate: Any) -> Remote[..., Any]:
    """The call of the endpoint *name* with a certain `propagate`."""
    with_target: Any = propagate if propagate == "inspect" else None
    if callable(propagate):

        def with_target(_target: _Target, args: Any, kwargs: Any) -> Any:
            return propagate(*args, **kwargs)

    made: Remote[..., Any] = Remote(_call_here, with_target)
    made.__name__ = name
    return made


def rref(callee: Callee, method: str, propagate: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """See `Endpoint.rref`.

    Raises:
        ValueError: the actors are not on the ranks of the tensors, or of the active mesh.
    """
    view = view_for((args, kwargs), {}, f"{callee.name}.{method}")
    if callee.ranks != view.ranks:
        raise ValueError(f"{callee} is not on the ranks of {view.name} {view.region.extent}: slice one like the other")
    target = _Target(callee.name, callee.actor, method, tuple(callee.procs[rank] for rank in callee.ranks))
    return _remote_of(f"{callee.name}.{method}", propagate).rref(target, args, kwargs)
