"""Actor classes and the methods of theirs that others may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

__all__ = ["Actor", "EndpointMethod", "check_arguments", "endpoint", "endpoints_of"]

P = ParamSpec("P")
R = TypeVar("R")


class Actor:
    """Base of the classes that `ProcMesh.spawn` places in procs.

    `__init__` runs in the proc before the first message; the messages of one actor are handled one
    at a time, in the order in which each sender sent them.
    """


class EndpointMethod(Generic[P, R]):
    """A method marked with `endpoint`; inside the actor it is called like any method."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self.function = function
        self.signature = inspect.signature(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._fitting: set[int] = set()  # numbers of positional arguments that fit, of those seen so far

    def check(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Refuse, here and now, arguments that the remote method could not take.

        Raises:
            TypeError: with the signature in its text.
        """
        if kwargs:
            check_arguments(self.__name__, self.signature, args, kwargs)
        elif len(args) not in self._fitting:  # binding takes 15 us, looking up 0.1
            check_arguments(self.__name__, self.signature, args, kwargs)
            self._fitting.add(len(args))

    @overload
    def __get__(self, instance: None, owner: type) -> EndpointMethod[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: object | None, owner: type) -> EndpointMethod[P, R] | Callable[P, R]:
        if instance is None:
            return self
        bound: Callable[P, R] = self.function.__get__(instance, owner)
        return bound


def endpoint(function: Callable[Concatenate[Any, P], R]) -> EndpointMethod[P, R]:
    """Let other actors and the controller call this method; `def` and `async def` both work."""
    if not callable(function):
        raise TypeError(f"@endpoint marks methods; got {function!r}")
    return EndpointMethod(function)


def endpoints_of(cls: type) -> dict[str, EndpointMethod[..., object]]:
    """The endpoints of *cls* by name, inherited ones included."""
    found: dict[str, EndpointMethod[..., object]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, EndpointMethod):
                found[name] = member
            else:
                found.pop(name, None)
    return found


def check_arguments(
    name: str, signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Refuse, here and now, arguments that the remote method could not take.

    Raises:
        TypeError: with the signature in its text.
    """
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}") from None
