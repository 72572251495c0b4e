"""Actors of one process: found by name, and called without a socket, with the same guarantees."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle
from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

_PATIENCE_S = 60.0


class Keeper(Actor):
    """Keeps its arguments."""

    def __init__(self) -> None:
        self.kept: list[object] = []

    @endpoint
    def keep(self, value: object) -> object:
        self.kept.append(value)
        return value

    @endpoint
    def all(self) -> list[object]:
        return self.kept

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")


class Neighbour(Actor):
    """Calls a keeper in the same process."""

    def __init__(self) -> None:
        self.keeper = monarch_hpc.this_proc().spawn("keeper", Keeper)

    @endpoint
    def share(self, num: int) -> tuple[float, float, bool]:
        """Send an array, modify the original and the answer; return the keeper's copy."""
        given = np.ones(num)
        answer = self.keeper.keep.call_one(given).get(_PATIENCE_S)
        given[0] = answer[0] = 7.0
        (kept,) = self.keeper.all.call_one().get(_PATIENCE_S)
        return float(kept[0]), float(kept[-1]), kept.flags.writeable

    @endpoint
    def pour(self, num: int, size: int) -> bool:
        for number in range(num):
            self.keeper.keep.broadcast((number, b"x" * size))
        return [value[0] for value in self.keeper.all.call_one().get(_PATIENCE_S)] == list(range(num))

    @endpoint
    def channels(self) -> int:
        """Number of channels of this process to itself."""
        runtime = Runtime.current
        assert runtime is not None
        return int(runtime.own.incarnation in runtime.node.channels)

    @endpoint
    def count(self, name: str) -> int:
        counter: ActorMesh[Counter] = monarch_hpc.get_or_spawn_controller(name, Counter, 100).get(_PATIENCE_S)
        return int(counter.add.call_one().get(_PATIENCE_S))

    @endpoint
    def told(self, value: object) -> str:
        with pytest.raises(TypeError) as caught:
            self.keeper.keep.call_one({"lock": threading.Lock()})
        return str(caught.value)


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.count = start

    @endpoint
    def add(self) -> int:
        self.count += 1
        return self.count

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs for all tests. The first call starts UCX in this process, which stays."""
    procs = hosts.slice(hosts=0).spawn_procs(per_host={"gpus": 2})
    settle(procs)
    return procs


@pytest.mark.parametrize("num", [8, 100_000])
def test_no_object_is_shared(procs: ProcMesh, num: int) -> None:
    one = procs.slice(gpus=0).spawn("neighbour", Neighbour)
    assert one.share.call_one(num).get(_PATIENCE_S) == (1.0, 1.0, True)
    assert one.channels.call_one().get(_PATIENCE_S) == 0


def test_messages_keep_their_order_and_their_senders_are_held_back(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("neighbour", Neighbour)
    assert one.pour.call_one(2000, 10).get(_PATIENCE_S)
    one = procs.slice(gpus=1).spawn("neighbour", Neighbour)
    assert one.pour.call_one(200, 1 << 20).get(_PATIENCE_S)


def test_what_cannot_be_sent_is_named(procs: ProcMesh) -> None:
    one = procs.slice(gpus=0).spawn("neighbour", Neighbour)
    assert one.told.call_one(None).get(_PATIENCE_S).startswith("argument 0['lock'], a lock, cannot be sent")
    with pytest.raises(TypeError, match=r"argument 0\[1\], a lock, cannot be sent"):
        one.told.call_one([0, threading.Lock()])
    with pytest.raises(TypeError, match="start, a lock, cannot be sent"):
        procs.spawn("counter", Counter, start=threading.Lock())
    assert one.channels.call_one().get(_PATIENCE_S) == 0


def test_the_program_hosts_actors_and_calls_them(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    here = monarch_hpc.this_proc()
    assert len(here) == 1 and here.sizes == {}
    keeper = here.spawn("mine", Keeper)
    array = np.ones(100_000)
    answer = keeper.keep.call_one(array).get(_PATIENCE_S)
    array[0] = answer[0] = 7.0
    assert keeper.all.call_one().get(_PATIENCE_S)[0][0] == 1.0
    with pytest.raises(ValueError, match="as asked"):
        keeper.fail.call_one().get(_PATIENCE_S)
    keeper.fail.broadcast()
    wait_until("the failure", lambda: [f.mesh_name for f in faults], accept=lambda seen: seen == ["mine"])


def test_a_named_actor_is_one_for_all(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    both = procs.spawn("neighbour", Neighbour)
    numbers = sorted(both.count.call("counter").get(_PATIENCE_S).values())
    assert numbers == [101, 102]
    counter: ActorMesh[Counter] = monarch_hpc.get_or_spawn_controller("counter", Counter, 0).get(_PATIENCE_S)
    assert counter.add.call_one().get(_PATIENCE_S) == 103
    other: ActorMesh[Counter] = monarch_hpc.get_or_spawn_controller("other", Counter, 0).get(_PATIENCE_S)
    assert other.add.call_one().get(_PATIENCE_S) == 1
    other.fail.broadcast()
    wait_until("the failure", lambda: [f.mesh_name for f in faults], accept=lambda seen: seen == ["other"])
    again: ActorMesh[Counter] = monarch_hpc.get_or_spawn_controller("other", Counter, 50).get(_PATIENCE_S)
    assert again.add.call_one().get(_PATIENCE_S) == 51
    for mesh in (counter, again):
        mesh.stop()


PLACE = """
from monarch_hpc import Actor, context, endpoint, this_host, this_proc

class Where(Actor):
    @endpoint
    def gpus(self): return context().proc.gpus

print("before", context().proc.gpus)
print("beside", this_proc().spawn("where", Where).gpus.call_one().get(), context().proc.gpus)
print("procs", sorted(this_host().spawn_procs({"gpus": 2}).spawn("where", Where).gpus.call().get().values()))
"""


def test_a_program_knows_its_gpus_as_procs_do(programs: Programs) -> None:
    output = programs.run(PLACE, env={"CUDA_VISIBLE_DEVICES": "4,2", DIRECTORY_VARIABLE: ""})  # on its own hosts
    assert "before ('4', '2')" in output and "beside ('4', '2') ('4', '2')" in output
    assert "procs [('2', '4'), ('4', '2')]" in output
