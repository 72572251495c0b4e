"""Slurm allocations: requests hosts, follows their jobs, releases them, and leaks none."""

from __future__ import annotations

from monarch_hpc.slurm.allocation import Allocations, Census, Released
from monarch_hpc.slurm.directory import Seen, look
from monarch_hpc.slurm.inside import JobHere, find_job_here, open_inside
from monarch_hpc.slurm.job import Lifecycle, Stage
from monarch_hpc.slurm.messages import reason_in_words
from monarch_hpc.slurm.parse import QueueRow
from monarch_hpc.slurm.registry import AllocationRecord, Ended, check_name
from monarch_hpc.slurm.script import Request, plan_job_flags, render_script
from monarch_hpc.slurm.states import Phase, SlurmState

__all__ = [
    "AllocationRecord",
    "Allocations",
    "Census",
    "Ended",
    "JobHere",
    "Lifecycle",
    "Phase",
    "QueueRow",
    "Released",
    "Request",
    "Seen",
    "SlurmState",
    "Stage",
    "check_name",
    "find_job_here",
    "look",
    "open_inside",
    "plan_job_flags",
    "reason_in_words",
    "render_script",
]
