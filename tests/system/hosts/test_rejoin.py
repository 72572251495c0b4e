"""Agents that were given up while they stood still: they end their procs, and are seated again as new ones."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import ActorDied, ActorMesh
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.allocation.heads import read_head
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import Faulty, alive, hosts_of

_PATIENCE_S = 60.0
_LONG_S = 240.0


@pytest.fixture
def rejoin_s() -> float:
    """Config key `agent.rejoin_s`."""
    return 600.0


@pytest.fixture
def tries() -> int:
    """Config key `heal.tries`."""
    return 0


@pytest.fixture
def directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure], rejoin_s: float, tries: int
) -> Iterator[Path]:
    """Four hosts, of which by default none is started again by the head, used by this process."""
    times = {"liveness.heartbeat_s": 0.5, "liveness.suspect_s": 4.0, "liveness.dead_s": 12.0, "liveness.fence_s": 12.0}
    config = load(
        {"procs.stop_s": 1.0, "agent.grace_s": 1.0, "heal.tries": tries, "agent.rejoin_s": rejoin_s, **times}
    ).config
    with open_local(4, config, tmp_path / "demo") as directory, contextlib.ExitStack() as after:
        after.callback(Controller.close_any)
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
        yield directory


def seated(directory: Path) -> list[tuple[object, object]]:
    """The state of each host, and whether its agent is the head."""
    status = query_status(directory, _PATIENCE_S)
    return [(host["state"], host["head"]) for host in status["hosts"]] if status else []


def num_runs(directory: Path) -> int:
    """The number of runs that the head knows."""
    status = query_status(directory, _PATIENCE_S)
    assert status is not None
    return len(status["runs"])


def spawn_on(host: int) -> ActorMesh[Faulty]:
    return monarch_hpc.hosts().slice(hosts=host).spawn_procs(name=f"on{host}").spawn("faulty", Faulty)


def pid_of(actor: ActorMesh[Faulty]) -> int:
    return int(actor.pid.call_one().get(_PATIENCE_S))


def test_a_host_that_was_given_up_ends_its_procs_and_is_used_again(directory: Path) -> None:
    kept, lost = spawn_on(1), spawn_on(2)
    pids = [pid_of(kept), pid_of(lost)]
    agent = hosts_of(directory)[2].agent
    os.kill(agent, signal.SIGSTOP)
    wait_until("the loss", lambda: seated(directory), _LONG_S, accept=lambda seen: seen[2] == ("lost", False))
    os.kill(agent, signal.SIGCONT)
    wait_until("its return", lambda: seated(directory), _LONG_S, accept=lambda seen: seen[2] == ("alive", False))
    assert hosts_of(directory)[2].agent == agent, "the same process"
    assert not alive(pids[1])
    with pytest.raises(ActorDied):
        pid_of(lost)
    assert pid_of(spawn_on(2)) > 0
    assert pid_of(kept) == pids[0]


def test_a_host_that_was_given_up_does_not_ask_an_allocation_that_has_ended(directory: Path) -> None:
    """As after a release while a cable is out: nobody would answer, for `agent.rejoin_s`."""
    agent = hosts_of(directory)[2].agent
    os.kill(agent, signal.SIGSTOP)
    wait_until("the loss", lambda: seated(directory), _LONG_S, accept=lambda seen: seen[2] == ("lost", False))
    assert shut_down(directory, 1.0) is not None
    os.kill(agent, signal.SIGCONT)
    wait_until("its end", lambda: not alive(agent), _LONG_S)


def test_a_head_that_was_followed_meanwhile_gives_no_orders_and_comes_back_as_an_agent(directory: Path) -> None:
    kept, lost = spawn_on(1), spawn_on(0)
    pids = [pid_of(kept), pid_of(lost)]
    first = hosts_of(directory)[0].agent
    os.kill(first, signal.SIGSTOP)
    wait_until(
        "the heir", lambda: read_head(directory), _LONG_S, accept=lambda head: head is not None and head.term > 1
    )
    assert pid_of(kept) == pids[0]
    os.kill(first, signal.SIGCONT)
    wait_until(
        "its return",
        lambda: seated(directory),
        _LONG_S,
        accept=lambda seen: sorted(seen) == [("alive", False)] * 3 + [("alive", True)] and not seen[0][1],
    )
    assert not alive(pids[1])
    for host in range(4):
        assert pid_of(spawn_on(host)) > 0
    assert pid_of(kept) == pids[0]


@pytest.mark.parametrize("tries", [3])
def test_agents_that_a_head_has_started_again_outlive_its_fence(directory: Path) -> None:
    first, before = hosts_of(directory)[0].agent, hosts_of(directory)[2].agent
    os.kill(before, signal.SIGKILL)
    wait_until("another agent", lambda: hosts_of(directory)[2].agent, accept=lambda pid: pid not in (0, before))
    wait_until("its seat", lambda: seated(directory), accept=lambda seen: seen[2] == ("alive", False))
    started = hosts_of(directory)[2].agent
    os.kill(first, signal.SIGSTOP)
    wait_until(
        "the heir", lambda: read_head(directory), _LONG_S, accept=lambda head: head is not None and head.term > 1
    )
    os.kill(first, signal.SIGCONT)
    wait_until("its return", lambda: seated(directory), _LONG_S, accept=lambda seen: seen[0] == ("alive", False))
    spawn_on(0)
    on_third = spawn_on(2)
    assert hosts_of(directory)[0].agent == first, "the same process"
    pid = pid_of(on_third)
    Controller.close_any()
    # Until then agents look for what the run has left.
    wait_until("the end of the run", lambda: not num_runs(directory))
    assert not alive(pid)
    assert pid_of(spawn_on(2)) > 0
    assert seated(directory)[2] == ("alive", False)
    assert hosts_of(directory)[2].agent == started
    assert alive(started)


@pytest.mark.parametrize("rejoin_s", [2.0])
def test_without_a_head_they_leave_in_the_end(directory: Path) -> None:
    pid = pid_of(spawn_on(2))
    agents = [host.agent for host in hosts_of(directory)]
    for agent in agents[:2]:
        os.kill(agent, signal.SIGKILL)
    wait_until(
        "the end of the minority", lambda: any(map(alive, [pid, *agents])), _LONG_S, accept=lambda left: not left
    )
    log = (directory / "local2.err").read_text()
    assert "it asks to be seated again for 2 s" in log and "cannot reach the head" in log, log
