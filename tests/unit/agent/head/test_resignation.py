"""The end of the head's Slurm job: hosts of other jobs go on, and those of its own end before it resigns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monarch_hpc.agent.head.hosts.resignation import ResignWork
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.wire.control.allocation import AllocationEnds, HostEnded, Join, ShutDown, ShutDownDone
from monarch_hpc.wire.control.deadline import Terminated
from monarch_hpc.wire.control.succession import Resign
from tests.unit.agent.head.test_head import Party, World, entry

WHY = Death(DeathKind.TIME_LIMIT, "Slurm ended job 7: at its time limit")
STOP_S = 5.0


class Grown:
    """A head on host 0 of job 7, which has host 1, too; hosts 2 and 3 are of jobs 8 and 9."""

    def __init__(self) -> None:
        self.handed: list[Callable[[bool], None]] = []
        self.resigned = 0
        work = ResignWork(self.handed.append, self._resign)
        self.world = World(2, lambda _host, answered: answered(WHY), work)
        self.head = self.world.head
        self.agents = self.world.agents
        self.agents += [Party(), Party()]
        for rank, job, first in ((0, 7, 0), (1, 7, 0), (2, 8, 2), (3, 9, 3)):
            host = replace(entry(rank), job_id=job, first_rank=first)
            self.head.on_join(self.agents[rank], Join(host, "", rank + 1))
        self.client = self.world.open("aaaa")
        self.take()

    def _resign(self) -> None:
        self.resigned += 1

    def take(self) -> list[list[object]]:
        """What the agents have got since the last call, without the roster."""
        self.client.take()
        kinds = (ShutDown, Resign)
        return [[message for message in got if isinstance(message, kinds)] for got in self.world.take_all()]


@pytest.fixture
def grown() -> Grown:
    """See there."""
    return Grown()


def test_the_hosts_of_its_job_end_and_then_it_resigns(grown: Grown) -> None:
    grown.head.deadline.on_sigterm(30.0, STOP_S)
    assert grown.take() == [[], [], [], []] and len(grown.handed) == 1  # the others can elect an heir first
    roster = grown.head.state.roster
    assert [roster.usable(rank) for rank in range(4)] == [False, False, True, True]
    assert roster.absence(0) == "job 7 ends, and n0 with it"
    grown.handed[0](True)
    order = ShutDown(STOP_S, "time-limit", WHY.cause)
    assert grown.take() == [[order], [order], [], []]
    grown.head.on_agent(grown.agents[1], ShutDownDone({"n1": 0}))
    grown.head.on_agent_lost(grown.agents[1], "it has left")
    assert grown.resigned == 0
    grown.client.take()
    grown.head.on_agent(grown.agents[0], ShutDownDone({"n0": 0}))
    (ended,) = grown.client.take()
    assert isinstance(ended, HostEnded) and (ended.host, ended.kind) == (0, "time-limit")
    assert grown.take() == [[], [], [Resign(WHY.cause)], [Resign(WHY.cause)]]
    assert (grown.resigned, grown.world.ended) == (1, 0)
    grown.world.clock.advance(60.0)
    assert (grown.resigned, grown.take()) == (1, [[], [], [], []])


def test_it_does_not_wait_for_hosts_that_do_not_answer(grown: Grown) -> None:
    grown.head.deadline.on_sigterm(30.0, STOP_S)
    grown.handed[0](True)
    grown.world.clock.advance(STOP_S + 1)
    assert grown.resigned == 1
    told = [message for message in grown.client.take() if isinstance(message, HostEnded)]
    assert sorted(message.host for message in told) == [0, 1]


def test_without_an_heir_all_end(grown: Grown) -> None:
    grown.head.deadline.on_sigterm(30.0, STOP_S)
    grown.handed[0](False)
    told = [message for message in grown.client.take() if isinstance(message, AllocationEnds)]
    assert told == [AllocationEnds("time-limit", WHY.cause)]
    order = ShutDown(STOP_S, "time-limit", WHY.cause)
    assert grown.take() == [[order]] * 4 and grown.resigned == 0


def test_a_job_that_ends_at_the_same_time_does_not_stay(grown: Grown) -> None:
    grown.head.on_agent(grown.agents[2], Terminated())
    grown.head.on_agent(grown.agents[3], Terminated())
    grown.head.deadline.on_sigterm(30.0, STOP_S)
    assert grown.handed == []
    assert grown.take() == [[ShutDown(STOP_S, "time-limit", WHY.cause)]] * 4


def test_nothing_changes_while_all_is_released(grown: Grown) -> None:
    grown.head.shut_down(STOP_S, None)
    grown.take()
    grown.head.deadline.on_sigterm(30.0, STOP_S)
    assert grown.handed == [] and grown.take() == [[], [], [], []]
