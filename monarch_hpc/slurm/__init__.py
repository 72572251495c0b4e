"""Slurm allocations: requests hosts, follows their jobs, releases them, and leaks none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
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
    from monarch_hpc.slurm.nodes.growth import earlier_replacements, note_outcome, plan_growth
    from monarch_hpc.slurm.nodes.moving import decide_move, move_refusal
    from monarch_hpc.slurm.record import AllocationRecord, Ended
    from monarch_hpc.slurm.registry import check_name
    from monarch_hpc.slurm.script import Group, Request, plan_group_flags, plan_job_flags, render_salloc, render_script

# Loaded at their first use: completion of words reads a file of the registry, and nothing else.
_HOMES = {
    "AllocationRecord": "slurm.record",
    "Allocations": "slurm.allocation",
    "Census": "slurm.census",
    "Ended": "slurm.record",
    "Exclusion": "slurm.nodes.exclusions",
    "Exclusions": "slurm.nodes.exclusions",
    "Group": "slurm.script",
    "JobHere": "slurm.inside",
    "JobPlan": "slurm.checks.plan",
    "Lifecycle": "slurm.job",
    "Phase": "slurm.commands.states",
    "QueueRow": "slurm.commands.jobs",
    "Released": "slurm.allocation",
    "Request": "slurm.script",
    "Seen": "slurm.directory",
    "SlurmState": "slurm.commands.states",
    "Stage": "slurm.job",
    "agents_missing": "slurm.failure",
    "check_name": "slurm.registry",
    "decide_move": "slurm.nodes.moving",
    "earlier_replacements": "slurm.nodes.growth",
    "exclude_bad_hosts": "slurm.nodes.exclusions",
    "find_job_here": "slurm.inside",
    "limits_in_words": "slurm.checks.site_rules",
    "look": "slurm.directory",
    "move_refusal": "slurm.nodes.moving",
    "note_outcome": "slurm.nodes.growth",
    "open_inside": "slurm.inside",
    "plan_group_flags": "slurm.script",
    "plan_growth": "slurm.nodes.growth",
    "plan_job": "slurm.checks.plan",
    "plan_job_flags": "slurm.script",
    "reason_in_words": "slurm.commands.messages",
    "render_salloc": "slurm.script",
    "render_script": "slurm.script",
}

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
    "decide_move",
    "earlier_replacements",
    "exclude_bad_hosts",
    "find_job_here",
    "limits_in_words",
    "look",
    "move_refusal",
    "note_outcome",
    "open_inside",
    "plan_group_flags",
    "plan_growth",
    "plan_job",
    "plan_job_flags",
    "reason_in_words",
    "render_salloc",
    "render_script",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
