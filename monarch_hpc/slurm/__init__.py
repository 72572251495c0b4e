"""Slurm allocations: requests hosts, follows their jobs, releases them, and leaks none."""

from __future__ import annotations

from monarch_hpc.slurm.allocation import Allocations, Released
from monarch_hpc.slurm.census import Census
from monarch_hpc.slurm.checks.plan import JobPlan, plan_job
from monarch_hpc.slurm.checks.site_rules import limits_in_words
from monarch_hpc.slurm.commands.jobs import QueueRow
from monarch_hpc.slurm.commands.messages import reason_in_words
from monarch_hpc.slurm.commands.states import Phase, SlurmState
from monarch_hpc.slurm.directory import Seen, look
from monarch_hpc.slurm.failure import agents_missing
from monarch_hpc.slurm.inside import JobHere, find_job_here, open_inside
from monarch_hpc.slurm.job import Lifecycle, Stage
from monarch_hpc.slurm.nodes.exclusions import Exclusion, Exclusions, exclude_bad_hosts
from monarch_hpc.slurm.registry import AllocationRecord, Ended, check_name
from monarch_hpc.slurm.script import Group, Request, plan_group_flags, plan_job_flags, render_salloc, render_script

__all__ = [
    "AllocationRecord",
    "Allocations",
    "Census",
    "Ended",
    "Exclusion",
    "Exclusions",
    "Group",
    "JobHere",
    "JobPlan",
    "Lifecycle",
    "Phase",
    "QueueRow",
    "Released",
    "Request",
    "Seen",
    "SlurmState",
    "Stage",
    "agents_missing",
    "check_name",
    "exclude_bad_hosts",
    "find_job_here",
    "limits_in_words",
    "look",
    "open_inside",
    "plan_group_flags",
    "plan_job",
    "plan_job_flags",
    "reason_in_words",
    "render_salloc",
    "render_script",
]
