"""OpenTelemetry spans and meters, for programs that install it; without it spans do nothing, at no cost."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast, overload

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint_wrappers import wrap_endpoints

__all__ = ["get_meter", "span", "trace_endpoints", "traced"]

P = ParamSpec("P")
R = TypeVar("R")

_NAME = "monarch_hpc"


def _library(name: str) -> Any:
    # Imported by name: it is an optional dependency of the program.
    return importlib.import_module(f"opentelemetry.{name}")


def get_meter() -> Any:
    """Return the OpenTelemetry meter of this package; its instruments report to the program's provider.

    Raises:
        ModuleNotFoundError: ``opentelemetry-api`` is not installed.
    """
    try:
        return _library("metrics").get_meter(_NAME)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("get_meter() needs OpenTelemetry: install opentelemetry-api") from error


def span(name: str) -> contextlib.AbstractContextManager[Any]:
    """An OpenTelemetry span with the actor's name: ``with span("load"):``. Does nothing if it is not installed."""
    try:
        trace = _library("trace")
    except ModuleNotFoundError:
        return contextlib.nullcontext()
    attributes = {"monarch_hpc.actor": context().actor_name}
    started = trace.get_tracer(_NAME).start_as_current_span(name, attributes=attributes)
    return cast("contextlib.AbstractContextManager[Any]", started)


@overload
def traced(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def traced(fn: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:  # the overloads say it exactly
    """Run a function or coroutine in a `span` with its name, or with *name*."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        title = name or function.__name__
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def perform(*args: Any, **kwargs: Any) -> Any:
                with span(title):
                    return await function(*args, **kwargs)

            return perform

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with span(title):
                return function(*args, **kwargs)

        return call

    return decorate if fn is None else decorate(fn)


def trace_endpoints() -> None:
    """Run each endpoint of the actors that are spawned in this process from here on in a `span` named ``CLASS.METHOD``.

    Call it in the `bootstrap` of procs, after the program's own set-up of OpenTelemetry.
    """
    wrap_endpoints(lambda function: traced(name=function.__qualname__)(function))
