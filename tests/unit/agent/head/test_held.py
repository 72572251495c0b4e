"""Runs whose program is lost: they end, wait for another program, or finish."""

from __future__ import annotations

import pytest

from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, StopProcs
from monarch_hpc.wire.control.questions import AskHosts, Portion, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunOpened, RunTaken
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.tables.calls import CALLS
from tests.unit.agent.head.test_head import Party, World, spawn

LOST = "killed by SIGKILL"


def opening(on_loss: str = "hold", takes: int = 0, *, owner: bool = True) -> OpenRun:
    return OpenRun("1", "train.py", "login", 7, owner, on_loss=on_loss, hold_s=60.0, takes=takes)


def ready(rank: int, pid: int = 70) -> ProcReady:
    return ProcReady(ProcKey("1", 9, rank, rank), pid, "12", ["tcp://10.1.0.1:9"])


def begin(world: World, on_loss: str = "hold") -> Party:
    """A program with a mesh of two procs."""
    program = Party()
    world.head.on_client(program, opening(on_loss))
    world.head.on_client(program, spawn("1", 9, [0, 1]))
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], ready(rank))
    program.take()
    world.take_all()
    return program


@pytest.fixture
def world() -> World:
    world = World(2)
    world.join(0, 1)
    world.take_all()
    return world


def sent(world: World, kind: type[Message]) -> list[list[Message]]:
    return [[message for message in got if isinstance(message, kind)] for got in world.take_all()]


def test_a_held_run_waits_and_ends_when_nobody_comes(world: World) -> None:
    program = begin(world)
    world.head.on_client_lost(program, LOST)
    assert world.take_all() == [[], []]
    world.clock.advance(59.0)
    assert world.take_all() == [[], []]
    world.clock.advance(2.0)
    assert sent(world, CloseRun) == [[CloseRun("1", -1)], [CloseRun("1", -1)]]


def test_a_run_whose_owner_came_after_the_loss_of_its_program_is_held(world: World) -> None:
    program, owner = Party(), Party()
    world.head.on_client(program, opening(owner=False))
    world.head.on_client(program, spawn("1", 9, [0, 1]))
    for rank in (0, 1):
        world.head.on_agent(world.agents[rank], ready(rank))
    world.head.on_client_lost(program, LOST)
    world.head.on_client(owner, opening())
    world.head.on_client_lost(owner, "the run is over")
    world.take_all()
    world.clock.advance(59.0)
    assert world.take_all() == [[], []]
    world.clock.advance(2.0)
    assert sent(world, CloseRun) == [[CloseRun("1", -1)], [CloseRun("1", -1)]]


def test_a_run_whose_owner_never_comes_is_not_held(world: World) -> None:
    program = Party()
    world.head.on_client(program, opening(owner=False))
    world.head.on_client(program, spawn("1", 9, [0, 1]))
    world.head.on_client_lost(program, LOST)
    world.take_all()
    world.clock.advance(3.0)
    assert sent(world, CloseRun) == [[CloseRun("1", -1)], [CloseRun("1", -1)]]


@pytest.mark.parametrize("on_loss", ["stop", "hold"])
def test_by_default_and_without_meshes_a_run_ends_at_once(world: World, on_loss: str) -> None:
    if on_loss == "stop":
        program = begin(world, on_loss)
    else:
        program = Party()
        world.head.on_client(program, opening(on_loss))
    world.head.on_client_lost(program, LOST)
    assert sent(world, CloseRun) == [[CloseRun("1", -1)], [CloseRun("1", -1)]]


def test_a_successor_is_told_of_all_procs_and_gets_their_reports(world: World) -> None:
    program, successor = begin(world), Party()
    world.head.on_client_lost(program, LOST)
    ended = ProcEnded(ProcKey("1", 9, 1, 1), False, "a segmentation fault", [])
    world.head.on_agent(world.agents[1], ended)
    world.head.on_client(successor, opening(takes=1))
    opened, *told = successor.take()
    assert isinstance(opened, RunOpened) and opened.epoch > 1
    assert told == [ready(0), ready(1), ended, RunTaken("1")]
    world.clock.advance(100.0)
    assert world.take_all() == [[], []]  # it does not end any more, nor do the procs
    again = ProcEnded(ProcKey("1", 9, 0, 0), False, "killed", [])
    world.head.on_agent(world.agents[0], again)
    assert successor.take() == [again]
    world.head.on_client(successor, StopProcs("1", 9, [0, 1], 1.0))
    assert sent(world, StopProcs) == [[StopProcs("1", 9, [0, 1], 1.0)]] * 2


def test_one_that_lives_is_told_and_its_procs_stay(world: World) -> None:
    program, successor = begin(world), Party()
    world.head.on_client(successor, opening(takes=-1))
    assert program.closed == "another program has taken over run 1"
    world.head.on_client_lost(program, "we closed it")
    world.clock.advance(100.0)
    assert world.take_all() == [[], []]


def test_of_two_that_saw_the_same_owner_one_rules(world: World) -> None:
    program, one, two = begin(world), Party(), Party()
    world.head.on_client_lost(program, LOST)
    world.head.on_client(one, opening(takes=1))
    world.head.on_client(two, opening(takes=1))
    assert isinstance(one.take()[-1], RunTaken) and not one.closed
    (refused,) = two.take()
    assert isinstance(refused, Refused) and refused.problem == "another program has taken over run 1"


def test_there_must_be_a_run_to_take_over(world: World) -> None:
    late = Party()
    world.head.on_client(late, opening(takes=1))
    (refused,) = late.take()
    assert isinstance(refused, Refused) and "there is no run 1 to take over" in refused.problem


@pytest.mark.parametrize(("on_loss", "hold_s"), [("wait", 1.0), ("hold", -1.0), ("hold", float("nan"))])
def test_what_cannot_be_done_is_refused(world: World, on_loss: str, hold_s: float) -> None:
    program = Party()
    world.head.on_client(program, OpenRun("1", "train.py", "login", 7, True, on_loss=on_loss, hold_s=hold_s))
    (refused,) = program.take()
    assert isinstance(refused, Refused) and f"{on_loss!r} for {hold_s} s" in refused.problem


def test_procs_of_a_lost_host_are_not_told_of(world: World) -> None:
    program, successor = begin(world), Party()
    world.head.on_client_lost(program, LOST)
    world.head.on_agent_lost(world.agents[1], "no heartbeat for 15.0 s")
    world.head.on_client(successor, opening(takes=1))
    assert successor.take()[1:] == [ready(0), RunTaken("1")]


def test_finish_ends_no_run_whose_procs_may_work(world: World) -> None:
    program = begin(world, "finish")
    world.head.on_client_lost(program, LOST)
    for _ in range(3):  # hosts that do not answer may have procs that work
        (asked,) = [message for message in world.agents[0].take() if isinstance(message, AskHosts)]
        world.head.on_agent(world.agents[0], Rows(asked.ticket, [Portion("host n0", CALLS.render([], {}))], [], []))
        world.clock.advance(1.0)
    assert sent(world, CloseRun) == [[], []]
