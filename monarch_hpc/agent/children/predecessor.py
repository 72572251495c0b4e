"""Ends what an earlier agent of this host has left, and that agent: before another takes its place.

An agent that was killed could not sweep its host. One that was only stopped would do so when it goes on, and end the
procs of its successor, which carry the same marks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator, Sequence

from monarch_hpc.agent.children.sweep import cookies, sweep
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.core.machine.procfs import PROC, each_pid

__all__ = ["end_predecessor", "is_agent_of"]

_SWEEP_S = 5.0


def end_predecessor(allocation: str, uuid: str, rank: int) -> int:
    """Kill an earlier agent of this host, its procs and what they have started; return how many processes survive.

    Args:
        allocation: the identity in the marks of processes.
        uuid: the allocation's own, as in the command lines of its agents.
    """
    for pid in _others():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # pidfd first: the process that is looked at and the one that is killed are then the same.
            pidfd = os.pidfd_open(pid)
            try:
                words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                if is_agent_of(words, uuid, rank):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    left = sweep(cookies(allocation, rank), _SWEEP_S)
    remove_segments(allocation, rank)
    return left


def is_agent_of(words: Sequence[str], uuid: str, rank: int) -> bool:
    """Tell whether a command line is that of an agent of host *rank*; the last of equal options counts."""
    if "monarch_hpc.agent" not in words or "-m" not in words:
        return False
    options = dict(itertools.pairwise(words))
    if not all(options.get(name, "0").isdecimal() for name in ("--rank", "--first-rank")):
        return False
    place = int(options.get("--first-rank", "0")) + int(options.get("--rank", "-1"))
    return options.get("--allocation") == uuid and place == rank


def _others() -> Iterator[int]:
    own, uid = os.getpid(), os.geteuid()
    for pid in each_pid():
        with contextlib.suppress(OSError):
            if pid != own and os.stat(PROC / str(pid)).st_uid == uid:
                yield pid
