"""Hosts whose agent has died come back with another one and without their procs, a few times."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.allocation.changes import read_changes
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config import Config
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import hosts_of
from monarch_hpc.wire.control.allocation import HostEnded, HostReturned, HostStillLost
from monarch_hpc.wire.control.procs import ProcReady
from tests.system.support.agent_client import Client, alive

_PATIENCE_S = 60.0


@pytest.fixture
def dead_s(request: pytest.FixtureRequest) -> float:
    """No agent is lost by its silence but where a test waits for that."""
    return float(getattr(request, "param", 600.0))


@pytest.fixture
def config(config: Config) -> Config:
    """Lost hosts come back, at once."""
    return replace(config, heal=replace(config.heal, tries=3, backoff_s=0.1))


def states(directory: Path) -> list[object]:
    status = query_status(directory, _PATIENCE_S)
    return [host["state"] for host in status["hosts"]] if status else []


def num_alive(pids: list[int]) -> int:
    return sum(map(alive, pids))


def changes(directory: Path) -> list[tuple[str, str]]:
    return [(change.what, change.cause) for change in read_changes(directory) if change.subject == "local1"]


def test_a_killed_agent_is_started_again_without_its_procs(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        kept, lost = client.spawn_ready([0]), client.spawn_ready([1])
        before = hosts_of(directory)[1].agent
        for round_ in (1, 2):
            os.kill(hosts_of(directory)[1].agent, signal.SIGKILL)
            ended = client.wait(HostEnded)
            assert ended.host == 1 and ended.returning and "agent on local1" in ended.cause
            back = client.wait(HostReturned)
            assert back.host.rank == 1 and back.host.incarnation != ended.incarnation
            assert states(directory) == ["alive", "alive"], round_
            wait_until("the end of its procs", partial(num_alive, lost), accept=lambda num: num == 0)
            lost = client.spawn_ready([1])
            client.messages.clear()
        assert not alive(before) and alive(kept[0])
        whats = [what for what, _ in changes(directory)]
        assert whats == ["joined", *["lost", "agent", "returned"] * 2], changes(directory)
    with Client(directory, "bbbbbbbb") as later:
        assert [host.name for host in later.opened.hosts] == ["local0", "local1"]
        assert all(map(alive, later.spawn_ready([0, 1], 2)))


@pytest.mark.parametrize("dead_s", [4.0], indirect=True, ids=[""])
def test_an_agent_that_was_only_stopped_makes_room_for_its_successor(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        (pid,) = client.spawn_ready([1])
        frozen = hosts_of(directory)[1].agent
        os.kill(frozen, signal.SIGSTOP)
        assert re.search(r"no heartbeat", client.wait(HostEnded).cause)
        client.wait(HostReturned)
        wait_until("the end of the stopped one", lambda: not alive(frozen) and not alive(pid))
        assert all(map(alive, client.spawn_ready([0, 1])))
        assert not [message for message in client.messages if isinstance(message, HostEnded)][1:]


def test_an_agent_that_cannot_start_is_given_up_after_three_attempts(directory: Path) -> None:
    key = directory / "config.json"
    with Client(directory, "aaaaaaaa") as client:
        text, agent = key.read_text(), hosts_of(directory)[1].agent
        key.write_text("{")
        os.kill(agent, signal.SIGKILL)
        given_up = client.wait(HostStillLost, lambda message: message.given_up)
        key.write_text(text)
        assert given_up.host == 1
        assert re.match(r"attempt 3 of 3: the agent ended: exit code 65: .*config.json", given_up.cause), given_up.cause
        assert states(directory) == ["alive", "lost"]
        assert len([cause for what, cause in changes(directory) if what == "agent" and "Slurm" in cause]) == 3
        client.spawn_ready([0])
        assert not [message for message in client.messages if isinstance(message, HostReturned | ProcReady)][1:]


def test_the_ration_holds(directory: Path, config: Config) -> None:
    with Client(directory, "aaaaaaaa") as client:
        for _ in range(config.heal.per_hour):
            os.kill(hosts_of(directory)[1].agent, signal.SIGKILL)
            client.wait(HostReturned)
            client.messages.clear()
        os.kill(hosts_of(directory)[1].agent, signal.SIGKILL)
        assert client.wait(HostEnded).returning
        wait_until("the reason", lambda: changes(directory)[-1][1], accept=lambda cause: "heal.per_hour" in cause)
        assert states(directory) == ["alive", "lost"]
