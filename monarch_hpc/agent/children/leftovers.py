"""Finds processes that an earlier allocation of this user left on this host, when its agent was killed.

An agent sweeps its host at its end. A killed one cannot, and where Slurm follows process groups instead of cgroups,
daemons of its procs outlive the job: they hold GPUs and ports that the next allocation needs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from monarch_hpc.allocation.attempts import attempt_identity
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import PROC, each_pid, read_environ
from monarch_hpc.wire.start import COOKIE

__all__ = ["Leftover", "find_leftovers", "kill_leftovers"]

_JOB = "SLURM_JOB_ID"
# Slurm's own process for each step of a job on this host, for as long as the job has one here.
_STEP = re.compile(r"slurmstepd: \[(\d+)")
# An exec takes a millisecond; one from a file system that has stopped may take for ever.
_EXEC_S = 1.0
_EXEC_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of an allocation that is over on this host.

    Args:
        allocation: identity of the attempt that started it.
        job_id: the Slurm job that it was in; empty if in none.
    """

    pid: int
    allocation: str
    job_id: str
    command: str


def find_leftovers(proc: Path = PROC, uid: int | None = None) -> list[Leftover]:
    """Return this user's processes that carry the mark of an allocation without an agent and without a job here.

    Whatever is not known to be left over is left alone: a process whose job has a step here, such as a batch job that
    an actor submitted, and everything if this user cannot see Slurm's processes.
    """
    if not _sees_all(proc):
        return []
    uid = os.geteuid() if uid is None else uid
    commands = _commands(proc)
    agents = {identity for _, words in commands.values() if (identity := _agent_of(words))}
    jobs = {match[1] for _, words in commands.values() if (match := _STEP.match(words[0]))}
    found = []
    deadline = Deadline(_EXEC_S)
    for pid, (owner, words) in commands.items():
        if owner != uid or pid == os.getpid():
            continue
        marks = _marks(pid, deadline, proc)
        allocation, job_id = marks.get(COOKIE, ""), marks.get(_JOB, "")
        if allocation and allocation not in agents and job_id not in jobs:
            found.append(Leftover(pid, allocation, job_id, " ".join(words)))
    return found


def kill_leftovers(leftovers: Iterable[Leftover]) -> int:
    """Send SIGKILL to processes that `find_leftovers` returned, if they still are what they were; return how many."""
    num_killed = 0
    deadline = Deadline(_EXEC_S)
    for leftover in leftovers:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # pidfd first: the environment that is read and the process that is killed are then of the same process.
            pidfd = os.pidfd_open(leftover.pid)
            try:
                if _marks(leftover.pid, deadline).get(COOKIE) == leftover.allocation:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    num_killed += 1
            finally:
                os.close(pidfd)
    return num_killed


def _sees_all(proc: Path) -> bool:
    """Tell whether processes of other users are visible; /proc may be mounted with hidepid."""
    return bool(_read(proc / "1" / "cmdline"))


def _commands(proc: Path) -> dict[int, tuple[int, list[str]]]:
    """Owner and words of the command line of each process; one empty word if it shows none."""
    found = {}
    for pid in each_pid(proc):
        with contextlib.suppress(OSError):
            found[pid] = os.stat(proc / str(pid)).st_uid, _words(pid, proc)
    # Again: one may be the agent, within its exec then, of a process that was listed later.
    return {pid: (owner, words if any(words) else _words(pid, proc)) for pid, (owner, words) in found.items()}


def _words(pid: int, proc: Path) -> list[str]:
    return _read(proc / str(pid) / "cmdline").decode(errors="replace").rstrip("\0").split("\0")


def _agent_of(words: list[str]) -> str:
    """The identity of the attempt whose agent has this command line; empty if it is no agent."""
    if "monarch_hpc.agent" not in words:
        return ""
    options: Mapping[str, str] = dict(itertools.pairwise(words))
    attempt = options.get("--attempt", "0")
    return attempt_identity(options.get("--allocation", ""), int(attempt) if attempt.isdecimal() else 0)


def _marks(pid: int, deadline: Deadline, proc: Path = PROC) -> dict[str, str]:
    """The marks in the environment of a process; waits until the *deadline* for the end of an exec."""
    while (environ := read_environ(pid, proc)) is None and not deadline.passed():
        time.sleep(_EXEC_PAUSE_S)
    entries = (entry.partition(b"=") for entry in (environ or b"").split(b"\0"))
    wanted = {COOKIE.encode(), _JOB.encode()}
    return {name.decode(): value.decode(errors="replace") for name, _, value in entries if name in wanted}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
