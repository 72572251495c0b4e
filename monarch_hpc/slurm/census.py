"""Census of allocations: records against Slurm's queue; asks scontrol, then sacct, what became of the missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError, SlurmBusy, SlurmMissing
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.jobs import QueueRow
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.slurm.directory import look
from monarch_hpc.slurm.job import AskSlurm, CancelJob, CloseRecord, PartRecord, decide, decide_gone
from monarch_hpc.slurm.nodes.moving import complete_move
from monarch_hpc.slurm.record import AllocationRecord, owner_lives
from monarch_hpc.slurm.registry import Registry, Snapshot

__all__ = ["Census", "queue_snapshot", "take_census"]


@dataclass(frozen=True, slots=True)
class Census:
    """The state of all allocations after records and Slurm's queue were compared.

    Args:
        records: those of all allocations, the oldest first.
        joined: those of the jobs that join them.
        rows: the jobs that squeue listed, by job name.
        changes: what was done, as sentences for the user.
        problem: why Slurm did not answer; the remaining records are unchanged then.
    """

    records: tuple[AllocationRecord, ...]
    rows: Mapping[str, QueueRow]
    changes: tuple[str, ...] = ()
    problem: MonarchError | None = None
    joined: tuple[AllocationRecord, ...] = ()


def take_census(registry: Registry, slurm: SlurmClient, max_age_s: float) -> Census:
    """Compare records with the queue; cancel orphaned jobs and close the records of jobs that ended.

    Args:
        registry: the records.
        slurm: Slurm's commands.
        max_age_s: a cached answer of squeue may be this old, in seconds.
    """
    records = _give_up_joined(registry, [complete_move(registry, record) for record in registry.jobs()])
    try:
        slurm.require("squeue")
        snapshot = queue_snapshot(registry, slurm, records, max_age_s)
    except (SlurmBusy, SlurmMissing) as error:
        return _census(records, {}, (), error)
    rows = snapshot.rows()
    changes: list[str] = []
    settled: list[AllocationRecord] = []
    problem: MonarchError | None = None
    for record in records:
        try:
            # Every request to a slurmctld that does not answer takes its full timeout: one is enough.
            row = rows.get(record.job_name)
            others = _others(record, records, rows)
            settled.append(record if problem else _settle(registry, slurm, record, row, others, changes))
        except SlurmBusy as error:
            settled.append(record)
            problem = error
    registry.prune(time.time())
    return _census(settled, rows, changes, problem)


def _census(
    records: Sequence[AllocationRecord],
    rows: Mapping[str, QueueRow],
    changes: Sequence[str],
    problem: MonarchError | None,
) -> Census:
    allocations = tuple(record for record in records if not record.joins)
    return Census(allocations, rows, tuple(changes), problem, tuple(record for record in records if record.joins))


def _give_up_joined(registry: Registry, records: Sequence[AllocationRecord]) -> tuple[AllocationRecord, ...]:
    """Request the release of the jobs that join an allocation which has ended, or is being released."""
    allocations = {record.allocation: record for record in records if not record.joins}
    kept = []
    for record in records:
        joined = allocations.get(record.joins)
        over = joined is None or not joined.live or bool(joined.release_why)
        if record.joins and record.live and not record.release_why and over:
            record = registry.request_release(record, "the allocation that it joins has ended")
        kept.append(record)
    return tuple(kept)


def queue_snapshot(
    registry: Registry, slurm: SlurmClient, records: Sequence[AllocationRecord], max_age_s: float
) -> Snapshot:
    """Return squeue's output for all records that may have a job; it is cached for *max_age_s* seconds."""
    now_s = time.time()
    watched = [record for record in records if record.live or _may_appear(record, now_s)]
    names = frozenset(record.job_name for record in watched)
    if not names:
        return Snapshot(now_s, names, "")
    kept = registry.load_snapshot()
    newest_s = max(record.submitted_s or record.created_s for record in watched)
    if kept is not None and names <= kept.names and newest_s < kept.at_s <= now_s < kept.at_s + max_age_s:
        return kept
    snapshot = Snapshot(now_s, names, slurm.list_queue(names))
    registry.store_snapshot(snapshot)
    return snapshot


def _others(
    record: AllocationRecord, records: Sequence[AllocationRecord], rows: Mapping[str, QueueRow]
) -> list[AllocationRecord]:
    """The jobs with which an allocation goes on at the end of its first one: they run, and their agents may elect."""
    return [
        job
        for job in records
        if job.joins == record.allocation and job.live and not job.release_why
        if (row := rows.get(job.job_name)) is not None and row.state.phase is Phase.RUNNING
    ]


def _settle(
    registry: Registry,
    slurm: SlurmClient,
    record: AllocationRecord,
    row: QueueRow | None,
    others: Sequence[AllocationRecord],
    changes: list[str],
) -> AllocationRecord:
    """Carry out what is due for one record and return its new state.

    Args:
        others: see `_others`.
    """
    lives = None
    if record.live and record.job_id is None:
        lives = owner_lives(record.owner)
        # An owner that is gone may have written the job id, or the end, just before.
        record = next((new for new in registry.jobs() if new.allocation == record.allocation), record)
    decision = decide(record, row, lives, time.time(), goes_on=bool(others))
    if isinstance(decision, AskSlurm):
        detail = slurm.find_job(decision.job_id, record.job_name)
        if detail is None and not record.release_why:
            detail = slurm.find_ended(decision.job_id, record.job_name)
        seen = look(record.directory)
        goes_on = bool(others) and seen.exit_status is None
        decision = decide_gone(record, detail, seen.exit_status, time.time(), seen.released, goes_on=goes_on)
    if isinstance(decision, CancelJob):
        if record.live and record.job_id is None:
            record = registry.set_job(record, decision.job_id, time.time())
            record = registry.request_release(record, decision.why)
        slurm.cancel(decision.job_id)
        changes.append(f"{record.name}: job {decision.job_id} was cancelled: {decision.why}")
    elif isinstance(decision, PartRecord):
        record = registry.part(record, decision.ended)
        rest = ", ".join(str(job.job_id) for job in others)
        state, reason = decision.ended.state, decision.ended.reason
        changes.append(f"{record.name}: job {record.job_id}: {state}: {reason}; job {rest} goes on")
    elif isinstance(decision, CloseRecord):
        record = registry.close(record, decision.ended)
        job = f"job {record.job_id}" if record.job_id else "no job"
        changes.append(f"{record.name}: {job}: {decision.ended.state}: {decision.ended.reason}")
    return record


def _may_appear(record: AllocationRecord, now_s: float) -> bool:
    """Tell whether the job of a closed record may still appear in the queue."""
    ended = record.ended
    return ended is not None and ended.state == "NEVER_SUBMITTED" and now_s - ended.at_s < 3600.0
