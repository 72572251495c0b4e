"""Lost hosts at the head: who is told what, and no news of an earlier agent counts for a later one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from monarch_hpc.agent.head.events import HostReturnChanged
from monarch_hpc.agent.head.hosts.returns import ReturnWork
from monarch_hpc.supervision.relaunch import HostStanding, LaunchLimit, Relaunches
from monarch_hpc.wire.control.allocation import (
    DrainHost,
    HostEnded,
    HostEntry,
    HostReturned,
    HostStillLost,
    Join,
    Roster,
    ShutDown,
    ShutDownDone,
)
from monarch_hpc.wire.control.procs import ProcReady, SpawnFailed, SpawnProcs
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, World, entry, spawn

CUT = "the connection ended"


class Work:
    """Slurm and its steps, which do what they are told to."""

    def __init__(self, tries: int = 2) -> None:
        self.asked: list[Callable[[HostStanding], None]] = []
        self.launched: list[tuple[int, Callable[..., None]]] = []
        self.ended = 0
        decide = Relaunches(tries, 2.0, 60.0, LaunchLimit(2, 6))
        self.work = ReturnWork(decide, self._ask, self._launch, 120.0)

    def _ask(self, _host: str, _addresses: Sequence[str], answered: Callable[[HostStanding], None]) -> None:
        self.asked.append(answered)

    def _launch(self, host: HostEntry, ended: Callable[[str, bool], None]) -> Callable[[], None]:
        def end(cause: str, *, refused: bool = False) -> None:
            ended(cause, refused)

        self.launched.append((host.rank, end))
        return self._end

    def _end(self) -> None:
        self.ended += 1

    def answer(self, standing: HostStanding = HostStanding.UP) -> None:
        self.asked.pop(0)(standing)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def world(work: Work) -> World:
    world = World(3)
    world.head.returns.begin(work.work)
    world.join(0, 1, 2)
    return world


@pytest.fixture
def client(world: World) -> Party:
    client = world.open("1")
    client.take()
    return client


def lose(world: World, rank: int, cause: str = CUT) -> Party:
    """Lose an agent; return the party for its successor."""
    world.head.on_agent_lost(world.agents[rank], cause)
    world.clock.advance(0.0)
    world.agents[rank] = Party()
    return world.agents[rank]


def join(world: World, rank: int, incarnation: str) -> HostEntry:
    host = replace(entry(rank), incarnation=incarnation)
    world.head.on_join(world.agents[rank], Join(host, ""))
    return host


def stages(world: World) -> list[str]:
    return [event.what for event in world.events if isinstance(event, HostReturnChanged)]


def test_programs_learn_of_hosts_that_were_added(world: World, client: Party) -> None:
    added = Party()
    host = replace(entry(4), job_id=8, first_rank=4)
    world.head.on_join(added, Join(host, "", 5))
    assert client.take() == [HostReturned("1", host)]
    assert added.take() == [Roster([entry(0), entry(1), entry(2), host], 5)]
    assert world.head.state.roster.missing() == {}


def test_a_host_is_lost_launched_and_back(world: World, client: Party, work: Work) -> None:
    lose(world, 1)
    assert client.take() == [HostEnded("1", 1, CUT, returning=True)]
    assert world.head.state.roster.absence(1) == f"the host is lost: {CUT}"
    work.answer()
    assert [rank for rank, _ in work.launched] == [1]
    host = join(world, 1, "b")
    assert client.take() == [HostReturned("1", host)]
    assert world.head.state.roster.usable(1)
    assert world.agents[2].take()[-1] == Roster([entry(0), host, entry(2)], 3)
    # The end of the step of an agent that has joined is no failure of its start.
    lose(world, 1)
    assert client.take() == [HostEnded("1", 1, CUT, incarnation="b", returning=True)]
    work.launched[0][1]("srun ended")
    work.answer()
    assert [rank for rank, _ in work.launched] == [1, 1]
    work.launched[0][1]("srun ended")
    assert stages(world)[-1] == "its agent is started again, attempt 1"


def test_the_end_of_the_old_connection_is_not_the_end_of_the_new_agent(world: World, client: Party, work: Work) -> None:
    old = world.agents[1]
    lose(world, 1)
    work.answer()
    join(world, 1, "b")
    client.take()
    assert world.head.on_agent_lost(old, CUT) is None
    assert (client.take(), world.head.state.roster.usable(1)) == ([], True)


def test_failed_attempts_are_told_and_the_last_one_for_good(world: World, client: Party, work: Work) -> None:
    lose(world, 1)
    client.take()
    work.answer()
    work.launched[0][1]("srun ended: exit code 1")
    why = "attempt 1 of 2: srun ended: exit code 1"
    assert client.take() == [HostStillLost("1", 1, why, given_up=False)]
    assert not work.asked
    world.clock.advance(2.0)
    work.answer()
    world.clock.advance(120.0)
    assert work.ended == 1, "an attempt that takes too long is ended"
    work.launched[1][1]("srun ended: signal 15")
    assert client.take() == [HostStillLost("1", 1, "attempt 2 of 2: srun ended: signal 15", given_up=True)]
    (slot,) = [slot for slot in world.head.state.roster.all() if slot.entry.rank == 1]
    assert (slot.returning, stages(world)[-1]) == ("", "")


def test_an_attempt_that_slurm_refuses_for_now_is_told_and_uses_up_none(
    world: World, client: Party, work: Work
) -> None:
    lose(world, 1)
    client.take()
    for number in range(6):
        work.answer()
        work.launched[number][1]("srun ended: exit code 1", refused=True)
        news = client.take()
        assert bool(news) is (number >= 4), "at first it may be back within seconds"
        for told in news:
            assert isinstance(told, HostStillLost) and not told.given_up
            assert told.cause == "Slurm starts no step for it yet: srun ended: exit code 1"
        world.clock.advance(60.0)
    work.answer()
    assert stages(world)[-1] == "its agent is started again, attempt 1"


def test_a_silent_host_is_not_waited_for(world: World, client: Party, work: Work) -> None:
    lose(world, 1, "No route to host")
    (ended,) = client.take()
    assert isinstance(ended, HostEnded) and not ended.returning
    assert work.asked == []
    world.clock.advance(2.0)
    for pause in (4.0, 8.0):
        work.answer(HostStanding.NOT_UP)
        (late,) = client.take()
        assert isinstance(late, HostStillLost) and not late.given_up
        world.clock.advance(pause)
    assert len(stages(world)) == 2, "what stays the same is written down once"
    work.answer(HostStanding.GONE)
    (late,) = client.take()
    assert isinstance(late, HostStillLost) and late.given_up and work.launched == []


def test_who_left_on_request_or_with_the_allocation_does_not_come_back(world: World, client: Party, work: Work) -> None:
    world.head.on_agent(world.agents[1], ShutDownDone({"n1": 0}))
    lose(world, 1)
    (ended,) = client.take()
    assert isinstance(ended, HostEnded) and (ended.kind, ended.returning) == ("stopped", False)
    lose(world, 2)
    world.head.on_client(client, ShutDown(1.0))
    work.answer()
    assert work.launched == []


def test_a_drained_host_that_is_back_stays_drained(world: World, client: Party, work: Work) -> None:
    world.head.on_client(client, DrainHost("n1", "bad GPU"))
    lose(world, 1)
    work.answer()
    client.take()
    join(world, 1, "b")
    assert not world.head.state.roster.usable(1)
    assert "bad GPU" in world.head.state.roster.absence(1)


def test_a_mesh_without_hosts_may_come_back_elsewhere(world: World, client: Party) -> None:
    world.head.on_client(client, spawn("1", 7, [1]))
    world.head.on_agent(world.agents[1], ProcReady(ProcKey("1", 7, 0, 1), 9, "1", []))
    lose(world, 1)
    client.take()
    world.agents[2].take()
    again = replace(spawn("1", 7, [2]), restarts=1)
    world.head.on_client(client, again)
    assert client.take() == [] and world.agents[2].take() == [again]
    world.head.on_client(client, replace(spawn("1", 8, [2]), restarts=1))
    (refused,) = client.take()
    assert isinstance(refused, SpawnFailed) and "does not exist" in refused.cause
    assert not [message for message in world.agents[2].take() if isinstance(message, SpawnProcs)]
