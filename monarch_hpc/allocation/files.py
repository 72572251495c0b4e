"""The files in an allocation's directory, through which agents, head and login side find each other.

    key           32 bytes shared by the allocation's processes; removed when it ends
    config.json   the agents' configuration
    job.sh        the batch script        agent.sh      the launcher that it starts on each host
    task.sh       the launcher of procs for MPI
    salloc.sh     holds a job without batch script, on the login node; holder.sh runs job.sh on the first host then
    slurm.out     output of Slurm, the script and the agents
    runs/         output of procs

    attempts/<n>/ one for each start of the batch script; a requeued job has several:
        granted.json  the job has begun       hosts/<n>.json  agent n has reported
        ready.json    the agents are ready    released.json   the head ends the allocation, and why
        ended.json    the batch script has ended, and the allocation with it
        parted.json   it has ended, but further jobs have joined the allocation, which may go on
        left.json     the head has ended all agents, so that the batch script need not wait for srun
        moves.sh      the batch script goes on with this, and the job with another allocation; moves.json has which one
        warned.json   the batch script has got Slurm's signal that the job ends soon
        changes.jsonl what has become of hosts, runs and procs, a line for each change
        jobs/<n>.json a further job has the ranks from n on, or will have them when it begins
        hosts/<n>.err log of agent n since it has lost its head: its stderr may have no reader any more

Each of these files is written whole, but for the last two. An allocation that is not a Slurm job has the files of an
attempt in the directory itself. `heads` has the files of the head, `ready` has `ready.json`, `settings` has
`config.json`, `changes` has `changes.jsonl`.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.allocation.attempts import newest_attempt
from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.core.storage.files import private_dir, read_private, write_private
from monarch_hpc.core.text.hostlist import expand

if TYPE_CHECKING:
    from monarch_hpc.wire.control.allocation import HostEntry

__all__ = [
    "ENDED",
    "GRANTED",
    "HOSTS",
    "KEY_BYTES",
    "MOVES",
    "PARTED",
    "RELEASED",
    "WARNED",
    "Granted",
    "ended_path",
    "is_over",
    "own_log_path",
    "own_logs",
    "read_exit_status",
    "read_granted",
    "read_key",
    "read_released",
    "read_reported",
    "remove_key",
    "report_host",
    "write_ended",
    "write_host",
    "write_key",
    "write_left",
    "write_released",
]

KEY_BYTES = 32

GRANTED = "granted.json"
ENDED = "ended.json"
PARTED = "parted.json"
MOVES = "moves.sh"
_LEFT = "left.json"  # the batch script names it, too
RELEASED = "released.json"
HOSTS = "hosts"
WARNED = "warned.json"

_KEY = "key"


@dataclass(frozen=True, slots=True)
class Granted:
    """The contents of ``granted.json``, which the batch script writes first.

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


def write_key(directory: Path, key: bytes, *, durable: bool = True) -> None:
    """Write the allocation's key; *durable* as for `core.storage.files.write_private`."""
    write_private(directory / _KEY, key, durable=durable)


def read_key(directory: Path) -> bytes:
    """Read the allocation's key.

    Raises:
        AllocationError: there is no key: the allocation was released, or has ended.
        ConfigError: the file is open to others, or has the wrong size.
    """
    path = directory / _KEY
    try:
        key = read_private(path, KEY_BYTES)
    except FileNotFoundError as error:
        raise AllocationError(
            directory.name, "it has ended or was released; take one with 'monarch-hpc alloc'"
        ) from error
    if len(key) != KEY_BYTES:
        raise ConfigError("", "", str(path), f"holds {len(key)} bytes, a key has {KEY_BYTES}")
    return key


def remove_key(directory: Path) -> None:
    """Remove the key, if there is one: no client can attach any more."""
    (directory / _KEY).unlink(missing_ok=True)


def write_host(folder: Path, entry: HostEntry, nonce: str) -> None:
    """Check that this host can write the shared directory, by reading back what it wrote.

    Raises:
        OSError, ConfigError: it cannot, or reads other contents.
    """
    path = private_dir(folder / HOSTS) / f"{entry.rank}.json"
    write_document(path, {"rank": entry.rank, "name": entry.name, "pid": entry.pid, "nonce": nonce})
    if read_document(path).text("nonce") != nonce:
        raise ConfigError("paths.shared", str(folder), str(path), "reads back other contents than were written")


def write_released(folder: Path, why: str) -> None:
    """Write down that our agents end the allocation by themselves, and why."""
    write_document(folder / RELEASED, {"why": why})


def read_released(folder: Path) -> str:
    """Return why our agents ended the allocation by themselves; raises `FileNotFoundError` if they did not."""
    return read_document(folder / RELEASED).text("why")


def write_left(folder: Path) -> None:
    """Write down that all agents end, or were waited for in vain."""
    write_document(folder / _LEFT, {"time_s": int(time.time())})


def is_over(folder: Path) -> bool:
    """Tell whether the batch script has ended, or the head has ended all agents, or the directory is gone.

    The directory is listed: see `heads.read_head`.
    """
    try:
        return not {ENDED, _LEFT}.isdisjoint(os.listdir(folder))
    except FileNotFoundError:
        return True


def read_reported(folder: Path) -> frozenset[int]:
    """Return the ranks of the agents that have reported."""
    names = os.listdir(folder / HOSTS)
    return frozenset(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))


def own_log_path(folder: Path, rank: int) -> Path:
    """Return the path of the log that an agent writes when the reader of its stderr may be gone."""
    return folder / HOSTS / f"{rank}.err"


def own_logs(folder: Path) -> list[Path]:
    """Return the paths of the logs that agents have written by themselves, by rank."""
    try:
        names = os.listdir(folder / HOSTS)
    except FileNotFoundError:
        return []
    return [own_log_path(folder, rank) for rank in sorted(int(name[:-4]) for name in names if name.endswith(".err"))]


def report_host(folder: Path, entry: HostEntry) -> str:
    """Report an agent as `write_host` does; return what is wrong with the folder, nothing if it can be written."""
    try:
        write_host(folder, entry, os.urandom(8).hex())
    except (OSError, ConfigError) as error:
        return f"cannot use the shared directory {folder} (config key 'paths.shared'): {error}"
    return ""


def read_granted(folder: Path) -> Granted:
    """Read ``granted.json``; raises `FileNotFoundError` if the job has not begun."""
    document = read_document(folder / GRANTED)
    nodelist = document.text("nodelist")
    return Granted(
        job_id=document.whole("job_id"),
        hosts=tuple(expand(nodelist)),
        nodelist=nodelist,
        at_s=float(document.whole("time_s")),
        restarts=document.whole("restarts"),
    )


def read_exit_status(folder: Path) -> int:
    """Read the batch script's exit status from ``ended.json``; raises `FileNotFoundError` while it runs."""
    return read_document(folder / ENDED).whole("exit_status")


def write_ended(folder: Path, job_id: int, exit_status: int) -> None:
    """Write ``ended.json`` in place of a batch script that cannot any more."""
    write_document(folder / ENDED, {"job_id": job_id, "exit_status": exit_status, "time_s": int(time.time())})


def ended_path(directory: Path) -> Path:
    """Return the path of the newest attempt's ``ended.json``."""
    return newest_attempt(directory)[1] / ENDED
