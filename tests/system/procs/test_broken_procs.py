"""Procs in which user code has broken what our code relies on: they go on, or end with the cause; no caller hangs."""

from __future__ import annotations

import asyncio
import builtins
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from monarch_hpc import Actor, ActorDied, HostMesh, MeshFailure, ProcDied, ProcMesh, actor, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import DeliveryUnknown
from tests.system.support.breakages import close_descriptors, freeze_time, set_failing_hooks, take_threading_away
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


def fail(*_: object) -> Any:
    raise RuntimeError("broken on purpose")


def take_monotonic_away() -> None:
    time.monotonic = time.monotonic_ns = None  # type: ignore[assignment]


def replace_functions_of_os() -> None:
    os.eventfd_write = os.eventfd_read = os.read = os.write = os.close = fail  # type: ignore[assignment]


def raise_in_hooks() -> None:
    gc.callbacks.append(fail)
    threading.excepthook = sys.excepthook = sys.unraisablehook = fail
    sys.stdout = sys.stderr = ModuleType("neither written to nor flushed")


def close_the_epoll() -> None:
    close_descriptors("eventpoll")


def close_the_wakeup() -> None:
    close_descriptors("eventfd")


def close_all() -> None:
    os.closerange(3, 4096)


def close_sockets() -> None:
    close_descriptors("socket:")


def allow_few_frames() -> None:
    for limit in range(1, 100):
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:
            continue
        return


def take_builtins_away() -> None:
    for name in ("len", "isinstance", "min", "max", "print", "type", "list", "next", "hasattr", "getattr"):
        setattr(builtins, name, None)


class Breaking(Actor):
    """Breaks its process on request."""

    @endpoint
    def do(self, breakage: Callable[[], None]) -> str:
        breakage()
        return "done"

    @endpoint
    async def nap(self) -> str:
        await asyncio.sleep(0.01)
        return "slept"

    @endpoint
    def echo(self, value: object) -> object:
        return value


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 0.5, "procs.cause_s": 3.0}).config, num_hosts=1) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


@pytest.fixture
def procs(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcMesh]:
    failures: list[MeshFailure] = []
    monkeypatch.setattr(actor, "unhandled_fault_hook", failures.append)
    with hosts.slice(hosts=0).spawn_procs() as procs:
        yield procs


@pytest.mark.parametrize(
    "breakage", [freeze_time, take_monotonic_away, replace_functions_of_os, raise_in_hooks, set_failing_hooks]
)
def test_it_goes_on_without(procs: ProcMesh, breakage: Callable[[], None]) -> None:
    breaking, other = procs.spawn("breaking", Breaking), procs.spawn("other", Breaking)
    sleeping = other.nap.call_one()
    assert breaking.do.call_one(breakage).get(_PATIENCE_S) == "done"
    assert sleeping.get(_PATIENCE_S) == "slept"
    assert breaking.nap.call_one().get(_PATIENCE_S) == "slept"
    large = bytes(300_000)
    assert procs.spawn("third", Breaking).echo.call_one(large).get(_PATIENCE_S) == large


@pytest.mark.parametrize(
    ("breakage", "cause"),
    [(close_the_epoll, "Bad file descriptor"), (close_all, "Bad file descriptor"), (allow_few_frames, "Recursion")],
)
def test_it_ends_with_the_cause_without(procs: ProcMesh, breakage: Callable[[], None], cause: str) -> None:
    breaking, other = procs.spawn("breaking", Breaking), procs.spawn("other", Breaking)
    assert other.echo.call_one(1).get(_PATIENCE_S) == 1
    sleeping = other.nap.call_one()
    # Whether this call, or the one in flight, is still answered depends on who notices first, and when.
    for future in (breaking.do.call_one(breakage), sleeping):
        assert future.exception(_PATIENCE_S) is None or isinstance(future.exception(), ProcDied)
    ended: BaseException | None = None
    for _ in range(3):  # it may notice at the next message that needs what is broken
        ended = ended or other.nap.call_one().exception(_PATIENCE_S)
    assert isinstance(ended, ProcDied)
    # UCX's own thread aborts if it is the first to find its descriptors closed.
    assert "it wrote last" in str(ended) and (cause in str(ended) or "SIGABRT" in str(ended))


@pytest.mark.parametrize("breakage", [close_the_wakeup, take_builtins_away, take_threading_away])
def test_callers_are_answered_without(procs: ProcMesh, breakage: Callable[[], None]) -> None:
    breaking, other = procs.spawn("breaking", Breaking), procs.spawn("other", Breaking)
    in_flight = [other.nap.call_one(), breaking.do.call_one(breakage), *(breaking.nap.call_one() for _ in range(3))]
    for future in in_flight:
        assert future.exception(_PATIENCE_S) is None or isinstance(future.exception(), ActorDied)


# `procs.cause_s`: so long the program waits for the agent's report of a death.
def test_a_call_in_flight_is_answered_without_sockets(procs: ProcMesh) -> None:
    breaking = procs.spawn("breaking", Breaking)
    error = breaking.do.call_one(close_sockets).exception(_PATIENCE_S)
    # Through shared memory the answer may come first; UCX's own thread aborts if it is the first to find them closed.
    assert error is None or isinstance(error, DeliveryUnknown) or "SIGABRT" in str(error)
