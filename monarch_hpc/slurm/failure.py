"""What a user reads when an allocation does not become ready: who is missing, and what they wrote last."""

from __future__ import annotations

from monarch_hpc.core.errors import AgentsMissing, AllocationError, JobFailed
from monarch_hpc.slurm.directory import last_words, look, tail
from monarch_hpc.slurm.job import Lifecycle
from monarch_hpc.slurm.parse import JobDetail
from monarch_hpc.slurm.registry import AllocationRecord, Ended
from monarch_hpc.slurm.states import SlurmState

__all__ = ["agents_missing", "job_failed"]

_NUM_LINES = 5


def job_failed(record: AllocationRecord, life: Lifecycle, detail: JobDetail | None, ended: Ended) -> JobFailed:
    """Return the error of a job that ended before its agents were ready.

    Args:
        record: of the allocation.
        life: how far it had come.
        detail: what Slurm said last.
        ended: how it ended.
    """
    reason = ended.reason
    words = tail(record.directory / "slurm.out", _NUM_LINES)
    if words:
        reason += f"; last lines of {record.directory}/slurm.out:" + "".join(f"\n    {line}" for line in words)
    elif life.granted is None and detail is not None and detail.state is SlurmState.FAILED:
        reason += "; " + _unwritten(record, detail.batch_host)
    return JobFailed(record.job_id or 0, ended.state, reason)


def agents_missing(record: AllocationRecord, life: Lifecycle) -> AllocationError:
    """Return the error of a job that runs without all of its agents."""
    if life.granted is None:
        problem = f"job {record.job_id} runs for {life.bootstrap_s:.0f} s; {_unwritten(record, 'its first host')}"
        return AllocationError(record.name, problem)
    hosts = life.granted.hosts
    reported = look(record.directory).reported
    missing = [host for rank, host in enumerate(hosts) if rank not in reported]
    if life.ready is not None:
        missing = list(life.ready.missing)
    words = last_words(record.directory, hosts, _NUM_LINES)
    # All reported, but the head is not done: what it wrote last is what there is to say.
    shown = missing or list(hosts[:1])
    return AgentsMissing(record.name, life.bootstrap_s, {host: words.get(host, ()) for host in shown})


def _unwritten(record: AllocationRecord, host: str) -> str:
    return (
        f"{host} wrote nothing into {record.directory}: is it on a file system that hosts write "
        "(config key paths.shared)?"
    )
