"""A job as it is submitted: checked against the site's rules, and fitted into its reservation."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config import Config, FlagValue
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError
from monarch_hpc.slurm.checks.reservation import Requester, find_reservation, fit_reservation
from monarch_hpc.slurm.checks.site_rules import check_site_rules
from monarch_hpc.slurm.commands.client import SlurmClient

__all__ = ["JobPlan", "plan_job"]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What becomes of a job before sbatch.

    Args:
        options: sbatch options that fit it into its reservation, to be added to the user's.
        notes: sentences for the user.
        opens: when its reservation begins, as Slurm prints it; empty if it has begun, or there is none.
    """

    options: tuple[str, ...]
    notes: tuple[str, ...]
    opens: str = ""


def plan_job(config: Config, flags: Mapping[str, FlagValue], slurm: SlurmClient | None) -> JobPlan:
    """Check a job before sbatch.

    Args:
        flags: flags of the job, by name.
        slurm: asked for the reservation; None to ask nothing.

    Raises:
        ConfigError: the site's rules or the reservation refuse it.
    """
    notes = check_site_rules(config, flags, Path.home())
    name, time_min, nodes = flags.get("reservation"), flags.get("time"), flags.get("nodes")
    # A list of names lets Slurm choose; a limit in another notation was written by hand, and is left alone.
    if slurm is None or not isinstance(name, str) or "," in name:
        return JobPlan((), tuple(notes))
    try:
        found = find_reservation(slurm.reservations(), name)
    except (SlurmBusy, SlurmCommandError):
        return JobPlan((), tuple(notes))  # sbatch decides
    wanted_min = int(time_min) if isinstance(time_min, str) and time_min.isdecimal() else 1
    num_free = slurm.count_free(found.nodes) if found.nodes else None
    account = flags.get("account")
    requester = Requester(
        pwd.getpwuid(os.geteuid()).pw_name, _groups(), account if isinstance(account, str) and account else None
    )
    fit = fit_reservation(found, requester, wanted_min, str(nodes or 1), num_free, time.time())
    options = (f"--time={fit.time_min}",) if fit.time_min < wanted_min else ()
    return JobPlan(options, (*notes, *fit.notes), fit.opens)


def _groups() -> frozenset[str]:
    names = set()
    for number in {os.getegid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue  # a group without a name is in no list of names
    return frozenset(names)
