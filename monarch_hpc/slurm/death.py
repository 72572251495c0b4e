"""Causes of death according to Slurm: of a job, and of one of its hosts. Agents cannot determine why a host is silent.

All but `ask_death`, `ask_standing` and `step_death` is pure. Slurm's word comes late where it must find out by itself:
a host without power is DOWN for it after half a minute, or after `SlurmdTimeout`.
"""

from __future__ import annotations

import re
from pathlib import Path

from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.hostlist import expand
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.cluster import NodeState
from monarch_hpc.slurm.commands.jobs import JobDetail
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.slurm.directory import tail
from monarch_hpc.supervision.relaunch import HostStanding

__all__ = [
    "ask_death",
    "ask_standing",
    "death_of_host",
    "death_of_job",
    "death_of_step",
    "has_host",
    "standing_of_host",
    "step_death",
]

_NUM_LINES = 20
"""Last lines of the job's output that are searched for Slurm's word that it has ended the step."""

# Slurm's reasons for the end of a job that it still cleans up after, when its state is only COMPLETING.
_REASONS = {
    "TimeLimit": DeathKind.TIME_LIMIT,
    "DeadLine": DeathKind.TIME_LIMIT,
    "NodeDown": DeathKind.NODE_FAILURE,
    "OutOfMemory": DeathKind.OOM,
}

# slurmstepd's words in the output of a step that it has ended, and what follows them.
_STEP = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+(?P<why>[^*]*)")
_STEP_REASONS = {
    "TIME LIMIT": DeathKind.TIME_LIMIT,
    "PREEMPTION": DeathKind.PREEMPTED,
    "NODE FAILURE": DeathKind.NODE_FAILURE,
}


def death_of_job(job: JobDetail | None) -> Death | None:
    """Return why a job ends or has ended; None while it goes on, or if Slurm does not know it."""
    if job is None:
        return None
    kind, ending = job.state.death, job.state.phase in (Phase.ENDING, Phase.ENDED)
    if job.preempted:
        kind = DeathKind.PREEMPTED
    elif kind is None and ending:
        # Slurm gives a reason for every other end.
        kind = _REASONS.get(job.reason, DeathKind.CANCELLED)
    elif kind is None and job.state.phase is Phase.QUEUED and job.restarts:
        kind = DeathKind.CANCELLED
    if kind is None:
        return None
    what = {DeathKind.PREEMPTED: "preempted by a job of higher priority", DeathKind.TIME_LIMIT: "at its time limit"}
    # A state like COMPLETING says that it ends, not why.
    words = what.get(kind) or job.reason or (job.slurm_state if job.state.death is not None else kind.value)
    again = ", and queued again" if job.state.phase is Phase.QUEUED else ""
    return Death(kind, f"Slurm ended job {job.job_id}: {words}{again}")


def has_host(job: JobDetail, host: str) -> bool:
    """Tell whether *host* is one of a job's hosts; if Slurm names none, as while it cleans up, it counts as one."""
    try:
        return not job.hosts or host in expand(job.hosts)
    except ConfigError:
        return True


def death_of_host(job: JobDetail | None, node: NodeState | None, host: str) -> Death | None:
    """Return why a job has lost *host*; None if Slurm finds nothing wrong."""
    death = death_of_job(job)
    if death is not None:
        return death
    if node is not None and node.failed:
        reason = f" ({node.reason})" if node.reason else ""
        return Death(DeathKind.NODE_FAILURE, f"Slurm says that {host} is {node.state}{reason}", host)
    if job is not None and not has_host(job, host):
        return Death(DeathKind.CANCELLED, f"Slurm has taken {host} from job {job.job_id}", host)
    return None


def death_of_step(output: str) -> Death | None:
    """Return why Slurm ended the step that wrote *output*; None if it does not say that it has."""
    found = list(_STEP.finditer(output))
    if not found:
        return None
    match = found[-1]
    kind = next((kind for words, kind in _STEP_REASONS.items() if words in match["why"]), DeathKind.CANCELLED)
    return Death(kind, match[0].strip("* "))


def step_death(output: Path) -> Death | None:
    """Return why Slurm ended the agents' step, by the last lines of the job's output; None if they do not say."""
    return death_of_step("\n".join(tail(output, _NUM_LINES)))


def ask_death(slurm: SlurmClient, job_id: int, host: str = "") -> Death | None:
    """Ask Slurm why a job, or one of its hosts, does not go on; None if it finds nothing wrong.

    Raises:
        SlurmError: Slurm does not answer, or not in words that are understood.
    """
    job = slurm.find_job(job_id)
    if not host:
        return death_of_job(job)
    nodes = slurm.node_states([host])
    return death_of_host(job, nodes[0] if nodes else None, host)


def standing_of_host(job: JobDetail | None, node: NodeState | None, host: str) -> HostStanding:
    """Return whether a job that runs still has *host*, and whether Slurm says that it works."""
    if job is None or job.state.phase is not Phase.RUNNING or not has_host(job, host):
        return HostStanding.GONE
    if node is None:
        return HostStanding.UNKNOWN
    return HostStanding.NOT_UP if node.failed else HostStanding.UP


def ask_standing(slurm: SlurmClient, job_id: int, host: str) -> HostStanding:
    """Ask Slurm whether a job still has *host*, and whether it works.

    Raises:
        SlurmError: Slurm does not answer, or not in words that are understood.
    """
    job = slurm.find_job(job_id)
    nodes = slurm.node_states([host])
    return standing_of_host(job, nodes[0] if nodes else None, host)
