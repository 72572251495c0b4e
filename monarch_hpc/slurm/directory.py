"""The private directory of an allocation on the shared file system: makes it, and reads its state.

    key           32 bytes shared by the allocation's processes; removed when it ends
    config.json   the agents' configuration
    job.sh        the batch script        agent.sh      the launcher that it starts on each host
    task.sh       the launcher of procs for MPI
    slurm.out     output of Slurm, the script and the agents
    runs/         output of procs

    attempts/<n>/ one for each start of the batch script; a requeued job has several:
        granted.json  the job has begun       hosts/<n>.json  agent n has reported
        ready.json    the agents are ready    ended.json      the batch script has ended

Each of these files is written whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.config import Config, as_document
from monarch_hpc.core.assets import asset
from monarch_hpc.core.attempts import ATTEMPTS, newest_attempt
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import private_dir, read_json, write_json, write_private
from monarch_hpc.core.hostlist import expand

__all__ = ["AgentsReport", "Granted", "ReadyHost", "Seen", "last_lines", "lines_by_host", "look", "prepare", "tail"]

_TAIL_BYTES = 256 << 10
_LABELLED = re.compile(r"\s*(\d+): (.*)")


@dataclass(frozen=True, slots=True)
class Granted:
    """The job has begun.

    Args:
        job_id: Slurm's number.
        hosts: names of the hosts, in the order of the agents' ranks.
        nodelist: the same in Slurm's notation.
        at_s: time of the begin by the first host's clock, in seconds since the epoch.
        restarts: number of earlier requeues by Slurm.
    """

    job_id: int
    hosts: tuple[str, ...]
    nodelist: str
    at_s: float
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ReadyHost:
    """A host whose agent has reported, with what Slurm granted it."""

    name: str
    num_cpus: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class AgentsReport:
    """The head's report that it no longer waits for agents; *missing* names the hosts whose agent did not report."""

    hosts: tuple[ReadyHost, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of the newest attempt, as its files show it.

    Args:
        granted: None until the job has begun.
        reported: ranks of the agents that have reported.
        ready: None until the head has stopped waiting for agents.
        exit_status: exit status of the batch script; None while it runs.
        attempt: number of the attempt; 0 before the first.
    """

    granted: Granted | None = None
    reported: frozenset[int] = frozenset()
    ready: AgentsReport | None = None
    exit_status: int | None = None
    attempt: int = 0


def prepare(directory: Path, config: Config, key: bytes, script: str) -> Path:
    """Make the directory with all files that the job needs, and return the script's path."""
    private_dir(directory)
    private_dir(directory / ATTEMPTS)
    private_dir(directory / "runs")
    # Copied, since hosts may not see the folder that this package is installed in.
    for name in ("agent.sh", "task.sh"):
        write_private(directory / name, asset("launchers", name).read_bytes())
    write_private(directory / "job.sh", script.encode())
    write_json(directory / "config.json", {"schema": 1, "config": as_document(config)})
    write_private(directory / "key", key)
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
        reported = os.listdir(folder / "hosts") if "hosts" in names else []
    except FileNotFoundError:
        return Seen()
    ended = _read(folder / "ended.json") if "ended.json" in names else None
    return Seen(
        granted=_granted(folder / "granted.json") if "granted.json" in names else None,
        reported=frozenset(int(name[:-5]) for name in reported if re.fullmatch(r"\d+\.json", name)),
        ready=_ready(folder / "ready.json") if "ready.json" in names else None,
        exit_status=_whole(ended, "exit_status", folder / "ended.json") if ended is not None else None,
        attempt=attempt,
    )


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


def tail(path: Path, num_lines: int) -> tuple[str, ...]:
    """Return the last lines of a text file; empty if there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(line for line in lines if line.strip())[-num_lines:]


def _granted(path: Path) -> Granted:
    document = _read(path)
    nodelist = _text(document, "nodelist", path)
    return Granted(
        job_id=_whole(document, "job_id", path),
        hosts=tuple(expand(nodelist)),
        nodelist=nodelist,
        at_s=float(_whole(document, "time_s", path)),
        restarts=_whole(document, "restarts", path),
    )


def _ready(path: Path) -> AgentsReport:
    document = _read(path)
    hosts, missing = document.get("hosts"), document.get("missing")
    if not isinstance(hosts, list) or not isinstance(missing, list):
        raise _unreadable(path, "hosts")
    return AgentsReport(tuple(_ready_host(host, path) for host in hosts), tuple(str(name) for name in missing))


def _ready_host(host: object, path: Path) -> ReadyHost:
    if not isinstance(host, dict) or not isinstance(host.get("gpus"), list):
        raise _unreadable(path, "hosts")
    return ReadyHost(_text(host, "name", path), _whole(host, "cpus", path), len(host["gpus"]))


def _read(path: Path) -> Mapping[str, object]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise _unreadable(path, "schema")
    return document


def _whole(document: Mapping[str, object], key: str, path: Path) -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _unreadable(path, key)
    return value


def _text(document: Mapping[str, object], key: str, path: Path) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise _unreadable(path, key)
    return value


def _unreadable(path: Path, key: str) -> ConfigError:
    return ConfigError(key, "", str(path), "is not what this version of monarch-hpc writes")
