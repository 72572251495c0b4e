"""The directory of a Slurm job's allocation: makes it, and reads its state. `allocation.files` lists its files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.allocation.attempts import ATTEMPTS, newest_attempt
from monarch_hpc.allocation.files import (
    ENDED,
    GRANTED,
    HOSTS,
    PARTED,
    RELEASED,
    Granted,
    read_exit_status,
    read_granted,
    read_released,
    read_reported,
    write_key,
)
from monarch_hpc.allocation.ready import READY, Ready, load_ready
from monarch_hpc.allocation.settings import read_config, write_config
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.assets import asset
from monarch_hpc.core.storage.files import private_dir, write_private

__all__ = ["Seen", "await_epilogue", "hook_problem", "last_lines", "lines_by_host", "look", "prepare", "tail"]

_LOOK_S = 0.1
# A script that has reached its hook's limit writes its end within this time.
_END_S = 5.0
_TAIL_BYTES = 256 << 10
_LABELLED = re.compile(r"\s*(\d+): (.*)")


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the newest attempt, as its files show it.

    Args:
        granted: None until the job has begun.
        reported: ranks of the agents that have reported.
        ready: None until the head has stopped waiting for agents.
        exit_status: exit status of the batch script; None while it runs, or the allocation goes on without it.
        attempt: number of the attempt; 0 before the first.
        released: why the head ended the allocation by itself; empty if it did not.
        parted: whether the batch script has ended, and further jobs may go on.
    """

    granted: Granted | None = None
    reported: frozenset[int] = frozenset()
    ready: Ready | None = None
    exit_status: int | None = None
    attempt: int = 0
    released: str = ""
    parted: bool = False


def prepare(directory: Path, config: Config, key: bytes, script: str, name: str = "") -> Path:
    """Make the directory with all files that the job needs, and return the script's path.

    Args:
        name: of the allocation, see `write_config`.
    """
    private_dir(directory)
    private_dir(directory / ATTEMPTS)
    private_dir(directory / "runs")
    # Copied, since hosts may not see the folder that this package is installed in.
    for launcher in ("agent.sh", "task.sh", "holder.sh"):
        write_private(directory / launcher, asset("launchers", launcher).read_bytes())
    write_private(directory / "job.sh", script.encode())
    write_config(directory, config, name)
    write_key(directory, key)
    return directory / "job.sh"


def look(directory: Path) -> Seen:
    """Read the state of the newest attempt in *directory*.

    Folders are listed rather than probed by name, see `newest_attempt`.

    Raises:
        ConfigError: a file was not written by the job or an agent.
    """
    attempt, folder = newest_attempt(directory)
    try:
        names = set(os.listdir(folder))
        return Seen(
            granted=read_granted(folder) if GRANTED in names else None,
            reported=read_reported(folder) if HOSTS in names else frozenset(),
            ready=load_ready(folder) if READY in names else None,
            exit_status=read_exit_status(folder) if ENDED in names else None,
            attempt=attempt,
            released=read_released(folder) if RELEASED in names else "",
            parted=PARTED in names,
        )
    except FileNotFoundError:
        return Seen()


def last_lines(directory: Path, hosts: Sequence[str], num_lines: int = 5) -> dict[str, tuple[str, ...]]:
    """Return the last lines in ``slurm.out`` from or about each of *hosts*.

    Args:
        directory: the allocation's directory.
        hosts: all hosts of the job in the order of their ranks, which label the lines.
        num_lines: at most this many for each host.
    """
    try:
        with open(directory / "slurm.out", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return dict.fromkeys(hosts, ())
    return lines_by_host(text, hosts, num_lines)


def lines_by_host(text: str, hosts: Sequence[str], num_lines: int) -> dict[str, tuple[str, ...]]:
    """Split the labelled output of the agents' step by host, the last *num_lines* of each.

    srun prefixes each line with its task's rank; its own errors name the host, as in
    ``srun: error: n3: task 2: Exited with exit code 1`` or ``... failed on node n3: ...``.
    """
    found: dict[str, list[str]] = {host: [] for host in hosts}
    complaint = {host: re.compile(rf"^(?:srun|slurmstepd)\b.*(?<![\w.-]){re.escape(host)}(?![\w.-])") for host in hosts}
    for line in text.splitlines():
        match = _LABELLED.fullmatch(line)
        if match:
            if int(match[1]) < len(hosts):
                found[hosts[int(match[1])]].append(match[2])
            continue
        for host in hosts:
            if complaint[host].search(line):
                found[host].append(line)
    return {host: tuple(line for line in lines if line.strip())[-num_lines:] for host, lines in found.items()}


def await_epilogue(directory: Path) -> None:
    """Let the batch script, whose agents have ended, end by itself: Slurm would send its epilogue SIGTERM."""
    agent = read_config(directory).agent
    late = Deadline(agent.hook_s + _END_S)
    while agent.epilogue and not late.passed():
        seen = look(directory)
        if seen.exit_status is not None or seen.parted:
            break
        time.sleep(_LOOK_S)


def hook_problem(directory: Path) -> str:
    """Return what the batch script says of the failure of its epilogue; empty if it says nothing."""
    lines = tail(directory / "slurm.out", 5)
    return next((line for line in reversed(lines) if line.startswith("monarch-hpc: agent.epilogue ")), "")


def tail(path: Path, num_lines: int) -> tuple[str, ...]:
    """Return the last lines of a text file; empty if there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(line for line in lines if line.strip())[-num_lines:]
