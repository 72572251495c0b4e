"""Actor classes, and the methods marked as endpoints."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from monarch_hpc.core.arguments import check_flag, check_seconds
from monarch_hpc.core.text.moved import row

if TYPE_CHECKING:
    import logging

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

    Four more methods are called where a class has them, `def` or `async def`:

    - ``__supervise__(self, failure: MeshFailure) -> bool`` when something that this actor spawned has
      failed; returning True marks the failure as handled. Otherwise this actor fails too, and the failure
      goes to its owner. In a class of coroutines it runs while endpoints wait, in others between messages.
    - ``__cleanup__(self, error: BaseException | None)`` when the actor ends; *error* is the cause, or None.
      Running coroutines have been cancelled before; everything that the actor spawned is stopped after.
    - ``__checkpoint__(self) -> object`` between two messages, for `ProcMesh.checkpoint`: returns all that the actor
      needs to go on, which can be pickled.
    - ``__restore__(self, state)`` in an actor that was made again, after the constructor and before any message: gets
      what ``__checkpoint__`` had returned at the last checkpoint; it is not called if there was none.
    """

    @property
    def logger(self) -> logging.Logger:
        """The logger of the module that defines the class."""
        import logging  # late: a program starts its agent before it needs this

        return logging.getLogger(type(self).__module__)

    def _monarch_initialized(self) -> bool:
        """Answer once the constructor has run; see `ActorMesh.initialized`."""
        return True

    def _monarch_checkpoint(self, path: str) -> bytes | Awaitable[bytes]:
        """See `actor.states.take`."""
        from monarch_hpc.actor.states import take  # with the serializer, which a program loads later

        return take(self, path)

    def _monarch_restore(self, state: bytes | str) -> Awaitable[None] | None:
        """See `actor.states.restore`."""
        from monarch_hpc.actor.states import restore

        return restore(self, state)


class EndpointMethod(Generic[P, R]):
    """A method marked with `endpoint`; inside the actor it is called like any method.

    Attributes:
        concurrent: whether other messages are handled while it runs.
        timeout_s: how long it may run; None for no limit.
        explicit: whether it takes a response port as its first argument, and answers through that port.
        plain: whether a bare function call serves it: not a coroutine, no timeout, no response port.
        propagate: gives the shapes of the result for `Endpoint.rref`; None to take them from the first call.
    """

    def __init__(
        self,
        function: Callable[Concatenate[Any, P], R],
        *,
        concurrent: bool = False,
        timeout_s: float | None = None,
        explicit: bool = False,
        propagate: object = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"@endpoint marks methods; got {function!r}")
        self.function = function
        self.propagate = propagate
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
            raise TypeError(
                f"endpoint {function.__name__} is concurrent: write it as 'async def' {row('refused endpoints')}"
            )
        if timeout_s is not None:
            self.timeout_s = check_seconds(f"the timeout of endpoint {function.__name__}", timeout_s)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._fitting: set[int] = set()  # counts of positional arguments that are known to fit

    def check(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Check arguments against the signature of the remote method, before anything is sent.

        Raises:
            TypeError: they do not fit; the text contains the signature.
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
    *,
    concurrent: bool = False,
    timeout: float | None = None,
    explicit_response_port: bool = False,
    propagate: object = None,
) -> _Mark: ...
def endpoint(
    function: Callable[..., Any] | None = None,
    /,
    *,
    concurrent: bool = False,
    timeout: float | None = None,
    explicit_response_port: bool = False,
    propagate: object = None,
) -> Any:  # the overloads say it exactly
    """Let other actors and the controller call this method; a class may mix `def` and `async def`.

    All run on the actor's thread: functions without an event loop, coroutines on the loop of this actor. Code that
    blocks delays no other actor. What is raised and is not an Exception ends the actor.

    Args:
        concurrent: handle other messages while a coroutine runs; they may overtake each other.
        timeout: seconds that the endpoint may run; after that the caller gets `TimeoutError`. A coroutine is
            cancelled; a function cannot be, and keeps its actor busy until it returns.
        explicit_response_port: pass a port before the caller's arguments. The first value sent to that port is
            the answer, at any time and from any thread; the return value is ignored.
        propagate: a function of the same arguments, without ``self``, that returns tensors of the shapes of the
            result, for calls with `rref`. None or ``cached``: the first call with arguments of certain shapes waits.

    Raises:
        TypeError: an argument of the wrong type; *concurrent* on a function that is not a coroutine function; no
            parameter for the port.
        ValueError: *timeout* is not above 0.
    """
    check_flag("concurrent", concurrent)
    check_flag("explicit_response_port", explicit_response_port)

    def mark(function: Callable[..., Any], /) -> EndpointMethod[..., Any]:
        return EndpointMethod(
            function,
            concurrent=concurrent,
            timeout_s=timeout,
            explicit=explicit_response_port,
            propagate=propagate,
        )

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
    """Shorthand for ``endpoint(concurrent=True)``.

    Args:
        timeout: see `endpoint`.
        explicit_response_port: see `endpoint`.
    """
    mark = endpoint(concurrent=True, timeout=timeout, explicit_response_port=explicit_response_port)
    return mark if function is None else mark(function)


def endpoints_of(cls: type) -> dict[str, EndpointMethod[..., object]]:
    """The endpoints of *cls* by name, including inherited ones."""
    found: dict[str, EndpointMethod[..., object]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, EndpointMethod):
                found[name] = member
            else:
                found.pop(name, None)
    return found


def unmarked_method(cls: type, wire_name: str) -> EndpointMethod[..., object] | None:
    """Wrap a method that is not marked with `endpoint`, for callers that use `as_endpoint`; None if there is none.

    Args:
        wire_name: ``name()``, or ``name(port)`` for a method that takes a response port first. Neither can be the name
            of an endpoint.
    """
    name, bracket, port = wire_name.partition("(")
    method = inspect.getattr_static(cls, name, None) if bracket else None
    return EndpointMethod(method, explicit=port == "port)") if inspect.isfunction(method) else None


def check_arguments(
    name: str, signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """Check arguments against the signature of the remote method, before anything is sent.

    Raises:
        TypeError: they do not fit; the text contains the signature.
    """
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}{signature}: {error}") from None
