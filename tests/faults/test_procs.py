"""Faults of procs and embedded hosts: one death, one kind, and all others go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from monarch_hpc import ActorMesh, CallTimeout, DeathKind, HostLost, HostMesh, ProcDied
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.config.load import load
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import Faulty, alive, hosts_of
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class World(NamedTuple):
    """Two embedded hosts, and what no call has reported."""

    hosts: HostMesh
    failures: list[MeshFailure]

    @property
    def directory(self) -> Path:
        return Controller.instance().tenancies.all()[0].directory


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    failures: list[MeshFailure] = []
    with pytest.MonkeyPatch.context() as patch, controlled(load({}).config, 2) as hosts:
        patch.setattr("monarch_hpc.actor.unhandled_fault_hook", failures.append)
        with hosts.spawn_procs() as procs:
            procs.initialized.get(_PATIENCE_S)
            settle(procs)
        yield World(hosts, failures)


@pytest.fixture
def faulty(world: World) -> Iterator[ActorMesh[Faulty]]:
    """One actor on each of the hosts that are left."""
    with ExitStack() as resources:
        procs = resources.enter_context(world.hosts.spawn_procs(name="faulty"))
        settle(procs)
        yield procs.spawn("faulty", Faulty)


@pytest.mark.parametrize(
    ("fault", "args", "kind", "words"),
    [
        ("kill", (), DeathKind.SIGNAL, "signal 9 (SIGKILL)"),  # F01
        ("segfault", (), DeathKind.SIGNAL, "signal 11 (SIGSEGV)"),  # F02
        ("abort", (), DeathKind.SIGNAL, "signal 6 (SIGABRT)"),
        ("exit", (0,), DeathKind.EXIT, "exit code 0"),  # F04
        ("exit", (3,), DeathKind.EXIT, "exit code 3"),
    ],
)
def test_a_proc_that_dies_tells_its_kind_host_and_rank(
    faulty: ActorMesh[Faulty], fault: str, args: tuple[int, ...], kind: DeathKind, words: str
) -> None:
    with pytest.raises(ProcDied) as caught:
        faulty.slice(hosts=1).suffer.call_one(fault, *args).get(_PATIENCE_S)
    error = caught.value
    assert (error.kind, error.host, error.rank) == (kind, "local1", 1)
    assert words in error.cause and type(error) is ProcDied
    if fault == "segfault":
        assert any("in _run" in line or "in suffer" in line for line in error.last_lines), error.last_lines
    assert faulty.slice(hosts=0).pid.call_one().get(_PATIENCE_S) > 0
    with pytest.raises(ProcDied) as again:
        faulty.slice(hosts=1).pid.call_one().get(_PATIENCE_S)
    assert again.value.kind is kind


def test_a_death_that_no_call_waits_for_has_its_kind(world: World, faulty: ActorMesh[Faulty]) -> None:
    world.failures.clear()
    faulty.slice(hosts=0).suffer.broadcast("exit", 7)
    wait_until("the failure", lambda: len(world.failures), _PATIENCE_S, accept=bool)
    (failure,) = world.failures
    assert (failure.kind, failure.rank) == (DeathKind.EXIT, 0) and "exit code 7" in failure.cause


def test_an_actor_that_leaves_is_dead_and_its_proc_lives(faulty: ActorMesh[Faulty]) -> None:
    with pytest.raises(Exception, match="SystemExit") as caught:
        faulty.slice(hosts=0).suffer.call_one("leave", 5).get(_PATIENCE_S)
    assert getattr(caught.value, "kind", None) is DeathKind.RAISED


def test_a_held_interpreter_is_no_death(faulty: ActorMesh[Faulty]) -> None:
    durations_s = iter([2.0, 4.0, 8.0, 16.0, 32.0])

    def times_out() -> bool:
        """Whether a call came while the interpreter was held: this process may stand still between the two."""
        held = faulty.slice(hosts=0).suffer.call_one("hold_gil", next(durations_s))
        late = faulty.slice(hosts=0).pid.options(timeout=0.5).call_one().exception(_PATIENCE_S)
        assert held.get(2 * _PATIENCE_S) == "hold_gil"
        return isinstance(late, CallTimeout)

    wait_until("a call that comes while it is held", times_out, 4 * _PATIENCE_S)


def test_a_proc_without_descriptors_ends_nobody_else(faulty: ActorMesh[Faulty]) -> None:
    assert faulty.slice(hosts=0).suffer.call_one("use_descriptors", 0).get(_PATIENCE_S) == "use_descriptors"
    assert len(faulty.pid.call().get(_PATIENCE_S).values()) == 2


def test_a_host_without_power_is_lost_and_its_procs_with_it(world: World, faulty: ActorMesh[Faulty]) -> None:
    """The last test: nothing of that host comes back."""
    pids = faulty.pid.call().get(_PATIENCE_S)
    host = hosts_of(world.directory)[1]
    assert pids.item(hosts=1) in host.processes() and os.getpid() not in host.processes()
    host.power_off()
    assert not alive(pids.item(hosts=1))
    with pytest.raises(ProcDied) as caught:
        faulty.slice(hosts=1).pid.call_one().get(_PATIENCE_S)
    assert caught.value.host == "local1" and type(caught.value) in (ProcDied, HostLost)
    assert faulty.slice(hosts=0).pid.call_one().get(_PATIENCE_S) == pids.item(hosts=0)
