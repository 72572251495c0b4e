"""Actor classes and the methods of theirs that others may call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from monarch_hpc.core.arguments import check_flag, check_seconds

__all__ = [
    "Actor",
    "EndpointMethod",
    "check_arguments",
    "concurrent_endpoint",
    "endpoint",
    "endpoints_of",
    "unmarked_method",
]

P = ParamSpec("P")
R = TypeVar("R")


class Actor:
    """Base of the classes that `ProcMesh.spawn` places in procs.

    `__init__` runs in the proc before the first message; the messages of one actor are handled one
    at a time, in the order in which each sender sent them.

    Two more methods are called where a class has them, `def` or `async def`:

    - ``__supervise__(self, failure: MeshFailure) -> bool`` when something that this actor spawned has
      failed; True says that it is dealt with. Else this actor fails too, and its owner is asked.
    - ``__cleanup__(self, error: BaseException | None)`` when the actor ends, *error* being what it dies
      of. Running coroutines were cancelled before, and what the actor spawned is stopped after.
    """

    @property
    def logger(self) -> logging.Logger:
        """The logger of the module that defines the class."""
        return logging.getLogger(type(self).__module__)

    def _monarch_initialized(self) -> bool:
        """Answered once the constructor has run: see `ActorMesh.initialized`."""
        return True


class EndpointMethod(Generic[P, R]):
    """A method marked with `endpoint`; inside the actor it is called like any method.

    Attributes:
        concurrent: other messages are handled while it runs.
        timeout_s: how long it may run; None for any time.
        explicit: it takes a port first, and answers there.
        plain: it is a function that runs to its end, and needs nothing but to be called.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], R],
        *,
        concurrent: bool = False,
        timeout_s: float | None = None,
        explicit: bool = False,
    ) -> None:
        if not callable(function):
            raise TypeError(f"@endpoint marks methods; got {function!r}")
        self.function = function
        self.signature = inspect.signature(function)
        if explicit:
            first, *others = self.signature.parameters.values()
            if not others:
                raise TypeError(
                    f"endpoint {function.__name__} has an explicit response port: it must take a port first"
                )
            self.signature = self.signature.replace(parameters=[first, *others[1:]])
        self.is_async = inspect.iscoroutinefunction(function)
        self.concurrent = concurrent
        self.timeout_s = timeout_s
        self.explicit = explicit
        self.plain = not self.is_async and timeout_s is None and not explicit
        if concurrent and not self.is_async:
            raise TypeError(f"endpoint {function.__name__} is concurrent: write it as 'async def'")
        if timeout_s is not None:
            self.timeout_s = check_seconds(f"the timeout of endpoint {function.__name__}", timeout_s)
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


class _Mark(Protocol):
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...


@overload
def endpoint(function: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...
@overload
def endpoint(
    *, concurrent: bool = False, timeout: float | None = None, explicit_response_port: bool = False
) -> _Mark: ...
def endpoint(
    function: Callable[..., Any] | None = None,
    /,
    *,
    concurrent: bool = False,
    timeout: float | None = None,
    explicit_response_port: bool = False,
) -> Any:  # the overloads say it exactly
    """Let other actors and the controller call this method; `def` and `async def` both work, in one class too.

    Functions run on the actor's own thread, where no event loop runs; coroutines on the proc's one loop.

    Args:
        concurrent: take other messages while a coroutine runs; they may overtake each other.
        timeout: seconds that the endpoint may run; then the caller gets `TimeoutError`. A coroutine is
            cancelled; a function cannot be, and keeps its actor busy until it returns.
        explicit_response_port: the method gets a port before the caller's arguments. What it sends there is
            the answer, at any time and from any thread; what it returns is not.

    Raises:
        TypeError: an argument of another type; *concurrent* of what is no coroutine function; no parameter for a port.
        ValueError: a *timeout* that is not above 0.
    """
    check_flag("concurrent", concurrent)
    check_flag("explicit_response_port", explicit_response_port)

    def mark(function: Callable[..., Any], /) -> EndpointMethod[..., Any]:
        return EndpointMethod(function, concurrent=concurrent, timeout_s=timeout, explicit=explicit_response_port)

    return mark if function is None else mark(function)


@overload
def concurrent_endpoint(function: Callable[Concatenate[Any, P], R], /) -> EndpointMethod[P, R]: ...
@overload
def concurrent_endpoint(*, timeout: float | None = None, explicit_response_port: bool = False) -> _Mark: ...
def concurrent_endpoint(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout: float | None = None,
    explicit_response_port: bool = False,
) -> Any:  # the overloads say it exactly
    """``endpoint(concurrent=True)``."""
    mark = endpoint(concurrent=True, timeout=timeout, explicit_response_port=explicit_response_port)
    return mark if function is None else mark(function)


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


def unmarked_method(cls: type, wire_name: str) -> EndpointMethod[..., object] | None:
    """A method without `endpoint` as one, for callers who ask for that; None if there is none.

    Args:
        wire_name: ``name()``, or ``name(port)`` for one that takes a port first. No endpoint is called so.
    """
    name, bracket, port = wire_name.partition("(")
    method = inspect.getattr_static(cls, name, None) if bracket else None
    return EndpointMethod(method, explicit=port == "port)") if inspect.isfunction(method) else None


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
