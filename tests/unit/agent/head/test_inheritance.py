"""The head of a later term: agents and programs tell it again what the head before knew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.agent.head.head import Head
from monarch_hpc.testing import ManualClock
from monarch_hpc.wire.control.allocation import HostEnded, Join, Roster, Status, StatusReport
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, SpawnFailed, SpawnProcs, StopProcs
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunOpened
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, entry
from tests.unit.agent.head.test_head import World as FirstTerm

EPOCH, MEMBER = 5, 6


class World:
    """Three hosts, of which the first was the head of term 1, and the second is that of term 2."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.agents = [Party() for _ in range(3)]
        self.head = Head(
            3,
            self.clock,
            self.clock.call_later,
            5.0,
            lambda _hosts, _missing: None,
            lambda: None,
            lambda _recording: None,
            10_000,
            360.0,
            rank=1,
            term=2,
        )
        self.head.inheritance.begin([entry(0), entry(2)])
        for rank in (1, 2):
            self.head.on_join(self.agents[rank], Join(entry(rank), ""))
            self.agents[rank].take()

    def reopen(self, *meshes: list[int], run: str = "run") -> Party:
        """A program comes back."""
        client = Party()
        self.head.on_client(client, OpenRun(run, "train.py", "login", 7, True, EPOCH, MEMBER, list(meshes)))
        return client


@pytest.fixture
def world() -> World:
    return World()


def ready(rank: int, host: int, run: str = "run", mesh: int = 9) -> ProcReady:
    return ProcReady(ProcKey(run, mesh, rank, host), 55, "77", ["tcp://10.1.0.1:8"])


def test_a_run_goes_on_with_its_epoch_its_member_and_its_procs(world: World) -> None:
    world.head.on_agent(world.agents[1], ready(1, 1))
    client = world.reopen([9, 0, 1, 2])
    assert client.take() == [RunOpened("run", EPOCH, MEMBER, [entry(1), entry(2)]), ready(1, 1)]
    ended = ProcEnded(ProcKey("run", 9, 2, 2), False, "signal SIGKILL", [])
    world.head.on_agent(world.agents[2], ended)
    assert client.take() == [ended]
    tool = Party()
    world.head.on_client(tool, Status())
    (report,) = tool.take()
    assert isinstance(report, StatusReport)
    assert [host["state"] for host in report.hosts] == ["lost", "alive", "alive"]
    assert [host["head"] for host in report.hosts] == [False, True, False]
    assert [run["procs"] for run in report.runs] == [1]


def test_numbers_of_a_term_lie_above_those_before(world: World) -> None:
    client = Party()
    world.head.on_client(client, OpenRun("new", "train.py", "login", 7, True))
    (opened,) = client.take()
    assert isinstance(opened, RunOpened)
    assert (opened.epoch, opened.member) == ((1 << 20) + 1, (1 << 20) + 1)


def test_hosts_that_do_not_come_back_are_lost(world: World) -> None:
    client = world.reopen([9, 0, 1])
    client.take()
    world.head.inheritance.settle_hosts()
    (lost,) = client.take()
    assert isinstance(lost, HostEnded)
    assert (lost.host, "did not join the head of term 2" in lost.cause) == (0, True)
    world.head.inheritance.settle_runs()
    late = world.reopen([3, 0, 2], run="late")
    assert [message.host for message in late.take() if isinstance(message, HostEnded)] == [0]


def test_the_last_heads_host_is_lost_first(world: World) -> None:
    client = world.reopen([9, 0, 1])
    client.take()
    world.head.inheritance.settle_hosts([2])
    assert client.take() == []
    world.head.inheritance.settle_hosts([0])
    late = world.reopen([3, 0, 1], run="late")
    assert [[each.host for each in party.take() if isinstance(each, HostEnded)] for party in (client, late)] == [
        [0],
        [0],
    ]


def test_a_host_that_comes_back_in_time_is_not_lost(world: World) -> None:
    client = world.reopen([9, 0, 1])
    world.head.on_join(world.agents[0], Join(entry(0), ""))
    client.take()
    world.head.inheritance.settle_hosts()
    assert client.take() == []


def test_what_nobody_comes_back_for_is_ended(world: World) -> None:
    world.head.on_agent(world.agents[1], ready(0, 1, run="gone"))
    world.head.on_agent(world.agents[2], ready(1, 2, mesh=8))
    world.reopen([9, 1])
    world.agents[1].take()
    world.head.inheritance.settle_runs()
    assert world.agents[1].take() == [CloseRun("gone", -1), StopProcs("run", 8, [1, 2], 5.0)]


def spawn(world: World, client: Party, mesh: int, hosts: list[int], *, again: bool = False) -> SpawnProcs:
    order = SpawnProcs("run", mesh, hosts, list(range(len(hosts))), 1, len(hosts), {}, [], [], "/", 0o22, "own", 60.0)
    order = replace(order, again=again)
    world.head.on_client(client, order)
    return order


def orders(world: World, rank: int) -> list[Message]:
    """The orders that an agent has been given."""
    return [message for message in world.agents[rank].take() if not isinstance(message, Roster)]


def test_orders_wait_for_hosts_that_may_still_join(world: World) -> None:
    client = world.reopen()
    client.take()
    order = spawn(world, client, 9, [0, 1])
    stop = StopProcs("run", 9, [0, 1], 5.0)
    world.head.on_client(client, stop)
    other = spawn(world, client, 10, [2])
    assert (orders(world, 1), orders(world, 2), client.take()) == ([], [other], [])
    world.head.on_join(world.agents[0], Join(entry(0), ""))
    assert orders(world, 0) == orders(world, 1) == [order, stop]


def test_orders_for_hosts_that_do_not_join_fail(world: World) -> None:
    client = world.reopen()
    client.take()
    order = spawn(world, client, 9, [0, 1])
    world.head.inheritance.settle_hosts()
    assert orders(world, 1) == [order]
    failed, lost = client.take()
    assert isinstance(lost, SpawnFailed) and "did not join the head of term 2" in lost.cause
    assert isinstance(failed, HostEnded)


def test_an_order_that_was_under_way_is_given_again_and_others_are_refused(world: World) -> None:
    client = world.reopen([9, 1, 2])
    client.take()
    order = spawn(world, client, 9, [1, 2], again=True)
    assert orders(world, 1) == [order]
    spawn(world, client, 9, [1, 2])
    failed = [message for message in client.take() if isinstance(message, SpawnFailed)]
    assert ["exists already" in message.cause for message in failed] == [True, True]


@pytest.mark.parametrize("mesh", [[], [9], [-1, 0], [9, -1], [1 << 64, 0]])
def test_a_strange_mesh_is_refused(world: World, mesh: list[int]) -> None:
    (refused,) = world.reopen(mesh).take()
    assert isinstance(refused, Refused) and "a mesh has a number and hosts" in refused.problem


def first_head(num_hosts: int) -> Head:
    """A head of term 1, on host 0, whose hosts have all joined."""
    world = FirstTerm(num_hosts)
    world.join(*range(num_hosts))
    return world.head


def voter(head: Head, run: str, host: str = "login", *, votes: bool = True) -> Party:
    """The command that owns a run."""
    owner = Party()
    head.on_client(owner, OpenRun(run, "train.py", host, 7, owner=True, votes=votes))
    return owner


@pytest.mark.parametrize("num_hosts", [2, 4, 16])
def test_the_owner_of_the_oldest_open_run_has_a_voice(num_hosts: int) -> None:
    head = first_head(num_hosts)
    assert head.inheritance.owner() is None
    voter(head, "silent", votes=False)
    first, second = voter(head, "first"), voter(head, "second")
    assert head.inheritance.owner() is first
    head.on_client(first, CloseRun("first", 0))
    assert head.inheritance.owner() is second, "a run that ends has none"
    head.on_client_lost(second, "killed")
    assert head.inheritance.owner() is None


@pytest.mark.parametrize(
    ("num_hosts", "host", "counts"),
    [(2, "n0", True), (2, "n1", False), (2, "n1.site", False), (4, "n1", True), (17, "login", False)],
)
def test_an_owner_that_may_be_lost_with_half_of_the_hosts_has_no_voice(num_hosts: int, host: str, counts: bool) -> None:
    head = first_head(num_hosts)
    owner = voter(head, "run", host)
    assert head.inheritance.owner() is (owner if counts else None)


def test_an_owner_that_closes_the_channel_of_its_voice_may_come_back() -> None:
    """Clients that have opened a run are barred once they are lost."""
    head = first_head(2)
    owner, offer = voter(head, "run"), Party()
    head.on_client(offer, Status())
    assert head.knows(owner) and not head.knows(offer)


def test_it_is_complete_once_each_host_has_joined_or_is_lost() -> None:
    world = World()
    assert not world.head.inheritance.complete  # the host of the head before may still come
    world.head.inheritance.settle_hosts([0])
    assert world.head.inheritance.complete
