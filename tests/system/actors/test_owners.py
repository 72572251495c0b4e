"""Actors that start procs: they own them, handle their deaths, and end them; and they learn why other procs died."""

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
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 120.0  # longer than the tests' procs.cause_s


class Worker(Actor):
    """Works in a proc that an actor started."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def end(self, code: int) -> None:
        os._exit(code)

    @endpoint
    async def rest(self) -> None:
        await asyncio.Event().wait()


class Owner(Actor):
    """Starts procs."""

    def __init__(self, *, handles: bool = True) -> None:
        self.handles = handles
        self.reported: list[MeshFailure] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.reported.append(failure)
        return self.handles

    @endpoint
    def start_procs(self, hosts: HostMesh | None = None, num: int = 2, *, busy: bool = True) -> list[int]:
        """Start procs, with or without workers in them; return their process ids."""
        self.procs = (hosts or monarch_hpc.this_host()).spawn_procs(per_host={"gpus": num}, name="staff")
        if busy:
            self.workers = self.procs.spawn("worker", Worker)
            return list(self.workers.pid.call().get(_PATIENCE_S).values())
        return [proc.pid for proc in self.procs.procs]

    @endpoint
    async def start_in_coroutine(self, *, awaits: bool) -> tuple[list[int], int]:
        """Start a proc in a coroutine; return its process id, and how often another task ran meanwhile."""
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
        self.procs = here.spawn_procs()
        if awaits:
            await self.procs.initialized
        ticked = ticks - before
        ticking.cancel()
        self.workers = self.procs.spawn("worker", Worker)
        return [value async for _, value in self.workers.pid.stream().items()], ticked

    @endpoint
    def start_owner(self) -> list[int]:
        """Start a proc whose actor starts procs; return all process ids."""
        self.procs = monarch_hpc.this_host().spawn_procs()
        self.owner = self.procs.spawn("owner", Owner)
        return [self.procs.procs[0].pid, *self.owner.start_procs.call_one().get(_PATIENCE_S)]

    @endpoint
    def start_badly(self) -> str:
        with pytest.raises(SpawnError) as caught:
            monarch_hpc.this_host().spawn_procs(preload=["no_such_module_anywhere"]).initialized.get(_PATIENCE_S)
        return str(caught.value)

    @endpoint
    def stop_procs(self) -> None:
        self.procs.stop().get(_PATIENCE_S)

    @endpoint
    def failures(self) -> list[MeshFailure]:
        return self.reported

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    def get_procs(self) -> ProcMesh:
        return self.procs

    @endpoint
    def ask(self, worker: ActorMesh[Worker]) -> tuple[str, str, float]:
        """Make a call that kills the worker, then another one; return both errors, and the seconds they took."""
        begun_s = time.monotonic()
        first = worker.end.call_one(9).exception(_PATIENCE_S)
        second = worker.pid.call_one().exception(_PATIENCE_S)
        return f"{type(first).__name__}: {first}", f"{type(second).__name__}: {second}", time.monotonic() - begun_s

    @endpoint
    def ask_across_a_cut(self, worker: ActorMesh[Worker], incarnation: int) -> tuple[str, float]:
        """Lose the channel to the worker amid a call; return the call's error, and the seconds it took."""
        begun_s = time.monotonic()
        worker.pid.call_one().get(_PATIENCE_S)
        call = worker.rest.call_one()
        runtime = current_runtime()
        runtime.engine.call_soon(lambda: runtime.node.channels[incarnation].give_up("cut on purpose"))
        error = call.exception(_PATIENCE_S)
        return f"{type(error).__name__}: {error}", time.monotonic() - begun_s

    @endpoint
    def ask_late(self, worker: ActorMesh[Worker]) -> str:
        error = worker.pid.call_one().exception(_PATIENCE_S)
        return f"{type(error).__name__}: {error}"


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled() as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def proc(hosts: HostMesh) -> ProcMesh:
    """One proc for all tests; as the first one it starts UCX in this process, which then keeps running."""
    procs = hosts.slice(hosts=0).spawn_procs()
    settle(procs)
    return procs


@pytest.fixture
def owner(proc: ProcMesh) -> Iterator[ActorMesh[Owner]]:
    owner = proc.spawn("owner", Owner)
    yield owner
    owner.stop().get(_PATIENCE_S)


def test_an_actor_starts_procs_while_the_program_is_busy(owner: ActorMesh[Owner]) -> None:
    started = owner.start_procs.call_one()
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:  # no thread waits, and the interpreter is busy
        pass
    pids = started.get(_PATIENCE_S)
    assert len(set(pids)) == 2 and not any(pid == os.getpid() for pid in pids)
    owner.stop_procs.call_one().get(_PATIENCE_S)
    assert gone(pids)
    assert owner.failures.call_one().get(_PATIENCE_S) == []


def test_hosts_that_came_in_a_message_start_procs(owner: ActorMesh[Owner], hosts: HostMesh) -> None:
    pids = owner.start_procs.call_one(hosts.split(hosts=("a", "b"), a=2), 1).get(_PATIENCE_S)
    received = owner.get_procs.call_one().get(_PATIENCE_S)
    assert received.sizes == {"a": 2, "b": 1, "gpus": 1}
    assert [proc.host for proc in received.procs] == ["local0", "local1"]
    # Others may use the procs, but not stop them.
    assert list(received.spawn("mine", Worker).pid.call().get(_PATIENCE_S).values()) == pids
    with pytest.raises(RuntimeError, match="not owned here"):
        received.stop()


def test_many_actors_start_procs_at_once(proc: ProcMesh) -> None:
    owners = [proc.spawn(f"owner{number}", Owner) for number in range(3)]
    started = [owner.start_procs.call_one() for owner in owners]
    pids = [pid for future in started for pid in future.get(_PATIENCE_S)]
    assert len(set(pids)) == 6
    for owner in owners:
        owner.stop()
    wait_until("the end of their procs", lambda: gone(pids))


@pytest.mark.parametrize("awaits", [False, True])
def test_coroutines_start_procs(owner: ActorMesh[Owner], *, awaits: bool) -> None:
    pids, ticked = owner.start_in_coroutine.call_one(awaits=awaits).get(_PATIENCE_S)
    assert len(pids) == 1 and (ticked > 0) is awaits
    owner.stop().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))


@pytest.mark.parametrize("way", ["stopped", "failed", "killed"])
def test_procs_end_with_their_owner_and_take_theirs_along(hosts: HostMesh, faults: list[MeshFailure], way: str) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        owner = procs.spawn("owner", Owner)
        pids = owner.start_owner.call_one().get(_PATIENCE_S)
        assert len(set(pids)) == 3 and not gone(pids)
        match way:
            case "stopped":
                owner.stop()
            case "failed":
                owner.fail.broadcast()
            case _:
                os.kill(procs.procs[0].pid, signal.SIGKILL)
        wait_until("the end of its procs", lambda: gone(pids))
        expected = [] if way == "stopped" else ["owner"]
        wait_until(
            "the failures", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == expected
        )


def test_a_procs_of_an_actor_in_the_program_end_with_it(proc: ProcMesh) -> None:
    owner = monarch_hpc.this_proc().spawn("owner", Owner)
    pids = owner.start_procs.call_one().get(_PATIENCE_S)
    os.kill(pids[1], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: owner.failures.call_one().get(_PATIENCE_S))
    assert (failure.mesh_name, failure.rank) == ("worker", 1)
    owner.stop().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))


@pytest.mark.parametrize("busy", [True, False])
def test_the_death_of_a_proc_is_told_to_its_owner_once(
    owner: ActorMesh[Owner], faults: list[MeshFailure], *, busy: bool
) -> None:
    pids = owner.start_procs.call_one(busy=busy).get(_PATIENCE_S)
    os.kill(pids[1], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: owner.failures.call_one().get(_PATIENCE_S))
    assert failure.rank == 1 and failure.cause.startswith("signal 9 (SIGKILL)")
    if busy:
        assert (failure.mesh_name, failure.where) == ("worker", "actor worker[1] on local0")
    else:
        assert (failure.mesh_name, failure.where) == ("staff", "proc 1 of staff on local0")
    # Procs that are asked to end are not failures.
    owner.stop_procs.call_one().get(_PATIENCE_S)
    wait_until("the end of its procs", lambda: gone(pids))
    assert len(owner.failures.call_one().get(_PATIENCE_S)) == 1 and faults == []


def test_what_an_owner_does_not_handle_goes_up(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    owner = proc.spawn("owner", Owner, handles=False)
    pids = owner.start_procs.call_one(busy=False).get(_PATIENCE_S)
    os.kill(pids[0], signal.SIGKILL)
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert failure.mesh_name == "owner" and "proc 0 of staff on local0 died: signal 9" in failure.cause
    wait_until("the end of its procs", lambda: gone(pids))


def test_procs_that_do_not_start_fail_in_the_actor(owner: ActorMesh[Owner]) -> None:
    text = owner.start_badly.call_one().get(_PATIENCE_S)
    assert "no proc on local0" in text and "no_such_module_anywhere" in text


def test_actors_learn_why_a_proc_died(owner: ActorMesh[Owner], hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        worker = procs.spawn("worker", Worker)
        first, second, took_s = owner.ask.call_one(worker).get(_PATIENCE_S)
        assert first.startswith("ProcDied: actor worker[0] on local1, endpoint end died: exit code 9")
        assert second.startswith("ProcDied: actor worker[0] on local1, endpoint pid died: exit code 9")
        assert took_s < _PATIENCE_S / 2
        wait_until(
            "the failure", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == ["worker"]
        )


def test_actors_learn_that_a_proc_was_stopped(owner: ActorMesh[Owner], hosts: HostMesh) -> None:
    procs = hosts.slice(hosts=1).spawn_procs()
    worker = procs.spawn("worker", Worker)
    worker.pid.call_one().get(_PATIENCE_S)
    procs.stop("the season is over").get(_PATIENCE_S)
    for _ in range(2):
        text = owner.ask_late.call_one(worker).get(_PATIENCE_S)
        assert text == "ProcDied: actor worker[0] on local1, endpoint pid died: it was stopped: the season is over"


def test_a_proc_that_lives_is_not_waited_for(owner: ActorMesh[Owner], hosts: HostMesh) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        worker = procs.spawn("worker", Worker)
        error, took_s = owner.ask_across_a_cut.call_one(worker, procs.procs[0].incarnation).get(_PATIENCE_S)
        assert error.startswith("DeliveryUnknown: ") and "cut on purpose" in error
        assert took_s < _PATIENCE_S / 2
        assert not gone([procs.procs[0].pid])


def test_who_is_no_proc_of_the_run_is_not_explained(owner: ActorMesh[Owner], proc: ProcMesh) -> None:
    stranger = dataclasses.replace(proc.procs[0], incarnation=12345, addresses=("tcp://127.0.0.1:1",))
    mesh = ProcMesh("strangers", 7, proc._region, {0: stranger})
    worker = ActorMesh("worker", 99, Worker, mesh._region, {0: stranger})
    assert owner.ask_late.call_one(worker).get(_PATIENCE_S).startswith("DeliveryUnknown: actor worker[0] on local0")


def test_an_actor_that_died_is_told_to_who_calls_it(owner: ActorMesh[Owner], proc: ProcMesh) -> None:
    worker = proc.spawn("worker", Worker)
    worker.stop().get(_PATIENCE_S)
    assert "it was stopped" in owner.ask_late.call_one(worker).get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        worker.pid.call_one().get(_PATIENCE_S)
