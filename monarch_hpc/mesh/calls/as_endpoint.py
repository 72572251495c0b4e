"""Calls to methods of actors that are not marked as endpoints."""

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
        return (
            f"{name} of {mesh} is not an endpoint: mark it with @endpoint, or write as_endpoint({mesh}.{name}).call()"
        )

    def marked(self, *, explicit: bool, propagate: object = None) -> Endpoint[..., Any]:
        """This method as an endpoint.

        Args:
            explicit: whether the method takes a response port first.
            propagate: see `endpoint`.
        """
        wire_name = f"{self._name}({'port' if explicit else ''})"
        return Endpoint(self._callee, wire_name, EndpointMethod(self._function, explicit=explicit, propagate=propagate))


def as_endpoint(
    method: Any, /, *, propagate: object = None, explicit_response_port: bool = False
) -> Endpoint[..., Any]:
    """Make an endpoint of a method that is not marked with `endpoint`: ``as_endpoint(workers.helper).call(1)``.

    Args:
        method: attribute of an actor mesh; the method may be ``def`` or ``async def``.
        propagate: see `endpoint`.
        explicit_response_port: see `endpoint`.

    Raises:
        ValueError: *method* is not a method of an actor mesh, or is an endpoint already.
    """
    if isinstance(method, Endpoint):
        raise ValueError(f"{method!r} is an endpoint already: call it")
    if not isinstance(method, PlainMethod):
        raise ValueError(
            f"as_endpoint takes a method of an actor mesh, as in as_endpoint(workers.helper), not {method!r}"
        )
    return method.marked(explicit=explicit_response_port, propagate=propagate)


def attribute_of(callee: Callee, cls: type[Actor], name: str) -> PlainMethod | Future[Literal[True]] | None:
    """The attribute of an actor mesh with a name that is not an endpoint's; None if there is no such attribute.

    ``initialized`` is a future that is done when all constructors have run; any other method of the class is a
    `PlainMethod`, to be passed to `as_endpoint`.
    """
    if name == "initialized":
        method = EndpointMethod(Actor._monarch_initialized)
        return Endpoint(callee, "_monarch_initialized()", method).fold(lambda _answers: True)
    found = None if name.startswith("__") else inspect.getattr_static(cls, name, None)
    return PlainMethod(callee, name, found) if inspect.isfunction(found) and not hasattr(Actor, name) else None
