"""Threads that code in C ends: nobody waits for their actors."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from monarch_hpc import Actor, ActorDied, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts

_PATIENCE_S = 60.0


def _end_thread() -> None:
    """End this thread as C code may: without unwinding a frame of Python."""
    ctypes.CDLL(None).pthread_exit(None)


class Victim(Actor):
    """Ends its thread."""

    @endpoint
    def end_thread(self) -> None:
        _end_thread()

    @endpoint
    async def end_thread_waiting(self) -> None:
        _end_thread()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Ending(Victim):
    """An actor whose thread ends in its constructor."""

    def __init__(self) -> None:
        _end_thread()


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        yield hosts


@pytest.mark.parametrize("way", ["end_thread", "end_thread_waiting"])
def test_the_callers_of_a_thread_that_ends_in_c_are_answered(
    proc: ProcMesh, faults: list[MeshFailure], way: str
) -> None:
    victim, other = proc.spawn("victim", Victim), proc.spawn("other", Victim)
    ending, queued = getattr(victim, way).call_one(), victim.pid.call_one()
    for call in (ending, queued):
        with pytest.raises(ActorDied, match=r"its thread failed.*ended by code in C"):
            call.get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="ended by code in C"):
        victim.pid.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert "its thread failed: RuntimeError: the thread was ended by code in C" in failure.cause
    assert other.pid.call_one().get(_PATIENCE_S)


def test_a_thread_that_ends_in_a_constructor_is_told_of(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    with pytest.raises(ActorDied, match="ended by code in C"):
        proc.spawn("ending", Ending).pid.call_one().get(_PATIENCE_S)
    wait_until("the failure", lambda: [fault.mesh_name for fault in faults], accept=lambda seen: seen == ["ending"])
