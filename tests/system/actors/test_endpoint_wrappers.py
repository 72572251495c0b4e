"""Wrappers around all endpoints of a proc, as its bootstrap function asks for them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.actor.endpoint_wrappers import wrap_endpoints
from monarch_hpc.actor.spans import trace_endpoints
from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled, settle

entered: list[str] = []


def more(result: Any) -> Any:
    return result + 1 if isinstance(result, int) else result


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that notes calls, and adds one to the numbers that they return."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def perform(*args: object) -> object:
            entered.append(function.__name__)
            return more(await function(*args))

        return perform

    @functools.wraps(function)
    def call(*args: object) -> object:
        entered.append(function.__name__)
        return more(function(*args))

    return call


@contextlib.contextmanager
def _recorded(name: str, attributes: dict[str, str]) -> Iterator[None]:
    entered.append(f"span {name} of {attributes['monarch_hpc.actor']}")
    yield


def wrap_all() -> None:
    """The procs' bootstrap, with a stand-in for OpenTelemetry, which is an optional dependency of users' programs."""
    trace = ModuleType("opentelemetry.trace")
    tracer = SimpleNamespace(start_as_current_span=lambda name, attributes: _recorded(name, attributes))
    trace.get_tracer = lambda _name: tracer  # type: ignore[attr-defined]
    sys.modules |= {"opentelemetry": ModuleType("opentelemetry"), "opentelemetry.trace": trace}
    wrap_endpoints(noted)
    trace_endpoints()


class Doubler(Actor):
    """Doubles numbers, in every way that an endpoint may be written."""

    @endpoint
    def plain(self, number: int) -> int:
        return 2 * number

    @endpoint(timeout=60.0)
    def limited(self, number: int) -> int:
        return 2 * number

    @endpoint
    async def waiting(self, number: int) -> int:
        return 2 * number

    @endpoint
    def fail(self) -> int:
        raise KeyError("no")

    @endpoint
    def entered(self) -> list[str]:
        return entered


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with controlled(load({}).config, 1) as hosts, hosts.spawn_procs(bootstrap=wrap_all) as procs:
        settle(procs)
        yield procs


def test_every_kind_of_endpoint_is_wrapped_and_traced(procs: ProcMesh) -> None:
    doubler = procs.spawn("doubler", Doubler)
    assert [each.call_one(4).get() for each in (doubler.plain, doubler.limited, doubler.waiting)] == [9, 9, 9]
    assert doubler.plain.call_one(4).get() == 9
    with pytest.raises(KeyError):
        doubler.fail.call_one().get()
    seen = doubler.entered.call_one().get()
    for name in ("plain", "limited", "waiting"):
        assert name in seen and f"span Doubler.{name} of doubler" in seen
    assert seen.count("plain") == 2


def test_what_is_no_decorator_is_refused() -> None:
    with pytest.raises(TypeError, match="wrap is 7, an int: give a function"):
        wrap_endpoints(7)  # type: ignore[arg-type]
