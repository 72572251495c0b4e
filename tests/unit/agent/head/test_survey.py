"""A survey asks all peers and gets one reply, even if some are late or lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.wire.control.calls import Calls, CallsReport, ProcCalls, Recording, Scene
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun
from tests.unit.agent.head.test_head import Party, World


def told(name: str) -> ProcCalls:
    return ProcCalls("run", 1, 0, name, 1, "ready", "", Scene("", name, [], [], [], [], 0, []))


@pytest.fixture
def world() -> World:
    world = World(2)
    world.join(0, 1)
    world.take_all()
    return world


def test_all_are_asked_and_their_answers_put_together(world: World) -> None:
    program, tool = world.open("1"), Party()
    world.take_all(), program.take()
    world.head.on_client(tool, Calls(0, 2.0))
    asked = [*world.take_all(), program.take()]
    assert asked == [[Calls(1, 2.0)]] * 3
    for rank, agent in enumerate(world.agents):
        world.head.on_agent(agent, CallsReport(1, [told(f"host{rank}")], []))
    assert tool.got == []
    world.head.on_client(program, CallsReport(1, [], []))
    assert tool.got == [CallsReport(0, [told("host0"), told("host1")], [])]
    world.clock.advance(10.0)
    assert len(tool.got) == 1


def test_who_is_late_or_lost_is_named(world: World) -> None:
    program, tool = world.open("1"), Party()
    world.head.on_client(tool, Calls(0, 2.0))
    world.head.on_agent(world.agents[0], CallsReport(1, [told("host0")], []))
    world.head.on_agent_lost(world.agents[1], "no heartbeat")
    assert tool.got == []
    world.clock.advance(3.0)
    (report,) = tool.got
    assert isinstance(report, CallsReport)
    assert report.procs == [told("host0")]
    assert sorted(report.missing) == ["host n1", "the program of run 1"]
    world.head.on_client(program, CallsReport(1, [told("late")], []))
    world.head.on_client(program, CallsReport(77, [told("odd")], []))
    assert len(tool.got) == 1


def test_a_host_that_was_lost_before_is_named_and_not_waited_for(world: World) -> None:
    world.head.on_agent_lost(world.agents[1], "no heartbeat")
    tool = Party()
    world.head.on_client(tool, Calls(0, 2.0))
    world.head.on_agent(world.agents[0], CallsReport(1, [], []))
    assert tool.got == [CallsReport(0, [], ["host n1"])]


def test_a_tool_that_is_gone_gets_no_answer(world: World) -> None:
    tool = Party()
    world.head.on_client(tool, Calls(0, 2.0))
    world.head.on_client_lost(tool, "it left")
    for agent in world.agents:
        world.head.on_agent(agent, CallsReport(1, [], []))
    world.clock.advance(10.0)
    assert tool.got == []


class Memory:
    """A stand-in for the memory of a program on the head's machine."""

    def __init__(self) -> None:
        self.closed = False

    def report(self) -> list[ProcCalls]:
        return [] if self.closed else [told("program")]

    def close(self) -> None:
        self.closed = True


HERE, THERE = (Recording("1", place, "n0", 7, 3, "feed") for place in ("here", "there"))


def test_a_program_whose_memory_is_here_is_not_asked(world: World) -> None:
    memory = Memory()
    world.witness = lambda recording: memory if recording == HERE else None  # type: ignore[assignment, return-value]
    program, tool = world.open("1"), Party()
    world.take_all(), program.take()
    world.head.on_client(program, HERE)
    world.head.on_client(tool, Calls(0, 2.0))
    assert world.take_all() == [[Calls(1, 2.0)]] * 2 and program.take() == []
    for agent in world.agents:
        world.head.on_agent(agent, CallsReport(1, [], []))
    assert tool.take() == [CallsReport(0, [told("program")], [])]
    world.head.on_client_lost(program, "killed")
    assert memory.closed


def test_the_owner_of_a_run_answers_for_a_program_on_its_machine(world: World) -> None:
    program, owner, tool = world.open("1", owner=False), Party(), Party()
    world.head.on_client(program, THERE)
    world.head.on_client(owner, OpenRun("1", "run", "login", 1, owner=True))  # attaches later than a fast program
    assert THERE in owner.take()
    world.head.on_client(owner, THERE)  # confirms that the owner can read it
    world.take_all(), program.take()
    world.head.on_client(tool, Calls(0, 2.0))
    assert program.take() == [] and owner.take() == [Calls(1, 2.0)]
    world.head.on_client(owner, CallsReport(1, [told("program")], []))
    for agent in world.agents:
        world.head.on_agent(agent, CallsReport(1, [], []))
    assert tool.take() == [CallsReport(0, [told("program")], [])]
    second = world.open("1", owner=False)
    world.head.on_client(second, replace(THERE, incarnation="beef"))
    assert owner.take() == [replace(THERE, incarnation="beef")]
    second.take()
    world.head.on_client(tool, Calls(0, 2.0))
    assert second.take() == [Calls(2, 2.0)] and program.take() == []  # no process can read that one's memory


def test_questions_without_end_are_refused_and_asked_again_later(world: World) -> None:
    tool = Party()
    for _ in range(70):
        world.head.on_client(tool, Calls(0, 2.0))
    refused = tool.take()
    assert len(refused) == 6 and all(isinstance(answer, Refused) and answer.request == "Calls" for answer in refused)
    assert [len(asked) for asked in world.take_all()] == [64, 64]
    world.clock.advance(3.0)
    assert len(tool.take()) == 64
    world.head.on_client(tool, Calls(0, 2.0))
    assert tool.take() == [] and [len(asked) for asked in world.take_all()] == [1, 1]
