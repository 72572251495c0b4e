"""Lost hosts: programs are told once, with Slurm's cause if it has one in time, else with what the link said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monarch_hpc.agent.head.events import HostLossExplained
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.supervision import Liveness
from monarch_hpc.wire.control.allocation import AllocationEnds, HostEnded, ShutDown, ShutDownDone
from monarch_hpc.wire.control.deadline import Terminated
from monarch_hpc.wire.control.procs import ProcEnded
from monarch_hpc.wire.control.runs import CloseRun, RunClosed
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import Party, World, spawn

KILLED = "signal 9 (SIGKILL)"
DOWN = Death(DeathKind.NODE_FAILURE, "Slurm says that host1 is DOWN*")


class Slurm:
    """A Slurm that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Callable[[Death | None], None]]] = []

    def ask(self, host: str, answered: Callable[[Death | None], None]) -> None:
        self.asked.append((host, answered))

    def answer(self, death: Death | None) -> None:
        (_, answered) = self.asked.pop(0)
        answered(death)


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def world(slurm: Slurm) -> World:
    world = World(3, slurm.ask)
    world.join(0, 1, 2)
    return world


@pytest.fixture
def client(world: World) -> Party:
    client = world.open("1")
    client.take()
    world.take_all()
    return client


def explained(world: World) -> list[HostLossExplained]:
    return [event for event in world.events if isinstance(event, HostLossExplained)]


def test_the_cause_comes_from_slurm_and_is_told_once(world: World, client: Party, slurm: Slurm) -> None:
    world.head.on_agent_lost(world.agents[1], "no heartbeat for 15.0 s")
    assert client.take() == [] and not world.head.state.roster.usable(1)
    name = world.head.state.roster.name(1)
    assert [host for host, _ in slurm.asked] == [name]
    slurm.answer(DOWN)
    cause = f"no heartbeat for 15.0 s; {DOWN.cause}"
    assert client.take() == [HostEnded("1", 1, cause, "node-failure")]
    assert explained(world) == [HostLossExplained(1, name, DeathKind.NODE_FAILURE, cause)]
    assert (world.head.state.roster.absence(1), slurm.asked) == (f"the host is lost: {cause}", [])


@pytest.mark.parametrize(
    ("life", "cause", "kind"),
    [
        (Liveness.DEAD, "no heartbeat for 15.0 s", "network"),
        (Liveness.SUSPECT, "the connection ended", "network"),
        (Liveness.ALIVE, "No route to host", "network"),
        (Liveness.ALIVE, "Connection timed out", "network"),
        (Liveness.ALIVE, "the connection ended", "unknown"),
    ],
)
def test_a_slurm_that_knows_nothing(
    world: World, client: Party, slurm: Slurm, life: Liveness, cause: str, kind: str
) -> None:
    world.head.on_life(world.agents[1], life)
    world.head.on_agent_lost(world.agents[1], cause)
    slurm.answer(None)
    assert client.take() == [HostEnded("1", 1, cause, kind)]


def test_a_program_that_has_gone_meanwhile_is_told_nothing(world: World, client: Party, slurm: Slurm) -> None:
    world.head.on_agent_lost(world.agents[1], "the connection ended")
    world.head.on_client_lost(client, "it left")
    slurm.answer(DOWN)
    assert client.take() == [] and len(explained(world)) == 1


def killed(rank: int, host: int = 1) -> ProcEnded:
    return ProcEnded(ProcKey("1", 9, rank, host), False, KILLED, ["last"], "signal")


@pytest.mark.parametrize("death", [DOWN, None])
def test_procs_that_were_killed_have_slurms_cause_if_it_was_it(
    world: World, client: Party, slurm: Slurm, death: Death | None
) -> None:
    world.head.on_client(client, spawn("1", 9, [0, 1], per_host=2))
    for rank in (2, 3):
        world.head.on_agent(world.agents[1], killed(rank))
    assert client.take() == []
    assert [host for host, _ in slurm.asked] == [world.head.state.roster.name(1)], "once for all procs of a host"
    slurm.answer(death)
    cause, kind = (KILLED, "signal") if death is None else (f"{KILLED}; {death.cause}", "node-failure")
    assert client.take() == [replace(killed(rank), cause=cause, kind=kind) for rank in (2, 3)]
    world.head.on_agent(world.agents[0], killed(0, host=0))
    assert len(slurm.asked) == 1, "a later one asks again"


def test_procs_that_end_otherwise_are_told_at_once(world: World, client: Party, slurm: Slurm) -> None:
    world.head.on_client(client, spawn("1", 9, [1], per_host=2))
    ends = [replace(killed(0), cause="signal 11 (SIGSEGV)"), replace(killed(1), expected=True)]
    for ended in ends:
        world.head.on_agent(world.agents[1], ended)
    assert (client.take(), slurm.asked) == (ends, [])


def test_a_run_that_closes_meanwhile_is_told_nothing(world: World, client: Party, slurm: Slurm) -> None:
    world.head.on_client(client, spawn("1", 9, [1]))
    world.head.on_agent(world.agents[1], killed(0))
    world.head.on_client(client, CloseRun("1", 0))
    for agent in world.agents:
        world.head.on_agent(agent, RunClosed("1"))
    assert client.take() == [RunClosed("1")]
    slurm.answer(DOWN)
    assert client.take() == []


def test_an_agent_that_has_said_goodbye_was_stopped(world: World, client: Party, slurm: Slurm) -> None:
    world.head.on_agent(world.agents[1], ShutDownDone({world.head.state.roster.name(1): 0}))
    world.head.on_agent_lost(world.agents[1], "it left: it was told to leave")
    assert client.take() == [HostEnded("1", 1, "it left: it was told to leave", "stopped")]
    assert slurm.asked == []


def test_a_host_that_slurm_takes_ends_with_its_reason(world: World, client: Party, slurm: Slurm) -> None:
    agent, name = world.agents[1], world.head.state.roster.name(1)
    world.head.on_agent(agent, Terminated())
    world.clock.advance_to_next()
    slurm.answer(DOWN)
    assert agent.take() == [ShutDown(5.0, "node-failure", DOWN.cause)]
    world.head.on_agent(agent, ShutDownDone({name: 0}))
    world.head.on_agent_lost(agent, "it left")
    assert client.take() == [HostEnded("1", 1, f"it left; {DOWN.cause}", "node-failure")]
    assert slurm.asked == [], "it has been asked for this end"


@pytest.mark.parametrize("death", [Death(DeathKind.PREEMPTED, "a better job"), None])
def test_programs_are_told_why_slurm_ends_the_job(
    world: World, client: Party, slurm: Slurm, death: Death | None
) -> None:
    world.head.deadline.on_sigterm(30.0, 5.0)
    assert [host for host, _ in slurm.asked] == [""]
    assert world.take_all() == [[], [], []], "agents wait for the reason"
    slurm.answer(death)
    order = ShutDown(5.0, "preempted", "a better job") if death else ShutDown(5.0)
    assert world.take_all() == [[order]] * 3
    assert client.take() == ([AllocationEnds("preempted", "a better job")] if death else [])


def test_a_slurm_that_never_answers_delays_no_end(world: World, client: Party, slurm: Slurm) -> None:
    world.head.deadline.on_sigterm(30.0, 5.0)
    world.clock.advance(30.0)
    assert world.take_all() == [[ShutDown(5.0)]] * 3
    slurm.answer(DOWN)
    assert world.take_all() == [[]] * 3
