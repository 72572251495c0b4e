"""Programs on the first host of an allocation that is registered as ``dev``, and the commands that show them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.slurm.record import AllocationRecord, current_owner
from monarch_hpc.slurm.registry import Registry
from tests.command_server import CommandServer, open_here

__all__ = [
    "ENDING",
    "PATIENCE_S",
    "allocation",
    "call",
    "detach",
    "finish",
    "line",
    "named_allocation",
    "runs",
    "script",
    "serving_commands",
    "start",
]

PATIENCE_S = 120.0
ENDING = "waiting for the run's procs to end\n"
"""Shown when that takes more than a second, as it may on a busy machine."""

_servers: list[CommandServer] = []


@contextlib.contextmanager
def serving_commands(folder: Path) -> Iterator[None]:
    """Run the commands of `call` as forks of one process."""
    with open_here(folder) as server:
        _servers.append(server)
        try:
            yield
        finally:
            _servers.remove(server)


@contextlib.contextmanager
def allocation(folder: Path, num_hosts: int = 2, **keys: object) -> Iterator[Path]:
    """An allocation that is registered as ``dev``; *keys* are of its configuration, with ``__`` for dots."""
    with named_allocation("dev", folder, num_hosts, keys) as directory:
        yield directory


@contextlib.contextmanager
def named_allocation(name: str, folder: Path, num_hosts: int, keys: Mapping[str, object]) -> Iterator[Path]:
    """As `allocation`, registered as *name*."""
    config = load({key.replace("__", "."): value for key, value in keys.items()}).config
    with open_local(num_hosts, config, folder / ("allocation" if name == "dev" else name)) as directory:
        registry = Registry(folder / "state" / "monarch-hpc")
        record = AllocationRecord(
            name.encode().hex().ljust(32, "0"), name, directory, "2", current_owner(), time.time()
        )
        registry.create(record)
        registry.set_job(record, 7, time.time())
        yield directory


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": os.getcwd()}


def start(home: Path, *words: str, stdin: int = subprocess.DEVNULL, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "monarch_hpc.cli", *words],
        cwd=home,
        env={**environment(home), **env},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes], feed: bytes | None = None) -> tuple[int, str, str]:
    out, err = process.communicate(feed, timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode().replace(ENDING, "")


def call(home: Path, *words: str) -> tuple[int, str, str]:
    """Run a command to its end; return its exit status and what it printed."""
    for server in _servers:
        done = server.run(words, environment(home), PATIENCE_S, folder=home)
        return done.returncode, done.stdout, done.stderr.replace(ENDING, "")
    return finish(start(home, *words))


def detach(home: Path, *words: str) -> str:
    """Start a program that goes on by itself, and return its run."""
    code, out, err = call(home, "run", "-a", "dev", "--detach", *words)
    assert code == 0, err
    return out.strip()


def script(home: Path, text: str) -> str:
    path = home / f"program{len(list(home.glob('program*')))}.py"
    path.write_text(text)
    return str(path)


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()


def runs(home: Path) -> dict[str, object]:
    status = query_status(home / "allocation", 60.0)
    assert status is not None
    return {str(run["run"]): run["pid"] for run in status["runs"]}
