"""The time that is left to an allocation, for runs that say how much they need."""

from __future__ import annotations

import time
from collections.abc import Mapping

from monarch_hpc.config import Config
from monarch_hpc.core.errors import TimeTooShort
from monarch_hpc.slurm import Allocations, find_job_here
from monarch_hpc.slurm.commands.jobs import parse_left

__all__ = ["require_time"]


def require_time(config: Config, name: str | None, needed_s: float, environ: Mapping[str, str]) -> None:
    """Check that a run on an allocation has the time that it needs. Where Slurm tells of no end there is enough.

    Args:
        config: the configuration.
        name: the allocation as the user named it; None for the one that `run` would choose.
        needed_s: the time, in seconds.
        environ: environment of this process, which may be in a job.

    Raises:
        TimeTooShort: less is left.
        AllocationError: there is no such allocation.
        SlurmBusy: slurmctld does not answer.
    """
    allocations = Allocations.open(config)
    here = find_job_here(environ) if name is None else None
    if here is not None:
        detail = allocations.slurm.find_job(here.job_id)
        if detail is not None and detail.end_s is not None:
            _check(f"job-{here.job_id}", needed_s, detail.end_s - time.time())
        return
    if name is None and not any(record.live for record in allocations.registry.records()):
        return  # an embedded host has no end
    record = allocations.find(name)
    # Many runs share an answer of squeue, whose age counts; the time limit changes by 'extend' only, which drops it.
    census = allocations.reconcile(config.slurm.poll_max_s)
    if census.problem is not None:
        raise census.problem
    snapshot = allocations.registry.load_snapshot()
    row = census.rows.get(record.job_name)
    left_s = parse_left(row.left) if row is not None else None
    if snapshot is not None and left_s is not None:
        _check(record.name, needed_s, left_s - max(0.0, time.time() - snapshot.at_s))


def _check(name: str, needed_s: float, left_s: float) -> None:
    if left_s < needed_s:
        raise TimeTooShort(name, needed_s, max(0.0, left_s))
