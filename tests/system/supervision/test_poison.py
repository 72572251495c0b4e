"""A message that kills one life of a proc after the other is put aside, and the proc lives on for others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import (
    Actor,
    ActorDied,
    ActorError,
    ActorMesh,
    HostMesh,
    MeshError,
    PoisonMessage,
    ProcMesh,
    Restart,
    endpoint,
)
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_POLICY = Restart("always", max_restarts=10, window_s=600.0, backoff_s=(0, 0.05))


class Eater(Actor):
    @endpoint
    def eat(self, what: str) -> str:
        if what == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return what

    @endpoint
    def wait(self, folder: str) -> None:
        Path(folder, f"{os.getpid()}").touch()
        threading.Event().wait(_PATIENCE_S)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module", params=[16, 1], ids=["direct", "tree"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    config = load({"procs.stop_s": 1.0, "heal.tries": 0, "transport.cast_direct": request.param}).config
    with controlled(config) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.fixture
def procs(hosts: HostMesh, faults: list[MeshFailure]) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(name="procs", restart=_POLICY) as procs:
        yield procs


def kill(eaters: ActorMesh[Eater], what: str = "poison", lives: int = 1) -> None:
    """Feed it to all until that has killed so many lives of each."""
    for _ in range(lives):
        next_lives = [life + 1 for life in lives_of(eaters)]
        with pytest.raises(ActorDied, match="SIGKILL"):
            eaters.eat.call(what).get(_PATIENCE_S)
        wait_until("the next lives", lambda: lives_of(eaters), _PATIENCE_S, accept=next_lives.__eq__)


def lives_of(eaters: ActorMesh[Eater]) -> list[int]:
    """The number of earlier lives of each proc."""
    procs = eaters._callee.procs
    return [procs[rank].restarts for rank in eaters._region.base_ranks()]


def test_three_lives_are_killed_and_the_fourth_is_spared(procs: ProcMesh) -> None:
    eaters = procs.spawn("eater", Eater)
    kill(eaters, lives=3)
    pids = eaters.pid.call().get(_PATIENCE_S).values()
    with pytest.raises(MeshError) as caught:
        eaters.eat.call("poison").get(_PATIENCE_S)
    assert {type(failure) for failure in caught.value.failures.values()} == {PoisonMessage}
    one = eaters.slice(hosts=1)
    with pytest.raises(PoisonMessage, match="3 lives of a proc died in a row") as alone:
        one.eat.call_one("poison").get(_PATIENCE_S)
    assert isinstance(alone.value, ActorError) and "eat" in alone.value.where
    assert eaters.eat.call("bread").get(_PATIENCE_S).values() == ["bread", "bread"]
    assert eaters.pid.call().get(_PATIENCE_S).values() == pids
    # Its program may try again.
    assert procs.heal().respawned == ()
    kill(eaters)


def test_a_call_that_was_not_alone_is_not_to_blame(procs: ProcMesh, tmp_path: Path) -> None:
    eaters, others = procs.spawn("eater", Eater), procs.spawn("other", Eater)
    for life in range(1, 5):
        waiting = others.wait.call(str(tmp_path))
        begun = 2 * life
        wait_until("both", lambda: len(list(tmp_path.iterdir())), _PATIENCE_S, accept=begun.__eq__)
        kill(eaters)
        assert isinstance(waiting.exception(_PATIENCE_S), ActorDied)
    assert eaters.eat.call("bread").get(_PATIENCE_S).values() == ["bread", "bread"]


def test_other_arguments_and_meshes_without_a_policy_are_others(hosts: HostMesh, procs: ProcMesh) -> None:
    eaters = procs.spawn("eater", Eater)
    kill(eaters, lives=2)
    one = eaters.slice(hosts=0)
    os.kill(one.pid.call_one().get(_PATIENCE_S), signal.SIGKILL)  # while it handles nothing
    wait_until("its next life", lambda: procs.heals, _PATIENCE_S, accept=lambda heals: heals == 5)
    kill(one, lives=2)
    assert one.eat.call_one("bread").get(_PATIENCE_S) == "bread"
    with hosts.spawn_procs(name="plain") as plain:
        for _ in range(4):
            with pytest.raises(ActorDied):
                plain.spawn("eater", Eater).eat.call("poison").get(_PATIENCE_S)
            plain.heal()
