"""A program uses several allocations: side by side, one after the other, and each is stopped by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

import monarch_hpc
from monarch_hpc import (
    Actor,
    ActorDied,
    ActorFailed,
    ActorMesh,
    Channel,
    HostMesh,
    Port,
    ProcMesh,
    SupervisionError,
    endpoint,
)
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.mesh.host import all_hosts
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.runs import CloseRun
from monarch_hpc.wire.frames import Frame, Kind

_PATIENCE_S = 60.0
_NUM_BYTES = 1 << 20


class Member(Actor):
    """An actor that calls others."""

    @endpoint
    def home(self) -> str:
        return monarch_hpc.context().proc.allocation

    @endpoint
    def ask(self, other: ActorMesh[Member]) -> list[str]:
        return list(other.home.call().get(_PATIENCE_S).values())

    @endpoint
    def tree_to(self, allocation: str) -> bool:
        return current_runtime().casts.route_to(allocation) is not None

    @endpoint
    def cast_to(self, other: ActorMesh[Log], number: int) -> tuple[list[int], int]:
        """Write to others, directly to one of them first; return their answers, and how many casts that was."""
        before = current_runtime().casts.num_sent
        other.slice(hosts=1, gpus=1).write.call_one(-number).get(_PATIENCE_S)
        answers = other.write.call(number)
        other.slice(hosts=1, gpus=1).write.call_one(number + 1).get(_PATIENCE_S)
        return list(answers.get(_PATIENCE_S).values()), current_runtime().casts.num_sent - before

    @endpoint
    def break_in(self, addresses: list[str], allocation: str, other: ActorMesh[Log]) -> list[str]:
        """Ask the agent for what a link does not allow, and return what becomes of that."""
        runtime = current_runtime()
        line = runtime.node.connect(addresses, allocation=allocation)
        line.send(Frame(Kind.CONTROL, body=encode(CloseRun("a run", 0))))
        wait_until("the end of the channel", lambda: line.error is not None, _PATIENCE_S)
        runtime.casts.route_through(addresses, allocation, "another run")
        try:
            other.read.call().get(_PATIENCE_S)
        except SupervisionError as error:
            return [str(line.error), str(error)]
        return [str(line.error)]

    @endpoint
    def tell(self, port: Port[str]) -> None:
        port.send(monarch_hpc.context().proc.allocation)

    @endpoint
    def spawn_there(self, procs: ProcMesh) -> list[str]:
        return list(procs.spawn("guest", Member).home.call().get(_PATIENCE_S).values())

    @endpoint
    def start_there(self, hosts: HostMesh) -> list[str]:
        self.procs = hosts.spawn_procs()
        return list(self.procs.spawn("guest", Member).home.call().get(_PATIENCE_S).values())

    @endpoint
    def measure(self, data: bytes) -> int:
        return len(data)

    @endpoint
    def fabric_to(self, other: ActorMesh[Member]) -> str:
        """Send to another actor until a fabric is chosen, and return that."""
        proc = other._callee.procs[other._callee.ranks[0]].incarnation

        def settled() -> bool:
            assert other.measure.call_one(bytes(_NUM_BYTES)).get(_PATIENCE_S) == _NUM_BYTES
            return bool(current_runtime().node.channels[proc].why)

        wait_until("the choice of a fabric", settled)
        return current_runtime().node.channels[proc].fabric

    @endpoint
    def places(self) -> tuple[str, str]:
        return repr(monarch_hpc.this_host()), repr(monarch_hpc.hosts())


def tenancy_of(num_hosts: int, **settings: object) -> Tenancy:
    config = load({"procs.stop_s": 1.0, "agent.grace_s": 1.0, **settings}).config
    return Controller.instance().tenancies.open(lambda stack: stack.enter_context(open_local(num_hosts, config)))


def hosts_of(tenancy: Tenancy) -> HostMesh:
    return all_hosts(Controller.instance().door, tenancy.allocation)


@pytest.fixture
def pair() -> Iterator[tuple[Tenancy, Tenancy]]:
    """Two allocations, of one host and of two."""
    yield tenancy_of(1), tenancy_of(2)
    Controller.close_any()


def test_actors_of_two_allocations_call_each_other_and_one_ends_alone(
    pair: tuple[Tenancy, Tenancy], faults: list[MeshFailure]
) -> None:
    a, b = pair
    keys = [(one.directory / "key").read_bytes() for one in pair]
    assert keys[0] != keys[1]
    here, there = (hosts_of(one).spawn_procs().spawn("member", Member) for one in pair)
    assert here.ask.call_one(there).get(_PATIENCE_S) == [b.allocation] * 2
    assert set(map(tuple, there.ask.call(here).get(_PATIENCE_S).values())) == {(a.allocation,)}
    port, receiver = Channel[str].open()
    for member, one in ((here, a), (there.slice(hosts=1), b)):
        member.tell.call_one(port).get(_PATIENCE_S)
        assert receiver.recv().get(_PATIENCE_S) == one.allocation
    second = hosts_of(b).slice(hosts=1).spawn_procs()
    assert here.spawn_there.call_one(second).get(_PATIENCE_S) == [b.allocation]
    assert here.start_there.call_one(hosts_of(b).slice(hosts=0)).get(_PATIENCE_S) == [b.allocation]
    assert there.slice(hosts=1).places.call_one().get(_PATIENCE_S) == (
        "<HostMesh {}: local1>",
        "<HostMesh {hosts: 2}: local0, local1>",
    )
    hosts_of(b).shutdown().get()
    assert not b.directory.exists()
    with pytest.raises(ActorFailed) as caught:  # of an actor that lives
        here.ask.call_one(there).get(_PATIENCE_S)
    assert isinstance(caught.value.exception, SupervisionError)
    assert here.home.call_one().get(_PATIENCE_S) == a.allocation
    # Another one takes its place, and is linked as well.
    third = hosts_of(tenancy_of(1)).spawn_procs().spawn("member", Member)
    assert here.ask.call_one(third).get(_PATIENCE_S) == [third.home.call_one().get(_PATIENCE_S)]
    assert faults == []


def test_an_actor_casts_into_another_allocation_through_its_tree(faults: list[MeshFailure]) -> None:
    a, b = (tenancy_of(num, **{"transport.cast_direct": 2}) for num in (1, 2))
    try:
        members = hosts_of(a).spawn_procs({"gpus": 2}).spawn("member", Member)
        here, thief = members.slice(gpus=0), members.slice(gpus=1)
        there = hosts_of(b).spawn_procs({"gpus": 2}).spawn("log", Log)
        wait_until("a way into the tree", lambda: here.tree_to.call_one(b.allocation).get(_PATIENCE_S), _PATIENCE_S)
        for number in (10, 20):
            assert here.cast_to.call_one(there, number).get(_PATIENCE_S) == ([number] * 4, 1)
        last = there.slice(hosts=1, gpus=1).read.call_one().get(_PATIENCE_S)
        assert last == [-10, 10, 11, -20, 20, 21], "a cast and direct messages keep their order"
        assert there.slice(hosts=0, gpus=0).read.call_one().get(_PATIENCE_S) == [10, 20]
        control, cast = thief.break_in.call_one(list(b.ready.addresses), b.allocation, there).get(_PATIENCE_S)
        assert "does not accept CONTROL frames" in control
        assert "a run that its sender has no link to" in cast
        assert there.slice(hosts=0, gpus=0).read.call_one().get(_PATIENCE_S) == [10, 20]
        hosts_of(b).shutdown().get()
        wait_until("no way any more", lambda: not here.tree_to.call_one(b.allocation).get(_PATIENCE_S), _PATIENCE_S)
        with pytest.raises(ActorFailed):
            here.cast_to.call_one(there, 30).get(_PATIENCE_S)
        assert faults == []
    finally:
        Controller.close_any()


class Log(Actor):
    """Keeps what was written."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    @endpoint
    def write(self, number: int) -> int:
        self.lines.append(number)
        return number

    @endpoint
    def read(self) -> list[int]:
        return self.lines

    @endpoint
    def nap(self) -> None:
        time.sleep(_PATIENCE_S)


def test_casts_take_the_tree_of_their_allocation_until_it_ends(
    pair: tuple[Tenancy, Tenancy], monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure]
) -> None:
    casts = current_runtime().casts
    monkeypatch.setattr(casts, "max_direct", 1)
    logs = [hosts_of(one).spawn_procs({"gpus": 2}).spawn("log", Log) for one in pair]
    assert [len(log) for log in logs] == [2, 4]
    num_sent = casts.num_sent
    for number in range(0, 90, 3):
        for log in logs:
            log.write.broadcast(number)
            log.flatten("rank").slice(rank=1).write.broadcast(number + 1)
            last = log.write.call(number + 2)
    last.get(_PATIENCE_S)
    for log in logs:
        for rank, lines in enumerate(log.read.call().get(_PATIENCE_S).values()):
            assert lines == [number for number in range(90) if rank == 1 or number % 3 != 1]
    assert casts.num_sent >= num_sent + 4 * 30, "some calls of many procs were not cast"
    # Casts in flight to one allocation end with it; those to the other go on, and so do later ones.
    waiting = logs[0].nap.call()
    hosts_of(pair[0]).shutdown().get()
    with pytest.raises(SupervisionError):
        waiting.get(_PATIENCE_S)
    num_sent = casts.num_sent
    assert list(logs[1].write.call(1).get(_PATIENCE_S).values()) == [1] * 4
    assert casts.num_sent == num_sent + 1
    with pytest.raises(SupervisionError):
        logs[0].write.call(1).get(_PATIENCE_S)
    assert faults == []


def test_all_allocations_are_reached_over_one_fabric_which_outlives_the_first(pair: tuple[Tenancy, Tenancy]) -> None:
    here, there = (hosts_of(one).slice(hosts=0).spawn_procs().spawn("member", Member) for one in pair)
    program = monarch_hpc.this_proc().spawn("member", Member)
    assert [program.fabric_to.call_one(one).get(_PATIENCE_S) for one in (here, there)] == ["ucx/shm"] * 2
    assert here.fabric_to.call_one(there).get(_PATIENCE_S) == "ucx/shm"
    hosts_of(pair[0]).shutdown()
    assert program.fabric_to.call_one(there).get(_PATIENCE_S) == "ucx/shm"
    third = hosts_of(tenancy_of(1)).spawn_procs().spawn("member", Member)
    assert program.fabric_to.call_one(third).get(_PATIENCE_S) == "ucx/shm"
    assert there.fabric_to.call_one(third).get(_PATIENCE_S) == "ucx/shm"


def test_an_allocation_that_dies_takes_nothing_else_with_it(
    pair: tuple[Tenancy, Tenancy], faults: list[MeshFailure], capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    here, there = (hosts_of(one).spawn_procs(name="staff").spawn("member", Member) for one in pair)
    assert here.ask.call_one(there).get(_PATIENCE_S) == [b.allocation] * 2
    for pid in agents(b):
        os.kill(pid, signal.SIGKILL)
    wait_until("the news", lambda: Controller.instance().tenancies.get(b.allocation) is None)
    # First of all: a death that a call reports, which is sent while the channel ends, reaches no hook.
    wait_until("the report of the deaths", lambda: len(faults) == 2)
    with pytest.raises(ActorDied, match=f"{b.name} is gone"):
        there.slice(hosts=0).home.call_one().get(_PATIENCE_S)
    with pytest.raises(RuntimeError, match=f"{b.name} is gone or out of reach: .*; start the program again"):
        HostMesh(b.allocation, there._region, b.hosts).spawn_procs()
    assert here.home.call_one().get(_PATIENCE_S) == a.allocation
    assert all(b.name in failure.cause for failure in faults)
    assert repr(monarch_hpc.hosts()) == "<HostMesh {hosts: 1}: local0>"


def agents(tenancy: Tenancy) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"monarch_hpc.agent" in words and str(tenancy.directory).encode() in words:
                found.append(int(entry))
    return found


def test_a_part_of_the_hosts_is_stopped_and_shut_down_by_itself(pair: tuple[Tenancy, Tenancy]) -> None:
    hosts = hosts_of(pair[1])
    both = hosts.spawn_procs().spawn("member", Member)
    assert len(both.home.call().get(_PATIENCE_S)) == 2
    hosts.slice(hosts=0).stop("not needed").get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped: not needed"):
        both.slice(hosts=0).home.call_one().get(_PATIENCE_S)
    assert both.slice(hosts=1).home.call_one().get(_PATIENCE_S) == pair[1].allocation
    again = hosts.slice(hosts=0).spawn_procs()
    assert again.initialized.get(_PATIENCE_S)
    # Two views of a job's hosts: each stops what it has started.
    mine, yours = hosts.apart(), hosts.apart()
    first, second = mine.spawn_procs(), yours.spawn_procs()
    assert first.initialized.get(_PATIENCE_S) and second.initialized.get(_PATIENCE_S)
    mine.stop().get(_PATIENCE_S)
    assert len(second.spawn("member", Member).home.call().get(_PATIENCE_S)) == 2
    with pytest.raises(ActorDied):
        first.spawn("member", Member).home.call().get(_PATIENCE_S)
    hosts.slice(hosts=1).shutdown()
    with pytest.raises(RuntimeError, match="local1 was shut down, and starts no procs"):
        hosts.spawn_procs()
    assert hosts.slice(hosts=0).spawn_procs().initialized.get(_PATIENCE_S)
    begun_s = time.monotonic()
    hosts.slice(hosts=0).shutdown()
    with pytest.raises(RuntimeError, match="these hosts were shut down"):
        hosts.spawn_procs()
    assert not pair[1].directory.exists() and pair[0].directory.exists()
    assert time.monotonic() - begun_s < _PATIENCE_S


def test_this_host_is_the_machine_of_the_program() -> None:
    first = monarch_hpc.this_host()
    other = hosts_of(tenancy_of(2))
    assert monarch_hpc.this_host().entries == first.entries
    assert monarch_hpc.hosts().entries == first.entries
    first.shutdown()
    assert [entry.name for entry in monarch_hpc.hosts().entries] == [entry.name for entry in other.entries]
    other.shutdown()
    with monarch_hpc.this_host().spawn_procs() as procs:
        assert procs.initialized.get(_PATIENCE_S)
    Controller.close_any()
