from __future__ import annotations

import pytest

from monarch_hpc.agent.head.head import Head
from monarch_hpc.testing.clock import ManualClock
from monarch_hpc.wire.control.allocation import (
    DrainHost,
    FreeHosts,
    HostEntry,
    HostsFreed,
    Join,
    ShutDown,
    ShutDownDone,
    StatusReport,
    Vacate,
    Vacated,
)
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, RunOpened
from tests.unit.agent.head.test_idle import Party


class World:
    """A head of four hosts, all joined, and a tool."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ready: list[tuple[list[int], dict[int, str]]] = []
        self.head = Head(
            4,
            self.clock,
            self.clock.call_later,
            5.0,
            lambda hosts, missing: self.ready.append(([host.rank for host in hosts], missing)),
            lambda: None,
            lambda _: None,
            1 << 20,
            0.0,
        )
        self.agents = [Party() for _ in range(4)]
        self.tool = Party()
        for rank in range(4):
            self.join(rank)
        for agent in self.agents:
            agent.got.clear()

    def join(self, rank: int) -> None:
        entry = HostEntry(rank, f"n{rank}", [], 100 + rank, "3.11.7", "0.1.0", [0], [], 1 << 30, {})
        self.head.on_join(self.agents[rank], Join(entry, ""))

    def free(self, *ranks: int) -> None:
        self.head.on_client(self.tool, FreeHosts(list(ranks), 5.0))

    def end(self, rank: int) -> None:
        self.head.on_agent(self.agents[rank], ShutDownDone({f"n{rank}": 0}))
        self.head.on_agent_lost(self.agents[rank], "it was told to leave")


@pytest.fixture
def world() -> World:
    return World()


def test_hosts_leave_and_are_not_missed(world: World) -> None:
    world.free(3, 1)
    assert [agent.got for agent in world.agents] == [[], [ShutDown(5.0)], [], [ShutDown(5.0)]]
    world.end(3)
    assert world.tool.got == []
    world.end(1)
    assert world.tool.got == [HostsFreed({"n3": 0, "n1": 0})]
    assert world.ready[-1] == ([0, 2], {})
    program = Party()
    world.head.on_client(program, OpenRun("run", "train.py", "login", 7, True))
    (opened,) = program.got
    assert isinstance(opened, RunOpened) and [host.rank for host in opened.hosts] == [0, 2]


def test_a_host_that_was_given_back_cannot_join_again(world: World) -> None:
    world.free(3)
    world.end(3)
    world.agents[3] = Party()
    world.join(3)
    assert world.agents[3].got == [Refused("", "host 3 was given back")]


def test_a_lost_host_is_forgotten_at_once(world: World) -> None:
    world.head.on_agent_lost(world.agents[2], "no heartbeat")
    world.free(2)
    assert world.tool.got == [HostsFreed({})]
    assert world.ready[-1] == ([0, 1, 3], {})


def test_an_agent_that_does_not_end_does_not_hold_up_the_answer(world: World) -> None:
    world.free(2)
    world.clock.advance(60.0)
    assert world.tool.got == [HostsFreed({"n2": -1})]


@pytest.mark.parametrize(("ranks", "words"), [((0, 1), "the head is there"), ((4,), "host 4 is not in")])
def test_what_cannot_leave(world: World, ranks: tuple[int, ...], words: str) -> None:
    world.free(*ranks)
    (refused,) = world.tool.got
    assert isinstance(refused, Refused) and words in refused.problem
    assert [agent.got for agent in world.agents] == [[], [], [], []]
    world.tool.got.clear()
    world.head.shut_down(5.0, None)
    world.free(1)
    assert isinstance(world.tool.got[0], Refused)


def test_a_drained_host_stays_and_gets_no_new_procs(world: World) -> None:
    world.head.on_client(world.tool, DrainHost("n2", "bad GPU"))
    (shown,) = world.tool.got
    assert isinstance(shown, StatusReport)
    assert [host["drained"] for host in shown.hosts] == ["", "", "bad GPU", ""]
    program = Party()
    world.head.on_client(program, OpenRun("run", "train.py", "login", 7, True))
    (opened,) = program.got
    assert isinstance(opened, RunOpened) and [host.rank for host in opened.hosts] == [0, 1, 3]
    assert "drained: bad GPU; 'monarch-hpc node undrain n2'" in world.head.state.roster.absence(2)
    assert world.head.state.roster.missing() == {}
    world.head.on_client(world.tool, DrainHost("n2", ""))
    assert world.head.state.roster.usable(2)
    world.tool.got.clear()
    world.head.on_client(world.tool, DrainHost("n9", "x"))
    assert isinstance(world.tool.got[0], Refused)


def test_no_run_begins_while_somebody_moves_the_hosts(world: World) -> None:
    """A run that began between the question and the decision ended with the allocation."""
    program = Party()
    world.head.on_client(world.tool, Vacate())
    world.head.on_client(program, OpenRun("r1", "x", "login", 1, owner=True))
    assert world.tool.got == [Vacated("")]
    (refused,) = program.got
    assert isinstance(refused, Refused) and refused.problem == "its hosts are about to join another allocation"
    world.head.on_client_lost(world.tool, "killed before it has decided")
    world.head.on_client(program, OpenRun("r1", "x", "login", 1, owner=True))
    assert isinstance(program.got[-1], RunOpened)
    world.head.on_client(world.tool, Vacate())
    assert world.tool.got[-1] == Vacated("is used by run r1; its hosts can move once that is over")
