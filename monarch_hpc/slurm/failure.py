"""Errors of an allocation that does not become ready: the missing hosts, and the last lines of their output."""

from __future__ import annotations

from monarch_hpc.core.death import DeathKind
from monarch_hpc.core.errors import AgentsMissing, AllocationError, JobFailed
from monarch_hpc.slurm.commands.jobs import JobDetail
from monarch_hpc.slurm.commands.messages import explain_output
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.directory import last_lines, look, tail
from monarch_hpc.slurm.job import Lifecycle
from monarch_hpc.slurm.record import AllocationRecord, Ended

__all__ = ["agents_missing", "job_failed"]

_NUM_LINES = 5


def job_failed(record: AllocationRecord, life: Lifecycle, detail: JobDetail | None, ended: Ended) -> JobFailed:
    """Return the error of a job that ended before its agents were ready.

    Args:
        record: the allocation's record.
        life: the allocation's last known state.
        detail: Slurm's last report of the job.
        ended: the end as recorded.
    """
    reason = ended.reason
    lines = tail(record.directory / "slurm.out", _NUM_LINES)
    if lines:
        reason += f"; last lines of {record.directory}/slurm.out:" + "".join(f"\n    {line}" for line in lines)
        if advice := explain_output("\n".join(lines)):
            reason += f"\n{advice}"
    elif life.granted is None and detail is not None and detail.state is SlurmState.FAILED:
        reason += "; " + _unwritten(record, detail.batch_host)
    return JobFailed(record.job_id or 0, ended.state, reason, SlurmState.parse(ended.state).death or DeathKind.UNKNOWN)


def agents_missing(record: AllocationRecord, life: Lifecycle) -> AllocationError:
    """Return the error of a job that runs without all of its agents."""
    if life.granted is None:
        problem = f"job {record.job_id} has run for {life.bootstrap_s:.0f} s; {_unwritten(record, 'its first host')}"
        return AllocationError(record.name, problem)
    hosts = life.granted.hosts
    reported = look(record.directory).reported
    missing = [host for rank, host in enumerate(hosts) if rank not in reported]
    if life.ready is not None:
        missing = list(life.ready.missing)
    lines = last_lines(record.directory, hosts, _NUM_LINES)
    # All have reported, but the head has not finished: show its last lines.
    shown = missing or list(hosts[:1])
    error = AgentsMissing(record.name, life.bootstrap_s, {host: lines.get(host, ()) for host in shown})
    if advice := explain_output("\n".join(tail(record.directory / "slurm.out", _NUM_LINES))):
        error.add_note(advice)
    return error


def _unwritten(record: AllocationRecord, host: str) -> str:
    return (
        f"{host} wrote nothing into {record.directory}: is it on a file system that hosts can write "
        "(config key paths.shared)?"
    )
