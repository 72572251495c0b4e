"""Orders to a head: to shut down, to give hosts back or drain them, and to take note that its job ends later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.attach.head.client import HeadClient, ask
from monarch_hpc.attach.head.status import HeadStatus, ask_status
from monarch_hpc.wire.control.allocation import (
    DrainHost,
    FreeHosts,
    HostsFreed,
    ShutDown,
    ShutDownDone,
    Vacate,
    Vacated,
)
from monarch_hpc.wire.control.deadline import JobEnd, SetJobEnd

__all__ = ["announce_job_end", "drain_host", "free_hosts", "shut_down", "vacate"]

_ANSWER_S = 12.0
"""Beyond the procs' grace, how long a head may take to shut an allocation down; its agents have earlier deadlines."""


def vacate(head: HeadClient, timeout_s: float) -> str | None:
    """Let nothing use an allocation while *head* is open, if nothing uses it now.

    Args:
        timeout_s: longest wait for the head.

    Returns:
        What uses it; empty if nothing does, and nothing will; None if the head cannot be reached.
    """
    answer, _, _ = ask(head, Vacate(), Vacated, timeout_s)
    return answer.use if isinstance(answer, Vacated) else None


def shut_down(head: Path | HeadClient, timeout_s: float) -> dict[str, int] | None:
    """Shut down all procs and agents of an allocation.

    Args:
        head: its directory, or a channel to its head.
        timeout_s: time between SIGTERM and SIGKILL of procs.

    Returns:
        The number of processes left on each host, -1 where it is unknown; None if the head cannot be reached.
    """
    answer, _, _ = ask(head, ShutDown(timeout_s), ShutDownDone, timeout_s + _ANSWER_S)
    return dict(answer.left) if isinstance(answer, ShutDownDone) else None


def free_hosts(directory: Path, ranks: Sequence[int], timeout_s: float) -> dict[str, int] | None:
    """End all procs and the agents on some hosts of an allocation, which goes on without them.

    Args:
        ranks: the hosts; not the head's.
        timeout_s: time between SIGTERM and SIGKILL of procs.

    Returns:
        As `shut_down`, for these hosts.
    """
    answer, _, _ = ask(directory, FreeHosts(list(ranks), timeout_s), HostsFreed, timeout_s + _ANSWER_S)
    return dict(answer.left) if isinstance(answer, HostsFreed) else None


def drain_host(directory: Path, host: str, reason: str, timeout_s: float) -> HeadStatus | None:
    """Take a host of an allocation out of use, or back into use if *reason* is empty; answers as `query_status`."""
    return ask_status(directory, DrainHost(host, reason), timeout_s)


def announce_job_end(directory: Path, end_s: float, timeout_s: float) -> bool:
    """Report the new end of its job to the head of the allocation in *directory*, which informs the programs.

    Args:
        end_s: the end in seconds since the epoch, as Slurm reports it: `slurm.commands.jobs.JobDetail.end_s`.
        timeout_s: longest wait for the head.

    Returns:
        Whether the head has confirmed it. If not, programs go on with the earlier end.
    """
    answer, _, _ = ask(directory, SetJobEnd(end_s), JobEnd, timeout_s)
    return isinstance(answer, JobEnd)
