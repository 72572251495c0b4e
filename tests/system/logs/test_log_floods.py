"""A rank that prints as fast as it can is slowed down, and no other process is."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import Actor, HostMesh, endpoint
from monarch_hpc.agent.output.log_files import OLD
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.testing import wait_until
from tests.system.support.captured_output import PATIENCE_S, capture_output, log_file
from tests.system.support.controlling import controlled, settle


class Speaker(Actor):
    """Prints much or little, and answers calls."""

    @endpoint
    def say(self, *lines: str) -> None:
        print(*lines, sep="\n")

    @endpoint
    def pour(self, line: str) -> None:
        block = f"{line}\n".encode() * max(1, (64 << 10) // (len(line) + 1))

        def pouring() -> None:
            with contextlib.suppress(OSError):
                while True:
                    os.write(1, block)

        threading.Thread(target=pouring, daemon=True).start()

    @endpoint
    def echo(self, number: int) -> int:
        return number


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def states(directory: Path) -> list[object]:
    status = query_status(directory, PATIENCE_S)
    return [host["state"] for host in status["hosts"]] if status else []


def size_bytes(path: Path) -> int:
    """Size of a log file, which is missing for a moment while it is rotated."""

    def look() -> int:
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_size
        return -1

    return wait_until(path.name, look, PATIENCE_S, accept=lambda size: size >= 0)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    config = load().config
    logs = dataclasses.replace(config.logs, max_file_bytes=16 << 20)
    liveness = dataclasses.replace(config.liveness, suspect_s=4.0, dead_s=600.0)  # a host that is starved stays suspect
    with controlled(dataclasses.replace(config, logs=logs, liveness=liveness)) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


@pytest.mark.slow
@pytest.mark.parametrize(("line", "gpu"), [("x" * 100, 0), ("", 1)], ids=["lines", "empty lines"])
def test_a_flood_from_one_rank_disturbs_nobody(hosts: HostMesh, line: str, gpu: int, faults: list[object]) -> None:
    """The flood lasts until its file was rotated twice; meanwhile all else works, and no memory grows."""
    with capture_output() as captured, hosts.spawn_procs(per_host={"gpus": 2}, name="w") as procs:
        settle(procs)
        speakers = procs.spawn("speaker", Speaker)
        speakers.echo.call(0).get(PATIENCE_S)
        # Not on the head's host: the head judges its agent by its heartbeats.
        flooder, neighbour = speakers.slice(hosts=1, gpus=gpu), speakers.slice(hosts=1, gpus=1 - gpu)
        pids = {"the program": os.getpid(), **{entry.name: entry.pid for entry in hosts.entries}}
        before = {name: memory_bytes(pid) for name, pid in pids.items()}
        flooder.pour.call_one(line).get(PATIENCE_S)
        path = log_file(procs, 2 + gpu)
        number = 0

        def flooded() -> bool:
            nonlocal number
            number += 1
            assert neighbour.echo.call_one(number).get(PATIENCE_S) == number
            neighbour.say.call_one(f"line {number}").get(PATIENCE_S)
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                return b"bytes before that were discarded" in file.readline()
            return False

        wait_until("a flood of three files", flooded, 2 * PATIENCE_S)
        lines = captured.until(f"line {number}")
        assert [text for text in lines if "local1] line " in text] == [
            f"[w r0{3 - gpu} local1] line {at}" for at in range(1, number + 1)
        ]
        captured.until("lines left out here")
        directory = read_program().directory
        assert directory is not None
        wait_until("both hosts", lambda: states(directory), PATIENCE_S, accept=lambda seen: seen == ["alive", "alive"])
        grown = {name: memory_bytes(pid) - before[name] for name, pid in pids.items()}
        assert max(grown.values()) < 64 << 20, grown
        assert sum(size_bytes(entry) for entry in (path, path.with_name(path.name + OLD))) < 40 << 20
        assert not faults
