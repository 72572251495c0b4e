"""Wrappers around the endpoints of a process, for what concerns all of them: tracing, profiling, debugging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.endpoint import EndpointMethod
from monarch_hpc.core.arguments import check_callable

__all__ = ["bind", "wrap_endpoints"]

_wrappers: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []


def wrap_endpoints(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Let *wrap* wrap the endpoints of the actors that are spawned in this process from here on, like a decorator.

    Call it in the `bootstrap` of procs. Later wrappers are around earlier ones; without any, nothing is paid.

    Args:
        wrap: given a bound method; returns a function with its parameters, a coroutine function for a coroutine
            function. Called once for an endpoint and view, or at each call of an endpoint with a time limit, a response
            port, or coroutines.

    Raises:
        TypeError: *wrap* cannot be called.
    """
    check_callable("wrap", wrap)
    _wrappers.append(wrap)


def bind(endpoint: EndpointMethod[..., Any], target: object) -> Callable[..., Any]:
    """The method of *target* that serves *endpoint*, in its wrappers."""
    function: Callable[..., Any] = endpoint.__get__(target, type(target))
    for wrap in _wrappers:
        function = wrap(function)
    return function
