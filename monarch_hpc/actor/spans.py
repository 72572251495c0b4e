"""Spans of a program's work, kept in the table `spans`, and passed on to OpenTelemetry where the program uses it."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint_wrappers import wrap_endpoints
from monarch_hpc.actor.metrics import LIBRARY, Tag, check_tags, own_recorder
from monarch_hpc.core.arguments import check_text
from monarch_hpc.telemetry.rings import SpanRecord

__all__ = ["span", "trace_endpoints", "traced"]

P = ParamSpec("P")
R = TypeVar("R")

_around: contextvars.ContextVar[int] = contextvars.ContextVar("monarch_hpc_span", default=0)
"""Number of the innermost span that this code runs in."""


class span:  # noqa: N801 used as a function is
    """Record how long a block takes: ``with span("load"):``; in the table `spans`, from its begin on.

    Its value is the span of OpenTelemetry if the program has imported that, with the actor's name; else None.

    Args:
        tags: texts and numbers that are recorded with it.

    Raises:
        TypeError: the name is not a str, or a tag is not a text or a number.
    """

    def __init__(self, name: str, /, **tags: Tag) -> None:
        self._name = check_text("the name of a span", name, filled=True)
        self._tags = check_tags(name, tags)
        self._record: SpanRecord | None = None
        self._theirs: contextlib.AbstractContextManager[Any] | None = None

    def __enter__(self) -> Any:
        recorder, here = own_recorder(), context()
        names = recorder.names
        tags = names.tags(self._tags) if self._tags else 0
        self._record = recorder.rings.span(here.mark, names.span(self._name), tags, _around.get())
        self._outer = _around.set(self._record.number)
        trace = sys.modules.get("opentelemetry.trace")  # who uses it has imported it
        if trace is None:
            return None
        attributes = {"monarch_hpc.actor": here.actor_name, **self._tags}
        self._theirs = trace.get_tracer(LIBRARY).start_as_current_span(self._name, attributes=attributes)
        return self._theirs.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        record, self._record = self._record, None
        if record is not None:
            _around.reset(self._outer)
            record.end(failed=kind is not None)
        theirs, self._theirs = self._theirs, None
        return theirs is not None and bool(theirs.__exit__(kind, error, trace))


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
