"""Ends of actors by what they raise that is not an Exception: it ends the actor, and nothing else; and of procs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator

import pytest

from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, MeshFailure, ProcDied, ProcMesh, endpoint
from monarch_hpc.testing import wait_until
from tests.hostile import DEADLY, make_error
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Victim(Actor):
    """Raises on request."""

    @endpoint
    def alive(self) -> bool:
        return True

    @endpoint
    def interrupt(self, name: str) -> None:
        raise make_error(name)

    @endpoint
    async def interrupt_waiting(self, name: str) -> None:
        raise make_error(name)

    @endpoint(timeout=60.0)
    def interrupt_with_a_limit(self, name: str) -> None:
        raise make_error(name)

    @endpoint
    def become(self, *argv: str) -> None:
        os.execv(argv[0], argv)

    @endpoint
    async def leave_a_task(self, error: str) -> None:
        async def fail() -> None:
            raise make_error(error)

        self.task = asyncio.create_task(fail())
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        yield hosts.slice(hosts=0)


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs() as procs:
        settle(procs)
        yield procs


@pytest.fixture
def victim(procs: ProcMesh) -> Iterator[ActorMesh[Victim]]:
    victim = procs.spawn("victim", Victim)
    yield victim
    victim.stop().get(_PATIENCE_S)


@pytest.mark.parametrize("way", ["interrupt", "interrupt_waiting", "interrupt_with_a_limit"])
@pytest.mark.parametrize("name", DEADLY)
def test_what_is_no_exception_ends_the_actor_and_caller_and_owner_are_told_once(
    procs: ProcMesh, victim: ActorMesh[Victim], faults: list[MeshFailure], way: str, name: str
) -> None:
    doomed = procs.spawn("doomed", Victim)
    error = getattr(doomed, way).call_one(name).exception(_PATIENCE_S)
    assert isinstance(error, ActorDied)
    assert f"endpoint {way} raised {name}" in error.cause and "Traceback" in error.cause
    with pytest.raises(ActorDied, match=f"endpoint {way} raised {name}"):
        doomed.alive.call_one().get(_PATIENCE_S)
    assert victim.alive.call_one().get(_PATIENCE_S)  # in the same proc
    doomed.stop().get(_PATIENCE_S)
    wait_until("the report to the owner", lambda: faults, _PATIENCE_S)
    assert [failure.mesh_name for failure in faults] == ["doomed"]


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt"])
def test_a_task_that_leaves_the_process_ends_its_actor(
    procs: ProcMesh, victim: ActorMesh[Victim], faults: list[MeshFailure], name: str
) -> None:
    doomed = procs.spawn("doomed", Victim)
    doomed.leave_a_task.call_one(name).exception(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert f"a task raised {name}" in failure.cause
    assert victim.alive.call_one().get(_PATIENCE_S)


def test_a_proc_that_becomes_another_program_dies_of_that(hosts: HostMesh, victim: ActorMesh[Victim]) -> None:
    doomed = hosts.spawn_procs().spawn("doomed", Victim)
    with pytest.raises(ProcDied, match="replaced itself by another program"):
        doomed.become.call_one(sys.executable, "-c", "import time; time.sleep(600)").get(_PATIENCE_S)
    with pytest.raises(ProcDied, match="replaced itself by another program"):
        doomed.alive.call_one().get(_PATIENCE_S)
    assert victim.alive.call_one().get(_PATIENCE_S)
