"""Methods of actors that are no endpoints, called all the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from monarch_hpc.actor.endpoint import Actor, EndpointMethod
from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.endpoint import Endpoint

__all__ = ["PlainMethod", "as_endpoint", "attribute_of"]


class PlainMethod:
    """A method of an actor mesh that is not marked with `endpoint`; see `as_endpoint`."""

    def __init__(self, callee: Callee, name: str, function: Callable[..., Any]) -> None:
        self._callee = callee
        self._name = name
        self._function = function

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._advice())

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(self._advice())

    def _advice(self) -> str:
        name, mesh = self._name, self._callee.name
        return f"{name} of {mesh} is no endpoint: mark it with @endpoint, or write as_endpoint({mesh}.{name}).call()"

    def marked(self, *, explicit: bool) -> Endpoint[..., Any]:
        """It as an endpoint."""
        wire_name = f"{self._name}({'port' if explicit else ''})"
        return Endpoint(self._callee, wire_name, EndpointMethod(self._function, explicit=explicit))


def as_endpoint(
    method: Any, /, *, propagate: object = None, explicit_response_port: bool = False
) -> Endpoint[..., Any]:
    """Call a method of an actor mesh that is not marked with `endpoint`: ``as_endpoint(workers.helper).call(1)``.

    Args:
        method: of a mesh, ``def`` or ``async def``.
        propagate: of the tensor engine; not used.
        explicit_response_port: as of `endpoint`.

    Raises:
        ValueError: it is none, or is an endpoint already.
    """
    if isinstance(method, Endpoint):
        raise ValueError(f"{method!r} is an endpoint already: call it")
    if not isinstance(method, PlainMethod):
        raise ValueError(
            f"as_endpoint takes a method of an actor mesh, as in as_endpoint(workers.helper), not {method!r}"
        )
    return method.marked(explicit=explicit_response_port)


def attribute_of(callee: Callee, cls: type[Actor], name: str) -> PlainMethod | Future[Literal[True]] | None:
    """What an actor mesh has by a name that no endpoint has; None where it has nothing.

    ``initialized`` is a future that is done when all constructors have run; the names of other methods are for
    `as_endpoint`.
    """
    if name == "initialized":
        method = EndpointMethod(Actor._monarch_initialized)
        return Endpoint(callee, "_monarch_initialized()", method).fold(lambda _answers: True)
    found = None if name.startswith("__") else inspect.getattr_static(cls, name, None)
    return PlainMethod(callee, name, found) if inspect.isfunction(found) and not hasattr(Actor, name) else None
