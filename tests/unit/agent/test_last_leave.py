"""The agent that leaves last: it stays while nobody knows, and cancels the job only when Slurm has spoken."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.resources.last_leave import LastLeave, is_listening, others_to_ask
from monarch_hpc.allocation.changes import read_changes
from monarch_hpc.allocation.files import read_exit_status, read_released, write_released
from monarch_hpc.allocation.ready import make_ready, write_ready
from monarch_hpc.core.storage.files import private_dir
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.allocation import HostEntry

JOB = "JobId=7 JobName=mh JobState={state} Reason=None NodeList={hosts} BatchHost=n1"
UNREACHABLE = "tcp://192.0.2.1:9"
"""An address for documentation, which leads nowhere."""


class World:
    """One attempt's folder, Slurm's commands, and the agent of rank 2 among three."""

    def __init__(self, folder: Path, addresses: list[str], head: int = 0, *, wanted: bool = False) -> None:
        self.folder = private_dir(folder / "attempts" / "1")
        self.bin = private_dir(folder / "bin")
        self.done = threading.Event()
        entries = [
            HostEntry(rank, f"n{rank + 1}", [address], 5, "3.11", "0.1.0", [0], [], 1, {})
            for rank, address in enumerate(addresses)
        ]
        write_ready(self.folder, make_ready("a" * 32, 7, entries, [], head))
        self.put("scancel", f"echo cancelled >> {self.bin}/count")
        rank = len(addresses) - 1
        args = AgentArgs(
            folder, self.folder, "a" * 32, rank, 3, f"n{rank + 1}", b"", 7, [], {"PATH": f"{self.bin}:/usr/bin:/bin"}
        )
        self.leave = LastLeave(args, 60.0, self.done.set, poll_s=0.05, wanted=wanted)

    def put(self, name: str, script: str) -> None:
        path = self.bin / f".{name}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        path.rename(self.bin / name)

    def says(self, hosts: str, state: str = "RUNNING") -> None:
        self.put("scontrol", f"echo asked >> {self.bin}/asked; echo '{JOB.format(state=state, hosts=hosts)}'")

    @property
    def cancelled(self) -> bool:
        return (self.bin / "count").exists()


@pytest.fixture
def closed() -> str:
    """An address at which nothing listens, of a host that works."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_it_cancels_the_job_when_slurm_has_taken_the_batch_scripts_host_out(tmp_path: Path, closed: str) -> None:
    world = World(tmp_path, [UNREACHABLE, closed, closed])
    world.says("n[2-3]")
    world.leave.begin()
    wait_until("its end", world.done.is_set, 60.0)
    assert world.cancelled
    why = "no agent is left on its hosts (n[2-3]); n1, with its head and batch script, has left the job"
    assert (read_released(world.folder), read_exit_status(world.folder)) == (why, 78)
    (change,) = read_changes(tmp_path)
    assert (change.what, change.kind, change.cause) == ("ends", "node-failure", why)


def test_it_stays_while_slurm_has_not_spoken_and_ends_with_the_job(tmp_path: Path, closed: str) -> None:
    world = World(tmp_path, [UNREACHABLE, closed, closed])
    world.says("n[1-3]")
    world.leave.begin()
    wait_until("a question", (world.bin / "asked").exists, 60.0)
    assert not world.done.is_set()
    world.says("n[2-3]", "COMPLETED")
    wait_until("its end", world.done.is_set, 60.0)
    assert not world.cancelled


def test_sigterm_ends_it_at_once(tmp_path: Path, closed: str) -> None:
    world = World(tmp_path, [UNREACHABLE, closed, closed])
    world.put("scontrol", f"echo asked >> {world.bin}/asked; exit 1")
    world.leave.begin()
    wait_until("a question", (world.bin / "asked").exists, 60.0)
    world.leave.end()
    assert world.done.is_set() and not world.cancelled


def test_it_leaves_at_once_where_another_stays_or_the_batch_script_lives(tmp_path: Path, closed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lives = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for number, addresses in enumerate(([UNREACHABLE, lives, closed], [closed, closed, closed], [lives, closed])):
            world = World(private_dir(tmp_path / str(number)), addresses)
            world.says("n[1-3]")
            world.leave.begin()
            wait_until("its end", world.done.is_set, 60.0)
            assert not world.cancelled
            assert (world.bin / "asked").exists() is (number > 0)


def test_a_host_that_goes_down_refuses_connections_at_first(tmp_path: Path, closed: str) -> None:
    world = World(tmp_path, [closed, closed, closed])
    world.says("n[2-3]")
    world.leave.begin()
    wait_until("its end", world.done.is_set, 60.0)
    assert world.cancelled, "Slurm's word counts"


def test_the_agents_below_are_asked_but_the_heads(tmp_path: Path) -> None:
    entries = [HostEntry(rank, f"n{rank}", [], 5, "", "", [0], [], 1, {}) for rank in range(100)]
    ready, moved = (make_ready("a" * 32, 7, entries, [], head) for head in (0, 1))
    assert [host.rank for host in others_to_ask(ready, 3)] == [1, 2]
    assert [host.rank for host in others_to_ask(moved, 3)] == [0, 2]
    assert [host.rank for host in others_to_ask(ready, 99)] == list(range(1, 17))
    assert others_to_ask(ready, 1) == []


@pytest.mark.parametrize(("hosts", "gone"), [("n3", True), ("n[1,3]", False)])
def test_a_head_that_has_moved_is_one_host_and_the_batch_script_another(
    tmp_path: Path, closed: str, hosts: str, gone: bool
) -> None:
    world = World(tmp_path, [closed, UNREACHABLE, closed], head=1)
    world.says(hosts)
    world.leave.begin()
    wait_until("its end", world.done.is_set, 60.0)
    assert world.cancelled is gone
    if gone:
        why = read_released(world.folder)
        assert "n2, with its head, has left the job; n1, with its batch script, has left the job" in why


def test_an_heir_that_is_told_to_end_writes_the_end_and_keeps_its_reason(tmp_path: Path, closed: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        lives = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        world = World(tmp_path, [UNREACHABLE, lives, closed], head=2, wanted=True)
        write_released(world.folder, "nobody uses it")
        world.says("n[2-3]")
        world.leave.begin()
        wait_until("its end", world.done.is_set, 60.0)
    assert world.cancelled
    assert (read_released(world.folder), read_exit_status(world.folder)) == ("nobody uses it", 0)


def test_an_address_that_is_none_answers_nothing() -> None:
    assert is_listening([]) is None
    assert is_listening(["nonsense", "tcp://256.0.0.1:1"]) is None
