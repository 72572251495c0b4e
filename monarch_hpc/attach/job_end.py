"""Tells an allocation that Slurm has moved the end of its job."""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.attach.attach import ask
from monarch_hpc.wire.control.deadline import JobEnd, SetJobEnd

__all__ = ["announce_job_end"]


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
