"""Actors that start procs: ownership, reports of deaths, ending with the owner; and causes of other procs' deaths."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, ProcMesh, SpawnError, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.controlling import controlled, settle

_PATIENCE_S = 30.0


class Worker(Actor):
    """An actor in a proc that another actor started."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def end(self, code: int) -> None:
        os._exit(code)


class Chief(Actor):
    """An actor that starts procs."""

    def __init__(self, *, handles: bool = True) -> None:
        self.handles = handles
        self.told: list[MeshFailure] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure)
        return self.handles

    @endpoint
    def hire(self, hosts: HostMesh | None = None, num: int = 2, *, busy: bool = True) -> list[int]:
        """Start procs, with or without workers in them; return their process ids."""
        self.procs = (hosts or monarch_hpc.this_host()).spawn_procs(per_host={"gpus": num}, name="staff")
        if busy:
            self.workers = self.procs.spawn("worker", Worker)
            return list(self.workers.pid.call().get(_PATIENCE_S).values())
        return [proc.pid for proc in self.procs.procs]

    @endpoint
    async def hire_in_coroutine(self, *, beside: bool) -> tuple[list[int], int]:
        """Likewise, next to another coroutine; return the number of its steps too."""
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        here = monarch_hpc.this_host()
        await asyncio.sleep(0)
        before = ticks
        self.procs = await asyncio.to_thread(here.spawn_procs) if beside else here.spawn_procs()
        ticked = ticks - before
        ticking.cancel()
        self.workers = self.procs.spawn("worker", Worker)
        return [value async for _, value in self.workers.pid.stream().items()], ticked

    @endpoint
    def hire_chief(self) -> list[int]:
        """Start procs that start procs."""
        self.procs = monarch_hpc.this_host().spawn_procs()
        self.chief = self.procs.spawn("chief", Chief)
        return [self.procs.procs[0].pid, *self.chief.hire.call_one().get(_PATIENCE_S)]

    @endpoint
    def hire_badly(self) -> str:
        with pytest.raises(SpawnError) as caught:
            monarch_hpc.this_host().spawn_procs(preload=["no_such_module_anywhere"])
        return str(caught.value)

    @endpoint
    def dismiss(self) -> None:
        self.procs.stop().get(_PATIENCE_S)

    @endpoint
    def failures(self) -> list[MeshFailure]:
        return self.told

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    def lend(self) -> ProcMesh:
        return self.procs

    @endpoint
    def ask(self, worker: ActorMesh[Worker]) -> tuple[str, str, float]:
        """Call a worker that dies of the call, then again; return both errors and their times in seconds."""
        begun_s = time.monotonic()
        first = worker.end.call_one(9).exception(_PATIENCE_S)
        second = worker.pid.call_one().exception(_PATIENCE_S)
        return f"{type(first).__name__}: {first}", f"{type(second).__name__}: {second}", time.monotonic() - begun_s

    @endpoint
    def ask_late(self, worker: ActorMesh[Worker]) -> str:
        error = worker.pid.call_one().exception(_PATIENCE_S)
        return f"{type(error).__name__}: {error}"


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def proc(hosts: HostMesh) -> ProcMesh:
    """One proc for all tests. The first call starts UCX in this process, which stays."""
    procs = hosts.slice(hosts=0).spawn_procs()
    settle(procs)
    return procs


@pytest.fixture
def chief(proc: ProcMesh) -> Iterator[ActorMesh[Chief]]:
    chief = proc.spawn("chief", Chief)
    yield chief
    chief.stop().get(_PATIENCE_S)


def test_an_actor_starts_procs_while_the_program_is_busy(chief: ActorMesh[Chief]) -> None:
    hired = chief.hire.call_one()
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:  # no thread waits, and the interpreter is busy
        pass
    pids = hired.get(_PATIENCE_S)
    assert len(set(pids)) == 2 and not any(pid == os.getpid() for pid in pids)
    chief.dismiss.call_one().get(_PATIENCE_S)
    assert gone(pids)
    assert chief.failures.call_one().get(_PATIENCE_S) == []


def test_hosts_that_came_in_a_message_start_procs(chief: ActorMesh[Chief], hosts: HostMesh) -> None:
    pids = chief.hire.call_one(hosts.split(hosts=("a", "b"), a=2), 1).get(_PATIENCE_S)
    lent = chief.lend.call_one().get(_PATIENCE_S)
    assert lent.sizes == {"a": 2, "b": 1, "gpus": 1}
    assert [proc.host for proc in lent.procs] == ["local0", "local1"]
    # Other actors may use them, but not stop them.
    assert list(lent.spawn("mine", Worker).pid.call().get(_PATIENCE_S).values()) == pids
    with pytest.raises(RuntimeError, match="not owned here"):
        lent.stop()


def test_many_actors_start_procs_at_once(proc: ProcMesh) -> None:
    chiefs = [proc.spawn(f"chief{number}", Chief) for number in range(3)]
    hired = [chief.hire.call_one() for chief in chiefs]
    pids = [pid for future in hired for pid in future.get(_PATIENCE_S)]
    assert len(set(pids)) == 6
    for chief in chiefs:
        chief.stop()
    wait_until("the end of their procs", lambda: gone(pids))


@pytest.mark.parametrize("beside", [False, True])
def test_coroutines_start_procs(chief: ActorMesh[Chief], *, beside: bool) -> None:
    pids, ticked = chief.hire_in_coroutine.call_one(beside=beside).get(_PATIENCE_S)
    assert len(pids) == 1 and (ticked > 0) is beside
    chief.stop().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))


@pytest.mark.parametrize("way", ["stopped", "failed", "killed"])
def test_procs_end_with_their_owner_and_take_theirs_along(hosts: HostMesh, faults: list[MeshFailure], way: str) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        chief = procs.spawn("chief", Chief)
        pids = chief.hire_chief.call_one().get(_PATIENCE_S)
        assert len(set(pids)) == 3 and not gone(pids)
        match way:
            case "stopped":
                chief.stop()
            case "failed":
                chief.fail.broadcast()
            case _:
                os.kill(procs.procs[0].pid, signal.SIGKILL)
        wait_until("the end of its procs", lambda: gone(pids))
        expected = [] if way == "stopped" else ["chief"]
        wait_until(
            "the failures", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == expected
        )


def test_a_procs_of_an_actor_in_the_program_end_with_it(proc: ProcMesh) -> None:
    chief = monarch_hpc.this_proc().spawn("chief", Chief)
    pids = chief.hire.call_one().get(_PATIENCE_S)
    os.kill(pids[1], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: chief.failures.call_one().get(_PATIENCE_S))
    assert (failure.mesh_name, failure.rank) == ("worker", 1)
    chief.stop().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))


@pytest.mark.parametrize("busy", [True, False])
def test_the_death_of_a_proc_is_told_to_its_owner_once(
    chief: ActorMesh[Chief], faults: list[MeshFailure], *, busy: bool
) -> None:
    pids = chief.hire.call_one(busy=busy).get(_PATIENCE_S)
    os.kill(pids[1], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: chief.failures.call_one().get(_PATIENCE_S))
    assert failure.rank == 1 and failure.cause.startswith("signal 9 (SIGKILL)")
    if busy:
        assert (failure.mesh_name, failure.where) == ("worker", "actor worker[1] on local0")
    else:
        assert (failure.mesh_name, failure.where) == ("staff", "proc 1 of staff on local0")
    # A requested end is not a failure.
    chief.dismiss.call_one().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))
    assert len(chief.failures.call_one().get(_PATIENCE_S)) == 1 and faults == []


def test_what_an_owner_does_not_handle_goes_up(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    chief = proc.spawn("chief", Chief, handles=False)
    pids = chief.hire.call_one(busy=False).get(_PATIENCE_S)
    os.kill(pids[0], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert failure.mesh_name == "chief" and "proc 0 of staff on local0 died: signal 9" in failure.cause
    wait_until("the end of its procs", lambda: gone(pids))


def test_procs_that_do_not_start_fail_in_the_actor(chief: ActorMesh[Chief]) -> None:
    text = chief.hire_badly.call_one().get(_PATIENCE_S)
    assert "no proc on local0" in text and "no_such_module_anywhere" in text


def test_actors_learn_why_a_proc_died(chief: ActorMesh[Chief], hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        worker = procs.spawn("worker", Worker)
        first, second, took_s = chief.ask.call_one(worker).get(_PATIENCE_S)
        assert first.startswith("ActorDied: actor worker[0] on local1, endpoint end died: exit code 9")
        assert second.startswith("ActorDied: actor worker[0] on local1, endpoint pid died: exit code 9")
        assert took_s < _PATIENCE_S / 2
        wait_until(
            "the failure", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == ["worker"]
        )


def test_actors_learn_that_a_proc_was_stopped(chief: ActorMesh[Chief], hosts: HostMesh) -> None:
    procs = hosts.slice(hosts=1).spawn_procs()
    worker = procs.spawn("worker", Worker)
    worker.pid.call_one().get(_PATIENCE_S)
    procs.stop("the season is over").get(_PATIENCE_S)
    for _ in range(2):
        text = chief.ask_late.call_one(worker).get(_PATIENCE_S)
        assert text == "ActorDied: actor worker[0] on local1, endpoint pid died: it was stopped: the season is over"


def test_who_is_no_proc_of_the_run_is_not_explained(chief: ActorMesh[Chief], proc: ProcMesh) -> None:
    stranger = dataclasses.replace(proc.procs[0], incarnation=12345, addresses=("tcp://127.0.0.1:1",))
    mesh = ProcMesh("strangers", 7, proc._region, {0: stranger})
    worker = ActorMesh("worker", 99, Worker, mesh._region, {0: stranger})
    assert chief.ask_late.call_one(worker).get(_PATIENCE_S).startswith("DeliveryUnknown: actor worker[0] on local0")


def test_an_actor_that_died_is_told_to_who_calls_it(chief: ActorMesh[Chief], proc: ProcMesh) -> None:
    worker = proc.spawn("worker", Worker)
    worker.stop().get(_PATIENCE_S)
    assert "it was stopped" in chief.ask_late.call_one(worker).get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        worker.pid.call_one().get(_PATIENCE_S)
