"""Meshes that have lost a host: their procs come back on it once its agent is there again, or on a spare host."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, MeshDied, endpoint, heal_mesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import hosts_of
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0


class Worker(Actor):
    """Counts, and tells where it is."""

    def __init__(self) -> None:
        self.count = 0

    def __checkpoint__(self) -> int:
        return self.count

    def __restore__(self, count: int) -> None:
        self.count = count

    @endpoint
    def add(self, num: int) -> tuple[str, int, int]:
        self.count += num
        return monarch_hpc.context().proc.host, os.getpid(), self.count

    @endpoint
    def ask(self, others: ActorMesh[Worker]) -> list[str]:
        return [host for host, _, _ in others.add.call(0).get(_PATIENCE_S).values()]


@pytest.fixture(params=[16, 1], ids=["direct", "tree"])
def cast_direct(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def tries() -> int:
    """A test replaces it by parameters."""
    return 3


@pytest.fixture
def hosts(cast_direct: int, tries: int) -> Iterator[HostMesh]:
    """Two hosts and a spare one."""
    config = load(
        {
            "procs.stop_s": 1.0,
            "transport.cast_direct": cast_direct,
            "heal.tries": tries,
            "heal.backoff_s": 0.1,
            "heal.spare_hosts": 1,
        }
    ).config
    with controlled(config, 3) as hosts:
        yield hosts


def lose(rank: int, workers: ActorMesh[Worker]) -> None:
    """Kill the agent of a host, and wait until these workers there are dead."""
    (tenancy,) = Controller.instance().tenancies.all()
    hosts_of(tenancy.directory)[rank].kill_agent()
    wait_until("their death", lambda: all_dead(workers))


def all_dead(workers: ActorMesh[Worker]) -> bool:
    answers = workers.add.options(on_error="collect").call(0).get(_PATIENCE_S)
    return all(isinstance(answer, ActorDied) for answer in answers.values())


def places(workers: ActorMesh[Worker]) -> list[tuple[str, int]]:
    return [(host, count) for host, _, count in workers.add.call(0).get(_PATIENCE_S).values()]


def test_procs_come_back_on_their_host_once_it_has_an_agent_again(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    assert [entry.name for entry in hosts.entries] == ["local0", "local1"]
    with hosts.spawn_procs(per_host={"gpus": 2}, name="mesh") as procs:
        workers = procs.spawn("worker", Worker)
        workers.add.call(3).get(_PATIENCE_S)
        procs.checkpoint()
        for round_ in (1, 2):
            lose(1, workers.slice(hosts=1))
            healed = procs.heal("respawn")
            assert (healed.respawned, healed.moved) == ((2, 3), {}), healed
            assert "host local1 is lost" in healed.causes[2]
            assert places(workers) == [("local0", 3)] * 2 + [("local1", 3)] * 2, round_
            others = workers.slice(hosts=1)
            assert list(workers.slice(hosts=0).ask.call(others).get(_PATIENCE_S).values()) == [["local1"] * 2] * 2
        with monarch_hpc.hosts().spawn_procs(name="later") as later:
            assert [place for place, _ in places(later.spawn("worker", Worker))] == ["local0", "local1"]
    del faults[:]


@pytest.mark.parametrize("tries", [0])
def test_procs_of_a_lost_host_come_back_on_a_spare_one(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}, name="mesh") as procs, hosts.spawn_procs(name="other") as other:
        workers = procs.spawn("worker", Worker)
        workers.add.call(3).get(_PATIENCE_S)
        procs.checkpoint()
        lose(1, workers.slice(hosts=1))
        with pytest.raises(MeshDied, match="local1 is lost"):
            procs.heal("respawn")
        healed = heal_mesh(workers)
        assert (healed.mesh, healed.respawned, healed.removed) == (workers, (2, 3), ())
        assert healed.moved == {2: "local2", 3: "local2"}
        assert places(workers) == [("local0", 3)] * 2 + [("local2", 3)] * 2
        others = workers.slice(hosts=1)
        assert list(workers.slice(hosts=0).ask.call(others).get(_PATIENCE_S).values()) == [["local2"] * 2] * 2
        if current_runtime().casts.max_direct == 1:
            assert current_runtime().casts.num_sent > 0
        # A mesh of its own finds its own place there, and new ones get the hosts that live.
        assert other.heal().moved == {1: "local2"}
        assert [entry.name for entry in monarch_hpc.hosts().entries] == ["local0", "local2"]
        with monarch_hpc.hosts().spawn_procs(name="later") as later:
            assert [place for place, _ in places(later.spawn("worker", Worker))] == ["local0", "local2"]

        # The spare is lost, too: nothing is left but the rest.
        lose(2, workers.slice(hosts=1))
        assert procs.heal().removed == (2, 3)
        stopped = procs.slice(hosts=0)
    wait_until("the end of all procs", lambda: not stopped.procs or _all_ended([proc.pid for proc in stopped.procs]))
    del faults[:]


def _all_ended(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("tries", [0])
@pytest.mark.parametrize("cast_direct", [16])
def test_a_mesh_that_has_lost_all_its_hosts_comes_back_whole(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=1).spawn_procs(name="mesh") as procs:
        workers = procs.spawn("worker", Worker)
        workers.add.call_one(3).get(_PATIENCE_S)
        lose(1, workers)
        assert procs.heal("spares").moved == {0: "local2"}
        assert places(workers) == [("local2", 0)]
    del faults[:]
