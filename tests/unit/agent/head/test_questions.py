"""A question is passed on once for all hosts, and to programs; it gets one answer, even if some are late or lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Ask, AskHosts, AskSql, LastText, Portion, Rows, SqlAnswer
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, Recording
from monarch_hpc.wire.tables.answer import Sources
from monarch_hpc.wire.tables.pieces import AnswerPart, HostQuestion, parse_part
from monarch_hpc.wire.tables.procs import PROCS, ProcRow
from tests.unit.agent.head.test_head import MAX_ANSWER_BYTES, Party, World

QUESTION = Ask(0, "procs", {}, 2.0)
OF_PROGRAM = Portion("the program of run 1", PROCS.render([ProcRow("1", -1, 0, "login", 7, "ready", "", 9, 0.5)], {}))


def hosts(*sources: str) -> list[Portion]:
    return [Portion(f"host {source}", "[]") for source in sources]


@pytest.fixture
def world() -> World:
    world = World(3)
    world.join(0, 1, 2)
    world.take_all()
    return world


def passed_on(number: int = 1, num_hosts: int = 3) -> list[list[Message]]:
    """The messages to the agents: one, to the head's own agent, which asks the others."""
    return [[AskHosts(number, "procs", {}, 1.6, 0, 3, [[0, num_hosts]])], [], []]


def test_hosts_are_asked_through_the_tree_and_programs_directly(world: World) -> None:
    program, tool = world.open("1"), Party()
    world.take_all(), program.take()
    world.head.on_client(tool, QUESTION)
    assert world.take_all() == passed_on()
    assert program.take() == [replace(QUESTION, ticket=1)]
    world.head.on_agent(world.agents[0], Rows(1, hosts("n0", "n1"), ["host n2"], []))
    assert tool.got == []
    world.head.on_client(program, Rows(1, [OF_PROGRAM], [], []))
    assert tool.got == [Rows(0, [*hosts("n0", "n1"), OF_PROGRAM], ["host n2"], [])]
    world.clock.advance(10.0)
    assert len(tool.got) == 1


def test_who_is_late_is_named(world: World) -> None:
    program, tool = world.open("1"), Party()
    world.head.on_client(tool, QUESTION)
    world.clock.advance(3.0)
    (answer,) = tool.got
    assert isinstance(answer, Rows) and answer.portions == []
    assert sorted(answer.missing) == ["host n0", "host n1", "host n2", "the program of run 1"]
    world.head.on_client(program, Rows(1, [OF_PROGRAM], [], []))
    world.head.on_client(program, Rows(77, [OF_PROGRAM], [], []))
    assert len(tool.got) == 1


def test_hosts_and_programs_have_less_time_than_the_head_takes_at_most(world: World) -> None:
    program, tool = world.open("1"), Party()
    world.take_all(), program.take()
    world.head.on_client(tool, replace(QUESTION, timeout_s=1000.0))
    assert world.take_all() == [[AskHosts(1, "procs", {}, 24.0, 0, 3, [[0, 3]])], [], []]
    assert program.take() == [replace(QUESTION, ticket=1, timeout_s=30.0)]
    world.clock.advance(30.0)
    assert len(tool.got) == 1


def test_a_program_that_is_lost_or_refuses_is_named(world: World) -> None:
    first, second, tool = world.open("1"), world.open("2"), Party()
    world.head.on_client(tool, QUESTION)
    world.head.on_client_lost(first, "killed")
    world.head.on_client(second, Rows(1, [], [], []))
    world.head.on_agent(world.agents[0], Refused("", "failed", "AskHosts", 0, 1))
    (answer,) = tool.got
    assert isinstance(answer, Rows)
    assert answer.missing == ["the program of run 1", "host n0", "host n1", "host n2"]


def test_a_host_that_was_lost_before_is_named_and_not_asked(world: World) -> None:
    world.head.on_agent_lost(world.agents[2], "no heartbeat")
    tool = Party()
    world.head.on_client(tool, QUESTION)
    assert world.take_all() == passed_on(num_hosts=2)
    world.head.on_agent(world.agents[0], Rows(1, hosts("n0", "n1"), [], []))
    assert tool.got == [Rows(0, hosts("n0", "n1"), ["host n2"], [])]


def test_a_host_that_cannot_have_procs_is_left_alone() -> None:
    world = World(2)
    world.join(0)
    world.join(1, problem="no shared directory")
    world.take_all()
    tool = Party()
    world.head.on_client(tool, QUESTION)
    assert world.take_all() == [[AskHosts(1, "procs", {}, 1.6, 0, 2, [[0, 1]])], []]
    world.head.on_agent(world.agents[0], Rows(1, hosts("n0"), [], []))
    assert tool.got == [Rows(0, hosts("n0"), [], [])]


def test_a_tool_that_is_gone_gets_no_answer(world: World) -> None:
    tool = Party()
    world.head.on_client(tool, QUESTION)
    world.head.on_client_lost(tool, "it left")
    world.head.on_agent(world.agents[0], Rows(1, [], [], []))
    world.clock.advance(10.0)
    assert tool.got == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"table": "proc"}, "there is no table 'proc'; there are: actors, calls, channels, clocks"),
        ({"where": {"mess": 1}}, "rows of procs cannot be chosen by mess = 1; they can by: run (str), mesh (int)"),
        ({"where": {"mesh": "1"}}, "by mesh = '1'"),
        ({"table": "calls", "where": {"scene": {}}}, "by scene = {}"),
    ],
)
def test_a_question_that_no_process_can_answer_is_refused(world: World, changes: dict[str, Any], words: str) -> None:
    tool = Party()
    world.head.on_client(tool, replace(QUESTION, **changes))
    (answer,) = tool.take()
    assert isinstance(answer, Refused) and answer.request == "Ask" and words in answer.problem
    assert world.take_all() == [[], [], []]


class Memory:
    """A stand-in for the memory of a program on the head's machine."""

    def __init__(self) -> None:
        self.closed = False

    @property
    def sources(self) -> Sources:
        return {} if self.closed else {"procs": lambda: PROCS.read(OF_PROGRAM.rows)}

    def close(self) -> None:
        self.closed = True


HERE, THERE = (Recording("1", place, "n0", 7, 3, "feed") for place in ("here", "there"))


def test_a_program_whose_memory_is_here_is_not_asked(world: World) -> None:
    memory = Memory()
    world.observer = lambda recording: memory if recording == HERE else None  # type: ignore[assignment, return-value]
    program, tool = world.open("1"), Party()
    world.take_all(), program.take()
    world.head.on_client(program, HERE)
    world.head.on_client(tool, QUESTION)
    assert world.take_all() == passed_on() and program.take() == []
    world.head.on_agent(world.agents[0], Rows(1, [], [], []))
    assert tool.take() == [Rows(0, [OF_PROGRAM], [], [])]
    world.head.on_client_lost(program, "killed")
    assert memory.closed


def test_the_owner_of_a_run_answers_for_a_program_on_its_machine(world: World) -> None:
    program, owner, tool = world.open("1", owner=False), Party(), Party()
    world.head.on_client(program, THERE)
    world.head.on_client(owner, OpenRun("1", "run", "login", 1, owner=True))  # attaches later than a fast program
    assert THERE in owner.take()
    world.head.on_client(owner, THERE)  # confirms that the owner can read it
    world.take_all(), program.take()
    world.head.on_client(tool, QUESTION)
    assert program.take() == [] and owner.take() == [replace(QUESTION, ticket=1)]
    world.head.on_client(owner, Rows(1, [OF_PROGRAM], [], []))
    world.head.on_agent(world.agents[0], Rows(1, [], [], []))
    assert tool.take() == [Rows(0, [OF_PROGRAM], [], [])]
    second = world.open("1", owner=False)
    world.head.on_client(second, replace(THERE, incarnation="beef"))
    assert owner.take() == [replace(THERE, incarnation="beef")]
    second.take()
    world.head.on_client(tool, QUESTION)
    assert second.take() == [replace(QUESTION, ticket=2)] and program.take() == []  # no process can read its memory


def test_a_later_owner_is_asked_for_what_it_can_read(world: World) -> None:
    program, first, second = world.open("1", owner=False), Party(), Party()
    world.head.on_client(program, THERE)
    for owner in (first, second):
        world.head.on_client(owner, OpenRun("1", "run", "login", 1, owner=True))
        assert THERE in owner.take()
    other = world.open("1", owner=False)
    world.head.on_client(other, replace(THERE, incarnation="beef"))
    assert first.take() == [] and second.take() == [replace(THERE, incarnation="beef")]


def test_questions_without_end_are_refused_and_asked_again_later(world: World) -> None:
    tool = Party()
    for _ in range(20):
        world.head.on_client(tool, QUESTION)
    refused = tool.take()
    assert len(refused) == 4 and all(isinstance(answer, Refused) and answer.request == "Ask" for answer in refused)
    assert [len(asked) for asked in world.take_all()] == [16, 0, 0]
    world.clock.advance(3.0)
    assert len(tool.take()) == 16
    world.head.on_client(tool, QUESTION)
    assert tool.take() == [] and world.take_all() == passed_on(17)


def test_rows_beyond_the_limit_are_left_out_and_their_process_is_named(world: World) -> None:
    tool = Party()
    world.head.on_client(tool, QUESTION)
    large = [Portion("host n0", "x" * (MAX_ANSWER_BYTES - 1)), Portion("host n1", "xx"), Portion("host n2", "x")]
    world.head.on_agent(world.agents[0], Rows(1, large, [], []))
    assert tool.take() == [Rows(0, [large[0], large[2]], [], ["host n1"])]


LAST = LastText("SELECT 1", json.dumps({"parts": [], "kept": [], "known": {}}), "json")


@pytest.mark.parametrize(
    "answer", [SqlAnswer(0, body="{}"), SqlAnswer(0, problem="too large"), SqlAnswer(0, absent="no")]
)
def test_the_last_text_is_run_when_all_hosts_have_answered(world: World, answer: SqlAnswer) -> None:
    tool, part = Party(), AnswerPart("AAAA", {}, [[0, 3]])
    world.head.on_client(tool, replace(QUESTION, table="handled", pieces=HostQuestion([]).render(), last=[LAST]))
    world.take_all()
    rows = Rows(1, [Portion("host n0", part.render())], [], [])
    world.head.on_agent(world.agents[0], rows)
    ((asked,), _, _) = world.take_all()
    assert isinstance(asked, AskSql) and tool.got == []
    assert (asked.sql, asked.form, json.loads(asked.given)["parts"]) == ("SELECT 1", "json", ["AAAA"])
    world.head.on_agent(world.agents[0], replace(answer, ticket=asked.ticket))
    (got,) = tool.got
    assert isinstance(got, Rows) and got.ticket == 0
    assert (got.finished, got.problem) == (answer.body, answer.problem)
    assert (parse_part(got.portions[0].rows).results == "AAAA") == bool(answer.absent)
    world.clock.advance(60.0)
    assert len(tool.got) == 1


def test_the_last_text_is_not_run_without_a_host(world: World) -> None:
    tool = Party()
    world.head.on_client(tool, replace(QUESTION, table="handled", pieces=HostQuestion([]).render(), last=[LAST]))
    world.take_all()
    world.head.on_agent(world.agents[0], Rows(1, [Portion("host n0", AnswerPart("A").render())], ["host n1"], []))
    assert world.take_all() == [[], [], []]
    (got,) = tool.got
    assert isinstance(got, Rows) and got.missing == ["host n1"] and not got.finished
