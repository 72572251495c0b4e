"""Notice of the end of a job, and the time after SIGTERM: decided by the head, in no time at all."""

from __future__ import annotations

import pytest

from monarch_hpc.wire.control.allocation import AllocationEnds, ShutDown
from monarch_hpc.wire.control.deadline import AwaitDeadline, DeadlineMet, DeadlineNear, JobEnd, SetJobEnd, Terminated
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.runs import RunOpened
from tests.unit.agent.head.test_head import Party, World

NOTICE_S = 360.0
STOP_S = 5.0


@pytest.fixture
def world() -> World:
    """A head with two hosts."""
    world = World(2)
    world.join(0, 1)
    world.take_all()
    return world


def program(world: World, run: str = "aaaa", *, waits: bool = True) -> Party:
    client = world.open(run)
    client.take()
    if waits:
        world.head.on_client(client, AwaitDeadline())
    return client


def ordered(world: World) -> list[list[Message]]:
    return [[message for message in got if isinstance(message, ShutDown)] for got in world.take_all()]


NOTHING: list[list[Message]] = [[], []]


def test_an_open_run_knows_its_time_first(world: World) -> None:
    world.head.deadline.on_job_end(1000.0)
    world.clock.advance(100.0)
    first, second = world.open("aaaa").take()
    assert first == JobEnd(900.0) and isinstance(second, RunOpened)


def test_a_program_learns_the_time_when_slurm_has_answered(world: World) -> None:
    client = program(world)
    assert client.take() == []
    world.head.deadline.on_job_end(None)
    assert client.take() == [JobEnd(-1.0)]


def test_every_program_gets_notice_once_and_in_time(world: World) -> None:
    one, other = program(world), program(world, "bbbb", waits=False)
    world.head.deadline.on_job_end(3600.0)
    world.clock.advance(3600.0 - NOTICE_S - 1)
    assert (one.take(), other.take()) == ([JobEnd(3600.0)], [JobEnd(3600.0)])
    world.clock.advance(1)
    assert (one.take(), other.take()) == ([DeadlineNear(NOTICE_S, "time limit")],) * 2
    world.head.on_client(one, DeadlineMet())
    world.clock.advance(NOTICE_S - 1)
    assert (one.take(), other.take(), ordered(world)) == ([], [], NOTHING)


def test_a_short_job_gets_notice_when_half_of_it_is_over(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(120.0)
    world.clock.advance(59)
    assert client.take() == [JobEnd(120.0)]
    world.clock.advance(1)
    assert client.take() == [DeadlineNear(60.0, "time limit")]


def test_a_program_that_comes_late_gets_notice_at_once(world: World) -> None:
    world.head.deadline.on_job_end(3600.0)
    world.clock.advance(3500.0)
    assert program(world).take() == [DeadlineNear(100.0, "time limit")]


def test_after_an_extension_there_is_notice_again(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(3600.0)
    world.clock.advance(3600.0 - NOTICE_S)
    client.take()
    tool = Party()
    end_s = world.clock() + 10_000.0
    world.head.deadline._now_s = world.clock
    world.head.on_client(tool, SetJobEnd(end_s))
    assert tool.take() == [JobEnd(10_000.0)] == client.take()
    world.clock.advance(10_000.0 - NOTICE_S)
    assert client.take() == [DeadlineNear(NOTICE_S, "time limit")]


def test_slurms_signal_counts_where_the_end_is_unknown(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(None)
    world.head.deadline.on_warning()
    world.head.deadline.on_warning()
    assert client.take() == [JobEnd(-1.0), DeadlineNear(NOTICE_S, "time limit")]


def test_but_not_where_it_is_known(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(3600.0)
    world.head.deadline.on_warning()
    assert client.take() == [JobEnd(3600.0)]


def test_on_sigterm_the_agents_end_at_once_if_no_program_waits_for_it(world: World) -> None:
    program(world, waits=False)
    world.head.deadline.on_sigterm(30.0, STOP_S)
    assert ordered(world) == [[ShutDown(STOP_S)]] * 2


def test_on_sigterm_they_wait_for_the_programs(world: World) -> None:
    one, other = program(world), program(world, "bbbb")
    world.head.deadline.on_sigterm(30.0, STOP_S)
    assert one.take() == [DeadlineNear(24.0, "SIGTERM")] == other.take()
    world.head.deadline.on_sigterm(30.0, STOP_S)  # Slurm repeats it
    world.head.on_client(one, DeadlineMet())
    assert ordered(world) == NOTHING
    world.head.on_client_lost(other, "it has ended")
    assert ordered(world) == [[ShutDown(STOP_S)]] * 2


def test_but_not_longer_than_slurm_does(world: World) -> None:
    client = program(world)
    world.head.deadline.on_sigterm(5.0, STOP_S)
    assert client.take() == [DeadlineNear(2.5, "SIGTERM")]
    world.clock.advance(2.4)
    assert ordered(world) == NOTHING
    world.clock.advance(0.1)
    assert ordered(world) == [[ShutDown(2.5)]] * 2


def test_sigterm_at_the_announced_end_is_no_other_deadline(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(3600.0)
    world.clock.advance(3600.0 - NOTICE_S)
    world.head.on_client(client, DeadlineMet())
    world.clock.advance(NOTICE_S + 29.0)
    client.take()
    world.head.deadline.on_sigterm(30.0, STOP_S)
    limit = "time-limit", "the job reaches its time limit"
    assert (client.take(), ordered(world)) == ([AllocationEnds(*limit)], [[ShutDown(STOP_S, *limit)]] * 2)


def test_sigterm_long_before_it_is_one(world: World) -> None:
    client = program(world)
    world.head.deadline.on_job_end(3600.0)
    world.clock.advance(3600.0 - NOTICE_S)
    world.head.on_client(client, DeadlineMet())
    client.take()
    world.head.deadline.on_sigterm(30.0, STOP_S)
    assert client.take() == [DeadlineNear(24.0, "SIGTERM")]


def test_an_agent_that_gets_sigterm_alone_ends_alone(world: World) -> None:
    world.head.on_agent(world.agents[1], Terminated())
    world.clock.advance(2.0)  # as long as the others' may take
    assert ordered(world) == NOTHING
    world.clock.advance(1.0)
    assert ordered(world) == [[], [ShutDown(5.0)]]


def test_but_with_all_others_if_the_head_gets_it_too(world: World) -> None:
    program(world)
    world.head.on_agent(world.agents[1], Terminated())
    world.head.deadline.on_sigterm(30.0, STOP_S)
    world.clock.advance(2.0)
    assert ordered(world) == NOTHING
