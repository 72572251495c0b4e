"""Meshes that stay when their run ends: requests about them, their users, their end, and the head of a later term."""

from __future__ import annotations

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.allocation import Status, StatusReport, Vacate, Vacated
from monarch_hpc.wire.control.kept import (
    KeepMesh,
    KeepProcs,
    KeptOpened,
    KeptStopped,
    MeshKept,
    OpenKept,
    ProcsKept,
    StopKept,
)
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, ProcsStopped, StopProcs
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, RunClosed
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, World, spawn
from tests.unit.agent.head.test_inheritance import World as HeirWorld

NAME = "weights"


def ready(rank: int, host: int | None = None) -> ProcReady:
    return ProcReady(
        ProcKey("1", 9, rank, rank if host is None else host), 70 + rank, str(12 + rank), ["tcp://10.1.0.1:9"]
    )


def ended(rank: int, cause: str = "killed by SIGKILL") -> ProcEnded:
    return ProcEnded(ProcKey("1", 9, rank, rank), False, cause, [])


def kept_on(rank: int) -> ProcsKept:
    return ProcsKept("1", 9, NAME, 2, rank)


@pytest.fixture
def world() -> World:
    world = World(2)
    world.join(0, 1)
    world.take_all()
    return world


def begin(world: World) -> Party:
    """A program with a mesh of two procs."""
    program = world.open("1")
    world.head.on_client(program, spawn("1", 9, [0, 1]))
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], ready(rank))
    program.take()
    world.take_all()
    return program


def keep(world: World, program: Party) -> None:
    world.head.on_client(program, KeepMesh("1", 9, NAME, 2, 4))
    assert world.take_all() == [[KeepProcs("1", 9, NAME, 2)]] * 2
    for rank in (0, 1):
        assert program.take() == []
        world.head.on_agent(world.agents[rank], ready(rank))
        program.take()
        world.head.on_agent(world.agents[rank], kept_on(rank))
    assert program.take() == [MeshKept("1", 9, 4)]


def close(world: World, program: Party) -> None:
    """The run is over; its other procs have ended."""
    world.head.on_client(program, CloseRun("1", 0))
    assert world.take_all() == [[CloseRun("1", 0)]] * 2
    for agent in world.agents:
        world.head.on_agent(agent, RunClosed("1"))
    assert program.take() == [RunClosed("1")]
    world.head.on_client_lost(program, "it has ended")
    assert not world.head.state.runs


def user(world: World, run: str = "2", number: int = 1) -> Party:
    program = world.open(run)
    program.take()
    world.head.on_client(program, OpenKept(run, NAME, number))
    return program


OPENED = KeptOpened("1", 9, NAME, 2, 1)


def listed(world: World) -> list[dict[str, object]]:
    asking = Party()
    world.head.on_client(asking, Status())
    (report,) = asking.take()
    assert isinstance(report, StatusReport)
    return report.kept


def test_a_kept_mesh_outlives_its_run_and_is_told_to_whoever_opens_it(world: World) -> None:
    program = begin(world)
    keep(world, program)
    close(world, program)
    assert listed(world) == [
        {"name": NAME, "run": "1", "mesh": 9, "procs": 2, "alive": 2, "hosts": ["n0", "n1"], "programs": 0}
    ]
    assert user(world).take() == [ready(0), ready(1), OPENED]
    world.head.on_agent(world.agents[1], ended(1))
    second = user(world, "3")
    assert second.take() == [ready(0), ready(1), ended(1), OPENED]
    assert listed(world)[0] | {"alive": 1, "hosts": ["n0"], "programs": 2} == listed(world)[0]


def test_the_hosts_of_a_kept_mesh_do_not_move(world: World) -> None:
    program = begin(world)
    keep(world, program)
    close(world, program)
    mover = Party()
    world.head.on_client(mover, Vacate())
    assert mover.take() == [Vacated(f"keeps mesh {NAME}; 'monarch-hpc mesh stop' frees it")]
    assert user(world).take() == [ready(0), ready(1), OPENED]  # and runs begin as before


def test_all_that_use_it_are_told_of_deaths_and_only_the_first_program_gets_output(world: World) -> None:
    program = begin(world)
    keep(world, program)
    one, two = user(world, "2"), user(world, "3")
    one.take(), two.take()
    output = Output(ProcKey("1", 9, 0, 0), "out", ["a line"], 0)
    world.head.on_agent(world.agents[0], output)
    world.head.on_agent(world.agents[0], ended(0))
    assert (program.take(), one.take(), two.take()) == ([output, ended(0)], [ended(0)], [ended(0)])
    world.head.on_client_lost(two, "killed")
    world.head.on_agent(world.agents[1], ended(1))
    assert (one.take(), two.take()) == ([ended(1)], [])


def test_the_owners_death_ends_its_other_procs_only(world: World) -> None:
    program = begin(world)
    world.head.on_client(program, spawn("1", 10, [0]))
    world.take_all()
    keep(world, program)
    world.head.on_client_lost(program, "killed")
    assert world.take_all() == [[CloseRun("1", -1)]] * 2
    for agent in world.agents:
        world.head.on_agent(agent, RunClosed("1"))
    assert user(world).take() == [ready(0), ready(1), OPENED]


def test_it_is_stopped_and_its_name_is_free_again(world: World) -> None:
    program = begin(world)
    keep(world, program)
    using, tool = user(world), Party()
    using.take()
    world.head.on_client(tool, StopKept(NAME, 3.0, 7))
    assert world.take_all() == [[StopProcs("1", 9, [0, 1], 3.0)]] * 2
    late = user(world, "4")
    (refused,) = late.take()
    assert isinstance(refused, Refused) and "is being stopped" in refused.problem and refused.number == 1
    for rank in (0, 1):
        assert tool.take() == []
        stopped = ProcEnded(ProcKey("1", 9, rank, rank), True, "SIGTERM", [])
        world.head.on_agent(world.agents[rank], stopped)
        world.head.on_agent(world.agents[rank], ProcsStopped("1", 9, rank))
        assert using.take() == [stopped]
    assert tool.take() == [KeptStopped(NAME, 7)]
    assert listed(world) == []
    world.head.on_client(tool, StopKept(NAME, 3.0, 8))
    (refused,) = tool.take()
    assert isinstance(refused, Refused) and "no kept mesh has the name" in refused.problem


def test_a_mesh_of_lost_hosts_is_gone_and_what_waits_for_them_is_answered(world: World) -> None:
    program = begin(world)
    world.head.on_client(program, KeepMesh("1", 9, NAME, 2, 4))
    for message in (ready(0), kept_on(0)):
        world.head.on_agent(world.agents[0], message)
    world.head.on_agent(world.agents[1], ready(1))
    early = user(world)
    assert early.take() == []
    world.head.on_agent_lost(world.agents[1], "no power")
    assert MeshKept("1", 9, 4) in program.take()
    told = early.take()
    assert ready(0) in told and OPENED in told
    (lost,) = [one for one in told if isinstance(one, ProcEnded)]
    assert lost.proc.rank == 1 and lost.cause == "n1: the host is lost: no power"
    world.head.on_client(program, StopKept(NAME, 0.0, 5))
    program.take()
    world.head.on_agent_lost(world.agents[0], "no power")
    assert KeptStopped(NAME, 5) in program.take()
    assert listed(world) == []


def test_programs_that_come_after_the_return_of_a_host_learn_why_its_procs_were_lost(world: World) -> None:
    program = begin(world)
    keep(world, program)
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], ready(rank))
    world.head.on_agent_lost(world.agents[1], "no power")
    world.join(1)
    (lost,) = [one for one in user(world).take() if isinstance(one, ProcEnded)]
    assert (lost.proc.rank, lost.cause) == (1, "n1: the host is lost: no power")


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "a/b", "a\n", "ä"])
def test_odd_names_are_refused(world: World, name: str) -> None:
    program = begin(world)
    world.head.on_client(program, KeepMesh("1", 9, name, 2, 4))
    (refused,) = program.take()
    assert isinstance(refused, Refused) and "no name of a kept mesh" in refused.problem
    assert (refused.request, refused.number) == ("KeepMesh", 4)


def test_a_program_keeps_its_own_meshes_only_and_each_name_once(world: World) -> None:
    program, other = begin(world), world.open("2")
    other.take()
    for request in (KeepMesh("1", 9, NAME, 2, 4), KeepMesh("2", 9, NAME, 2, 4), KeepMesh("none", 9, NAME, 2, 4)):
        world.head.on_client(other, request)
        (refused,) = other.take()
        assert isinstance(refused, Refused) and "another program's" in refused.problem
    keep(world, program)
    world.head.on_client(other, spawn("2", 11, [0]))
    world.head.on_client(other, KeepMesh("2", 11, NAME, 1, 5))
    (refused,) = other.take()
    assert isinstance(refused, Refused) and "already, of run 1" in refused.problem
    world.head.on_client(program, KeepMesh("1", 9, "again", 2, 6))
    (refused,) = program.take()
    assert isinstance(refused, Refused)
    for grace_s in (-1.0, float("nan"), 1e9):
        world.head.on_client(other, StopKept(NAME, grace_s))
        (refused,) = other.take()
        assert isinstance(refused, Refused) and "a grace of" in refused.problem


# ---- the head of a later term ----


def test_a_later_head_is_told_by_agents_and_answers_when_it_knows_all() -> None:
    world = HeirWorld()
    opener, tool = world.reopen(run="2"), Party()
    opener.take()
    world.head.on_client(opener, OpenKept("2", NAME, 3))
    world.head.on_client(tool, Status())
    told = [ready(0, 1), ready(1, 2)]
    for one in told:
        world.head.on_agent(world.agents[one.proc.host], kept_on(one.proc.host))
        world.head.on_agent(world.agents[one.proc.host], one)
    assert opener.take() == []
    world.head.inheritance.settle_hosts()
    assert opener.take()[-3:] == [*told, KeptOpened("1", 9, NAME, 2, 3)]
    world.head.inheritance.settle_runs()
    assert not [one for agent in world.agents for one in agent.take() if isinstance(one, StopProcs | CloseRun)]


def test_a_program_that_ends_before_a_later_head_knows_all_uses_nothing() -> None:
    world = HeirWorld()
    world.head.on_agent(world.agents[1], kept_on(1))
    opener = world.reopen(run="2")
    world.head.on_client(opener, OpenKept("2", NAME, 3, again=True))
    world.head.on_client(opener, CloseRun("2", 0))
    world.head.on_client_lost(opener, "it has ended")
    world.head.inheritance.settle_hosts()
    assert world.head.state.kept[NAME].users == set()
    assert world.head.num_programs == 0, "the allocation would never be released as unused"


def test_a_request_that_the_head_before_did_not_answer_is_answered_by_the_next() -> None:
    world = HeirWorld()
    world.head.on_agent(world.agents[1], kept_on(1))
    program = world.reopen([9, 1], run="1")
    program.take()
    assert not world.head.state.runs["1"].meshes
    world.head.on_client(program, KeepMesh("1", 9, NAME, 2, 8))
    world.head.inheritance.settle_hosts()
    assert MeshKept("1", 9, 8) in program.take()
    world.head.on_client(program, OpenKept("1", "gone", 9, again=True))
    (refused,) = program.take()
    assert isinstance(refused, Refused) and refused.number == 9


MESSAGES: list[Message] = [
    KeepMesh("1", 9, NAME, 2, 4),
    KeepProcs("1", 9, NAME, 2),
    kept_on(1),
    MeshKept("1", 9, 4),
    OpenKept("1", NAME, 1, again=True),
    OPENED,
    StopKept(NAME, 3.0),
    KeptStopped(NAME, 0),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_way(message: Message) -> None:
    assert decode(encode(message)) == message
    with pytest.raises(FrameError):
        decode(encode(message).replace(b'"op"', b'"more": 1, "op"'))
