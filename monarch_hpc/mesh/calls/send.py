"""Monarch's `send`: a call whose answers go to a port, and whose caller does not wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.ports.port import Port
from monarch_hpc.core.arguments import check_instance, check_mapping
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.mesh.calls.stream import Stream

__all__ = ["send"]


def send(
    endpoint: Endpoint[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    port: Port[Any] | None = None,
    selection: Literal["all", "choose"] = "all",
) -> None:
    """Call an endpoint without waiting; its results and exceptions are sent to *port*.

    Results travel through this process, so none is delivered after this process has ended. An endpoint with
    `explicit_response_port` sends its answers straight to *port*, and as many as it likes.

    Args:
        endpoint: an endpoint of an actor mesh.
        args: positional arguments of the endpoint.
        kwargs: keyword arguments of the endpoint.
        port: receives each answer together with the actor's rank in the called mesh. None asks for no answers, like
            `Endpoint.broadcast`.
        selection: ``all`` actors, or ``choose`` for one actor as in `Endpoint.choose`.

    Raises:
        TypeError: an argument of another type, or the endpoint does not take *args* and *kwargs*.
        ValueError: *selection* is neither ``all`` nor ``choose``.
    """
    check_instance("endpoint", endpoint, Endpoint, "an endpoint of an actor mesh, such as workers.step")
    check_instance("args", args, (tuple, list), "a tuple of the arguments")
    check_mapping("kwargs", kwargs, "of the arguments' names")
    if port is not None:
        check_instance("port", port, Port, "a port of Channel.open, or None")
    if selection not in ("all", "choose"):
        raise ValueError(f"selection is {selection!r}; it is 'all' or 'choose'")
    passes_results = not (port is not None and endpoint.takes_port)
    if port is not None and endpoint.takes_port:
        endpoint = endpoint.answering_to(port)
    if selection == "choose":
        future = endpoint.choose(*args, **kwargs)
        if port is not None:
            _start(lambda: _answer(port, 0, future, passes_results))
    elif port is None:
        endpoint.broadcast(*args, **kwargs)
    else:
        stream = endpoint.stream(*args, **kwargs)
        _start(lambda: _forward(port, stream, passes_results))


def _start(work: Callable[[], None]) -> None:
    # On a thread, because sending to a full port blocks, and unpickling runs user code.
    Thread(work)


def _forward(port: Port[Any], stream: Stream[Any], passes_results: bool) -> None:
    for place, future in stream.places():
        _answer(port, place, future, passes_results)


def _answer(port: Port[Any], rank: int, future: Future[Any], passes_results: bool) -> None:
    error = future.exception()
    with contextlib.suppress(PortClosed):  # the receiver has gone
        if error is None and passes_results:
            try:
                port.send_as(rank, future.result())
            except PortClosed:
                raise
            except BaseException as unsendable:  # noqa: BLE001 pickling runs user code, and the port's reader waits
                error = unsendable
        if error is not None:
            port.exception_as(rank, error)
