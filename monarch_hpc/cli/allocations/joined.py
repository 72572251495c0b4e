"""The further jobs of an allocation that has grown, as `monarch-hpc status` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.slurm import AllocationRecord, Census, Phase, reason_in_words

__all__ = ["joined_jobs"]


def joined_jobs(
    record: AllocationRecord, census: Census, hosts: Sequence[Mapping[str, object]]
) -> list[dict[str, object]]:
    """Return the live jobs that have joined an allocation, or are to join it.

    Args:
        hosts: those of the allocation, by its head.
    """
    return [_describe(job, census, hosts) for job in census.joined if job.joins == record.allocation and job.live]


def _describe(job: AllocationRecord, census: Census, hosts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    row = census.rows.get(job.job_name)
    ours = [host for host in hosts if job.job_id is not None and host.get("job_id") == job.job_id]
    there = sum(host["state"] not in ("lost", "dead") for host in ours)
    state = "submitted"
    if job.release_why:
        state = "releasing"
    elif job.job_id is None:
        state = f"being submitted on {job.owner.host}"
    elif row is not None and row.state.phase is Phase.QUEUED:
        state = f"queued: {reason_in_words(row.reason)}" if row.reason else "queued"
    elif row is not None and row.state.phase is Phase.ENDING:
        state = "ending"
    elif row is not None:
        state = "joined" if there else "starting"
    return {
        "job_id": job.job_id,
        "job_name": job.job_name,
        "directory": str(job.directory),
        "state": state,
        "first_rank": job.first_rank,
        "hosts": f"{there}/{job.num_hosts}",
        "nodelist": row.hosts if row is not None else "",
        "left": row.left if row is not None else "",
        "end": row.end if row is not None else "",
    }
