"""The error of a run whose allocation is gone or out of reach: Slurm says why, as far as it knows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import AllocationError, JobFailed, MonarchError, SlurmError

if TYPE_CHECKING:
    from monarch_hpc.slurm import AllocationRecord, Allocations

__all__ = ["JOB_END_S", "why_lost"]

JOB_END_S = 10.0
"""Time that Slurm may take to report the end of a job whose head is lost."""

_LOOK_S = 0.5


def why_lost(config: Config, name: str, problem: str, wait_s: float, told: Death | None = None) -> MonarchError:
    """Return an error with Slurm's account of an allocation's end; with *problem* if it has not ended.

    Args:
        wait_s: time that Slurm may take to report the end.
        told: why the allocation ends, as its head has said.
    """
    try:
        return _ask(config, name, problem, wait_s, told)
    except SlurmError as error:
        unknown = f"{problem} (its state in Slurm is unknown: {error}); see 'monarch-hpc status {name}'"
        return AllocationError(name, unknown, DeathKind.UNKNOWN if told is None else told.kind)


def _ask(config: Config, name: str, problem: str, wait_s: float, told: Death | None) -> MonarchError:
    from monarch_hpc.slurm import Allocations

    allocations = Allocations.open(config)
    deadline = Deadline(wait_s)
    first = True
    while True:
        late = deadline.passed()
        census = allocations.reconcile()
        record = allocations.find(name)
        row = census.rows.get(record.job_name)
        if record.ended is not None:
            kind, words = _explain(record.ended.state, record.directory, told)
            return JobFailed(record.job_id or 0, record.ended.state, record.ended.reason + words, kind)
        if allocations.requeued(record, row):
            again = "Slurm has requeued its job, which ends all runs; 'monarch-hpc status' shows when it is ready again"
            return AllocationError(name, again, DeathKind.UNKNOWN if told is None else told.kind)
        failure = _failure_of_head(allocations, record) if (first or late) and census.problem is None else None
        if failure is not None:
            return AllocationError(name, f"{problem}; {failure.cause}; see 'monarch-hpc status {name}'", failure.kind)
        if late or census.problem is not None:
            state = f"Slurm says {row.slurm_state}" if row is not None else "its state in Slurm is unknown"
            kind = DeathKind.UNKNOWN if told is None else told.kind
            return AllocationError(name, f"{problem} ({state}); see 'monarch-hpc status {name}'", kind)
        first = False
        time.sleep(_LOOK_S)


def _explain(state: str, directory: Path, told: Death | None) -> tuple[DeathKind, str]:
    """The kind of a job's end, and words to add to Slurm's."""
    from monarch_hpc.slurm import SlurmState
    from monarch_hpc.slurm.death import step_death

    kind = SlurmState.parse(state).death
    if told is not None and kind in (None, DeathKind.EXIT, DeathKind.CANCELLED):
        return told.kind, f"; {told.cause}"
    if kind in (None, DeathKind.EXIT) and (step := step_death(directory / "slurm.out")):
        return step.kind, f"; {step.cause}"
    return kind or DeathKind.UNKNOWN, ""


def _failure_of_head(allocations: Allocations, record: AllocationRecord) -> Death | None:
    """The failure of the host of an allocation's head, if Slurm reports one; the job may go on without it."""
    from monarch_hpc.slurm import look
    from monarch_hpc.slurm.death import ask_death

    ready = look(record.directory).ready
    if ready is None or record.job_id is None or not ready.names:
        return None
    try:
        found = ask_death(allocations.slurm, record.job_id, ready.names[min(ready.names)])
    except SlurmError:
        return None
    return found if found is not None and found.kind is DeathKind.NODE_FAILURE else None
