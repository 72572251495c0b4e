"""Takes further hosts for the program's allocation, as one more Slurm job; `monarch-hpc alloc --grow` does the same."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config import Config
from monarch_hpc.config.load import load
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.logger import Logger
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.slurm import AllocationRecord, Allocations, Stage, earlier_replacements, note_outcome, plan_growth
from monarch_hpc.supervision.replacement import ReplacementLimit

__all__ = ["grow_allocation", "replace_hosts"]

_TOLD_S = 10.0
"""Time between the file that says that hosts have joined and the head's message of the same; both are sent at once."""

_LOOK_S = 0.02

_log = Logger(__name__)


def replace_hosts(tenancy: Tenancy, num_hosts: int, timeout_s: float) -> list[int]:
    """Take *num_hosts* hosts in place of lost ones, as `grow_allocation` does, but within limits (section `heal`).

    Raises:
        AllocationError, SlurmError: as there; or no host may be requested now.
    """
    return grow_allocation(tenancy, num_hosts, (), timeout_s, replaces=True)


def grow_allocation(
    tenancy: Tenancy, num_hosts: int | str, options: Sequence[str], timeout_s: float | None, *, replaces: bool = False
) -> list[int]:
    """Take *num_hosts* hosts, or those of an allocation, and return their ranks once their agents have joined.

    If that fails, or takes longer than *timeout_s* (None: no limit), their job is given back.

    Raises:
        AllocationError: the allocation is none that `monarch-hpc alloc` made here; or the hosts did not come in time.
        SlurmError: Slurm refuses the job.
    """
    config = load().config
    known = Allocations.open(config)
    home = next((one for one in known.registry.records() if one.directory == tenancy.directory), None)
    if home is None:
        problem = "cannot grow from here: this machine has no record of it, as 'monarch-hpc alloc' and SlurmJob make"
        raise AllocationError(tenancy.name, problem)
    if replaces:
        heal, silence = read_config(tenancy.directory).heal, known.reconcile().problem
        limit = ReplacementLimit(heal.max_pending, heal.per_hour)
        earlier = earlier_replacements(known.registry, home)
        if refusal := limit.refusal(earlier, time.time(), "" if silence is None else str(silence)):
            raise AllocationError(tenancy.name, f"no hosts are requested from Slurm: {refusal}")
    if isinstance(num_hosts, str):
        return _await_hosts(known, home, tenancy, _move(config, known, home, num_hosts, options), timeout_s, moved=True)
    config, request = plan_growth(config, home, num_hosts, options=tuple(options), replaces=replaces)
    allocations = Allocations(config, known.registry, known.slurm)
    request, plan = allocations.plan(request)
    for note in plan.notes:
        _log.warning("%s", note)
    return _await_hosts(allocations, home, tenancy, allocations.submit(request), timeout_s)


def _move(
    config: Config, allocations: Allocations, home: AllocationRecord, name: str, options: Sequence[str]
) -> AllocationRecord:
    from monarch_hpc.attach.moving import move_hosts  # few programs need it

    if options:
        raise ValueError(f"slurm_args are for a new job: the hosts of {name!r} have one")
    return move_hosts(config, allocations, home, allocations.find(name))[0]


def _await_hosts(
    allocations: Allocations,
    home: AllocationRecord,
    tenancy: Tenancy,
    job: AllocationRecord,
    timeout_s: float | None,
    *,
    moved: bool = False,
) -> list[int]:
    """Return the ranks of the hosts of a job that joins, which is given back if they do not come, unless it *moved*."""
    late = False
    try:
        deadline = Deadline(math.inf if timeout_s is None else timeout_s)
        life = allocations.follow(job, lambda _life: None, deadline.passed)
        if life.stage is not Stage.READY or life.granted is None:
            late = True
            why = f": {life.reason}" if life.reason else ""
            raise AllocationError(home.name, f"job {job.job_id} has brought no hosts in {timeout_s:g} s{why}")
        ranks = list(range(job.first_rank, job.first_rank + len(life.granted.hosts)))
        told = Deadline(_TOLD_S)
        while not tenancy.hosts.keys() >= set(ranks):
            if told.passed() or tenancy.over:
                raise AllocationError(home.name, tenancy.over or "its head does not tell of the hosts that have joined")
            time.sleep(_LOOK_S)
        note_outcome(job, "")
    except BaseException as error:
        if isinstance(error, Exception) and not late:
            note_outcome(job, str(error).partition("\n")[0])
        if not moved:  # its hosts were here before, and join a moment later
            allocations.give_back(job, error)
        raise
    return ranks
