"""Ends what an earlier agent of this host has left, and that agent: before another takes its place.

An agent that was killed could not sweep its host. One that was only stopped would do so when it goes on, and end the
procs of its successor, which carry the same marks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
from collections.abc import Iterator, Sequence

from monarch_hpc.agent.children.sweep import cookies, has_entries, orphans, sweep
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.machine.procfs import PROC, each_pid, read_command, read_environ

__all__ = ["agents_below", "end_agents", "end_predecessor", "is_agent_of"]

_SWEEP_S = 5.0


def end_predecessor(allocation: str, uuid: str, rank: int) -> int:
    """Kill an earlier agent of this host, its procs and what they have started; return how many processes survive.

    Args:
        allocation: the identity in the marks of processes.
        uuid: the allocation's own, as in the command lines of its agents.
    """
    end_agents(allocation, uuid, 0.0, rank)
    left = sweep(cookies(allocation, rank), _SWEEP_S)
    remove_segments(allocation, rank)
    return left


def end_agents(allocation: str, uuid: str, patience_s: float, rank: int | None = None) -> None:
    """Wait for the agents of an allocation on this machine to end; after *patience_s* they are killed, and awaited.

    The head starts agents again, as children of its own: whoever has started the first ones may never have seen these.

    Args:
        rank: the host whose agents are meant; None for those of all hosts.
    """
    pidfds: list[int] = []
    try:
        for pid in _others():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if not is_agent_of(_words(pid), uuid, rank):
                    continue  # as most of a machine's processes
                # Before another look: the process that is looked at and the one that is killed are then the same.
                pidfd = os.pidfd_open(pid)
                try:
                    if _is_agent(pid, allocation, uuid, rank):
                        pidfds.append(os.dup(pidfd))
                finally:
                    os.close(pidfd)
        _wait_ended(pidfds, Deadline(patience_s))
        for pidfd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _wait_ended(pidfds, Deadline(_SWEEP_S))
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


def agents_below(uuid: str, rank: int) -> list[int]:
    """The children of this process, the agent of host *rank*, that are agents of other hosts: it started them as head.

    Its zygotes show the same command line as it does.
    """
    words = {pid: _words(pid) for pid in orphans(())}
    return [pid for pid, own in words.items() if is_agent_of(own, uuid, None) and not is_agent_of(own, uuid, rank)]


def _is_agent(pid: int, allocation: str, uuid: str, rank: int | None) -> bool:
    if not is_agent_of(_words(pid), uuid, rank):
        return False
    return not has_entries(read_environ(pid) or b"", cookies(allocation))  # else it is a zygote, or forked from one


def _words(pid: int) -> list[str]:
    return read_command(pid).decode(errors="replace").rstrip("\0").split("\0")


def _wait_ended(pidfds: Sequence[int], deadline: Deadline) -> None:
    for pidfd in pidfds:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        ended.poll(deadline.left_s() * 1000)


def is_agent_of(words: Sequence[str], uuid: str, rank: int | None) -> bool:
    """Tell whether a command line is that of an agent, on host *rank* if given; the last of equal options counts."""
    if "monarch_hpc.agent" not in words or "-m" not in words:
        return False
    options = dict(itertools.pairwise(words))
    if not all(options.get(name, "0").isdecimal() for name in ("--rank", "--first-rank")):
        return False
    place = int(options.get("--first-rank", "0")) + int(options.get("--rank", "-1"))
    return options.get("--allocation") == uuid and rank in (None, place)


def _others() -> Iterator[int]:
    own, uid = os.getpid(), os.geteuid()
    for pid in each_pid():
        with contextlib.suppress(OSError):
            if pid != own and os.stat(f"{PROC}/{pid}").st_uid == uid:
                yield pid
