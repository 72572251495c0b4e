"""Messages that overtake the order to start their actor, because an agent on its way stands still."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from monarch_hpc import Actor, ActorDied, ActorMesh, CallTimeout, Future, HostMesh, endpoint
from monarch_hpc.actor.cell import actors
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import FAILPOINTS_VARIABLE, hosts_of
from tests.system.support.controlling import controlled

_PATIENCE_S = 60.0


class Sum(Actor):
    """Adds up what it is told."""

    def __init__(self) -> None:
        self.total = 0

    @endpoint
    def add(self, amount: int) -> int:
        self.total += amount
        return self.total


class Patient(Actor):
    """Has its proc wait for late actors for as long as the test lasts."""

    def __init__(self) -> None:
        actors._EARLY_S = _PATIENCE_S

    @endpoint
    def begun(self) -> bool:
        return True


class Caller(Actor):
    """Sends to another actor from its own proc."""

    def __init__(self) -> None:
        self.asked: list[Future[int]] = []

    @endpoint
    def tell(self, to: ActorMesh[Sum], amount: int) -> None:
        to.add.broadcast(amount)

    @endpoint
    def ask(self, to: ActorMesh[Sum], amount: int) -> None:
        self.asked.append(to.add.call_one(amount))

    @endpoint
    def give_up(self, to: ActorMesh[Sum], amount: int) -> str:
        try:
            to.add.options(timeout=0.1).call_one(amount).get()
        except CallTimeout as error:
            return str(error)
        return "answered"

    @endpoint
    def answers(self) -> list[int]:
        return [future.get(_PATIENCE_S) for future in self.asked]

    @endpoint
    def die(self) -> None:
        os._exit(3)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostMesh]:
    """Two hosts; the agent of the second one stops at the first message for several procs."""
    monkeypatch.setenv(FAILPOINTS_VARIABLE, "agent.cast@1=stop")
    with controlled(load({"transport.cast_direct": 1}).config, 2) as hosts:
        yield hosts


def agent_pid(rank: int) -> int:
    (tenancy,) = Controller.instance().tenancies.all()
    return hosts_of(tenancy.directory)[rank].agent


def test_what_overtakes_its_actor_is_handled_and_what_is_cancelled_is_not(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    with hosts.spawn_procs(name="main") as procs, hosts.slice(hosts=0).spawn_procs(name="doomed") as doomed:
        here, there = procs.slice(hosts=0), procs.slice(hosts=1)
        assert there.spawn("patient", Patient).begun.call_one().get(_PATIENCE_S)
        caller, dying = here.spawn("caller", Caller), doomed.spawn("dying", Caller)
        late = procs.spawn("late", Sum)
        agent = agent_pid(1)
        wait_until("the agent stands still", lambda: getattr(read_stat(agent), "state", ""), accept="T".__eq__)
        try:
            to = late.slice(hosts=1)
            caller.tell.call_one(to, 1).get(_PATIENCE_S)
            caller.ask.call_one(to, 10).get(_PATIENCE_S)
            assert "no answer within 0.1 s" in caller.give_up.call_one(to, 1000).get(_PATIENCE_S)
            dying.tell.call_one(to, 100).get(_PATIENCE_S)
            dying.ask.call_one(to, 100).get(_PATIENCE_S)
            with pytest.raises(ActorDied):
                dying.die.call_one().get(_PATIENCE_S)
        finally:
            os.kill(agent, signal.SIGCONT)
        assert caller.answers.call_one().get(_PATIENCE_S) == [11]
        assert late.add.call(0).get(_PATIENCE_S).values() == [0, 211]
    del faults[:]
