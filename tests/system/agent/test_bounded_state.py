"""Long-lived allocations, programs and procs: state kept of ended things is bounded, and no resource runs out."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import Actor, ActorDied, DeliveryUnknown, HostMesh, endpoint
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.config.schema import Config
from monarch_hpc.core.ids import mesh_number
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, SpawnFailed, StopProcs
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, RunOpened
from tests.system.support.agent_client import ENTRY, Client, alive, cookie_holders, standin_path
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0


@pytest.fixture
def config() -> Config:
    return load().config


@pytest.fixture
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 1) as found:
        yield found


# ---- openings of one allocation ----


@pytest.mark.slow  # five thousand openings, more than the former limit of 4095
def test_procs_start_after_thousands_of_openings(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        for _ in range(5000):
            client.send(OpenRun("aaaaaaaa", "a test", "here", 1, owner=False))
        client.wait(RunOpened, lambda opened: opened.member > 5000)
    with Client(directory, "bbbbbbbb") as client:
        assert client.opened.member > 5000
        assert all(alive(pid) for pid in client.spawn_ready([0, 1], 2))


def test_the_last_mesh_of_the_last_opening_starts_and_ends(shared: Path, run: str) -> None:
    with Client(shared, run) as client:
        mesh = client.spawn([1], 2, mesh=mesh_number(2**31 - 1, 2**32 - 1))
        pids = client.pids(mesh, 2)
        client.send(StopProcs(run, mesh, [1], 1.0))
        assert {ended.mesh for ended in client.wait_all(ProcEnded, 2)} == {mesh}
        assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize(("mesh", "problem"), [(1 << 64, "a number of 65 bits"), (-1, "mesh")])
def test_an_order_that_makes_no_sense_is_refused_at_once(shared: Path, run: str, mesh: int, problem: str) -> None:
    with Client(shared, run) as client:
        client.spawn([0, 1], 2, mesh=mesh, deadline_s=60.0)
        (refused,) = client.wait_all(Refused, 1)
        assert problem in refused.problem


_FAULTY = """
from monarch_hpc.agent.agent import Agent
from monarch_hpc.agent.procs.records import HostRecords
from monarch_hpc.agent.children.reaper import Reaper

starts, watch, handle = HostRecords.starts, Reaper.watch, Agent._handle

def faulty_starts(self, proc):
    if proc.start.mesh & 0xFFFF == 1 and proc.start.rank == 1:
        raise RuntimeError("no room in the ledger")
    starts(self, proc)

def faulty_watch(self, pid, ended):
    proc = getattr(ended, "args", [None])[0]
    if proc is not None and proc.start.mesh & 0xFFFF == 2 and proc.start.rank == 1:
        raise RuntimeError("no eye is left")
    watch(self, pid, ended)

def faulty_handle(self, message):
    handle(self, message)
    if getattr(message, "mesh", 0) & 0xFFFF == 3:
        raise RuntimeError("an afterthought")

HostRecords.starts, Reaper.watch, Agent._handle = faulty_starts, faulty_watch, faulty_handle
"""
"""Makes the agents' callbacks fail: for a program's first mesh before the fork, then after it, then at the end."""


@pytest.mark.parametrize(("number", "ranks"), [(1, [0, 1]), (2, [1]), (3, [0, 1])])
def test_an_agent_that_fails_says_so_at_once_and_leaves_no_proc(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, number: int, ranks: list[int]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_FAULTY)
    monkeypatch.setenv("PYTHONPATH", standin_path(tmp_path))
    with (
        open_local(1, config, tmp_path / "allocation", entry=ENTRY) as directory,
        Client(directory, "aaaaaaaa") as client,
    ):
        mesh = client.spawn([0], 2, mesh=mesh_number(1, number), deadline_s=60.0)
        failed = client.wait_all(SpawnFailed, len(ranks), lambda one: one.mesh == mesh)
        assert sorted(one.proc.rank for one in failed) == ranks
        assert all("no room" in one.cause or "no eye" in one.cause or "after" in one.cause for one in failed)
        if number == 2:
            client.wait(ProcReady)  # one that is stopped earlier has failed to start
            client.send(StopProcs("aaaaaaaa", mesh, [0], 1.0))
            client.wait(ProcEnded)
        agent = client.opened.hosts[0].pid
        children = Path(f"/proc/{agent}/task/{agent}/children")
        wait_until("only the zygote is left", lambda: len(children.read_text().split()) <= 1)
        assert all(alive(pid) for pid in client.pids(client.spawn([0], 2, mesh=mesh_number(1, 4)), 2))
    wait_until("the end of its processes", lambda: cookie_holders(directory), accept=lambda left: not left)


# ---- actors of one proc ----


class Worker(Actor):
    """Holds memory, so that a leak of it shows."""

    def __init__(self) -> None:
        self.load = bytearray(10_000)

    @endpoint
    def touch(self) -> int:
        return len(self.load)


class Meter(Actor):
    """Measures the memory of its proc."""

    @endpoint
    def start(self) -> None:
        tracemalloc.start()

    @endpoint
    def used_bytes(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow  # thousands of actors, with tracemalloc on both sides
def test_an_actor_that_has_ended_takes_no_memory(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"procs": 1})
    meter = procs.spawn("meter", Meter)
    meter.start.call_one().get(_PATIENCE_S)

    def spawn_and_stop(num: int) -> None:
        for _ in range(num // 50):
            workers = [procs.spawn("worker", Worker) for _ in range(50)]
            for touched in [worker.touch.call_one() for worker in workers]:
                touched.get(_PATIENCE_S)
            for stopped in [worker.stop() for worker in workers]:
                stopped.get(_PATIENCE_S)

    tracemalloc.start()
    try:
        spawn_and_stop(1100)  # more ended actors than the proc keeps
        gc.collect()
        there, here = meter.used_bytes.call_one().get(_PATIENCE_S), tracemalloc.get_traced_memory()[0]
        spawn_and_stop(1500)
        gc.collect()
        more_there = meter.used_bytes.call_one().get(_PATIENCE_S) - there
        more_here = tracemalloc.get_traced_memory()[0] - here
    finally:
        tracemalloc.stop()
    # A leak of 9.5 KiB per actor would exceed this many times.
    assert more_there < 200_000 and more_here < 200_000, (more_there, more_here)


def test_who_calls_late_is_told_what_the_actor_died_of_and_much_later_that_there_is_none(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"procs": 1})
    stopped = procs.spawn("worker", Worker)
    stopped.stop().get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        stopped.touch.call_one().get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        stopped.touch.call_one().get(_PATIENCE_S)
    workers = [procs.spawn("worker", Worker) for _ in range(1100)]
    for ended in [worker.stop() for worker in workers]:
        ended.get(_PATIENCE_S)
    last = procs.spawn("worker", Worker)  # alone: of many that are stopped together, any may be the last to end
    last.stop().get(_PATIENCE_S)
    with pytest.raises(DeliveryUnknown, match="it ended long ago, or was never here"):
        stopped.touch.call_one().get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        last.touch.call_one().get(_PATIENCE_S)
