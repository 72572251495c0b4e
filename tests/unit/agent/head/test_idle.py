from __future__ import annotations

import subprocess

import pytest

from monarch_hpc.agent.head.head import Head
from monarch_hpc.agent.head.idle import IdleRelease, IdleTime
from monarch_hpc.testing.clock import ManualClock
from monarch_hpc.wire.control.allocation import HostEntry, Join, ShutDown, ShutDownDone, Status
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunClosed

LIMIT_S = 900.0


def test_the_notice_comes_a_minute_before_the_end() -> None:
    time = IdleTime(LIMIT_S)
    seen = [(time.pass_time(5.0, used=False), time.told, time.left_s) for _ in range(180)]
    assert next(step for step in seen if step[1]) == (False, True, 60.0)
    assert seen[167:169] == [(False, True, 60.0), (False, True, 55.0)]
    assert seen[-1] == (True, True, 0.0)


def test_any_use_begins_anew() -> None:
    time = IdleTime(LIMIT_S)
    while not time.told:
        time.pass_time(5.0, used=False)
    assert not time.pass_time(5.0, used=True)
    assert (time.told, time.left_s) == (False, LIMIT_S)


def test_a_tick_that_took_hours_cannot_skip_the_notice() -> None:
    time = IdleTime(LIMIT_S)
    assert not time.pass_time(7200.0, used=False)
    assert (time.told, time.left_s) == (True, 60.0)


class Party:
    """The far end of a link."""

    backlogged = False
    fabric, why = "tcp", "agents use sockets"

    def __init__(self) -> None:
        self.got: list[Message] = []

    def send(self, message: Message) -> None:
        self.got.append(message)

    def close(self, reason: str) -> None:
        pass


class World:
    """A head of two hosts that may be idle for 15 minutes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.released: list[str] = []
        self.cancelled = 0
        self.stopped_s = 0.0
        self.head = Head(
            2, self.clock, self.clock.call_later, 5.0, lambda *_: None, self._end, lambda _: None, 1 << 20, 0.0
        )
        self.agents = [Party(), Party()]
        self.idle = IdleRelease(self.head, LIMIT_S, self._now, self.clock.call_later, self._release, self._cancel)

    def _now(self) -> float:
        return self.clock() + self.stopped_s

    def _release(self, why: str) -> None:
        self.released.append(why)
        self.head.shut_down(5.0, None)

    def _end(self) -> None:
        self.idle.finish()

    def _cancel(self) -> subprocess.Popen[bytes]:
        self.cancelled += 1
        return subprocess.Popen(["true"])

    def join(self) -> None:
        for rank, agent in enumerate(self.agents):
            entry = HostEntry(rank, f"n{rank}", [], 100 + rank, "3.11.7", "0.1.0", [0], [], 1 << 30, {})
            self.head.on_join(agent, Join(entry, ""))

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.advance(1.0)

    def leave(self) -> None:
        for rank, agent in enumerate(self.agents):
            if any(isinstance(message, ShutDown) for message in agent.got):
                self.head.on_agent(agent, ShutDownDone({f"n{rank}": 0}))


@pytest.fixture
def world() -> World:
    world = World()
    world.join()
    return world


def test_an_allocation_that_nothing_uses_is_released(world: World) -> None:
    world.wait(LIMIT_S - 10)
    assert world.released == [] and 0 < world.head.idle_left_s < 60
    world.wait(20)
    assert world.released == ["no run and no program for 15 min (config key 'slurm.idle_min')"]
    world.leave()
    assert world.cancelled == 0


def test_asking_for_the_status_is_no_use(world: World) -> None:
    for _ in range(100):
        world.wait(10)
        tool = Party()
        world.head.on_client(tool, Status())
        world.head.on_client_lost(tool, "it is answered")
    assert len(world.released) == 1


def test_time_counts_from_the_last_agent_on() -> None:
    world = World()
    world.wait(2 * LIMIT_S)
    assert world.released == []
    world.join()
    world.wait(LIMIT_S - 10)
    assert world.released == []
    world.wait(20)
    assert len(world.released) == 1


def test_never_under_a_run_nor_under_a_program_whose_run_is_over(world: World) -> None:
    program = Party()
    world.head.on_client(program, OpenRun("run", "train.py", "login", 7, True))
    world.wait(3 * LIMIT_S)
    world.head.on_client(program, CloseRun("run", 0))
    for agent in world.agents:
        world.head.on_agent(agent, RunClosed("run"))
    assert world.head.state.runs == {}
    world.wait(3 * LIMIT_S)
    assert world.released == [] and world.head.idle_left_s == -1.0
    world.head.on_client_lost(program, "it has ended")
    world.wait(LIMIT_S - 10)
    assert world.released == []
    world.wait(20)
    assert len(world.released) == 1


def test_a_run_shorter_than_a_tick_is_a_use(world: World) -> None:
    world.wait(LIMIT_S - 10)
    program = Party()
    world.head.on_client(program, OpenRun("run", "train.py", "login", 7, True))
    world.head.on_client(program, CloseRun("run", 0))
    for agent in world.agents:
        world.head.on_agent(agent, RunClosed("run"))
    world.head.on_client_lost(program, "it has ended")
    world.wait(LIMIT_S - 10)
    assert world.released == []


def test_a_suspended_job_was_not_idle(world: World) -> None:
    world.wait(60)
    world.stopped_s = 4 * LIMIT_S
    world.wait(LIMIT_S - 90)
    assert world.released == []


def test_the_job_is_cancelled_when_a_host_was_lost(world: World) -> None:
    world.head.on_agent_lost(world.agents[1], "no heartbeat")
    world.wait(LIMIT_S + 10)
    world.leave()
    assert (len(world.released), world.cancelled) == (1, 1)
