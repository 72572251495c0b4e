"""The life of an allocation as pure functions: observations in, state and due actions out.

`Lifecycle` follows one allocation until it is ready; `decide` returns the action due for a record whose owner may be
gone. Neither reads a clock, a file or Slurm. Times of a `Lifecycle` are monotonic. Records are read by other processes,
after reboots and on other machines, so their times are wall clock times: setting that clock changes how soon an intent
without owner and job is given up, but affects no job that has an id.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from monarch_hpc.allocation.files import Granted
from monarch_hpc.allocation.ready import Ready
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.slurm.commands.jobs import JobDetail, QueueRow
from monarch_hpc.slurm.commands.states import Phase, SlurmState
from monarch_hpc.slurm.directory import Seen
from monarch_hpc.slurm.record import AllocationRecord, Ended

__all__ = [
    "IN_FLIGHT_S",
    "AskSlurm",
    "CancelJob",
    "CloseRecord",
    "Decision",
    "Keep",
    "Lifecycle",
    "PartRecord",
    "Stage",
    "decide",
    "decide_gone",
    "how_it_ended",
]

# sbatch's request may still be in flight when sbatch is gone: slurmctld works off the backlog of its socket.
IN_FLIGHT_S = 30.0
# A process on another login node cannot be observed; after this time even a slow sbatch has answered or given up.
ELSEWHERE_S = 900.0


# The head counts the same time from its own start, which on a cold file system is this much later.
_HEAD_S = 30.0


class Stage(enum.IntEnum):
    """Stages of an allocation; within an attempt of its job it never goes back to an earlier one."""

    QUEUED = 1
    GRANTED = 2
    REPORTING = 3
    READY = 4
    ENDED = 5


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The state of an allocation until it is ready; times are in seconds of a monotonic clock.

    Args:
        bootstrap_s: time that agents have to report after the job's begin, in seconds.
        stage: the stage reached.
        reason: why the job is pending, in Slurm's words.
        end: time limit of the job, as Slurm prints it; empty while unknown.
        granted: the granted hosts; None until they are known.
        running_s: when Slurm first reported the job as running.
        granted_s: when *granted* was first seen.
        num_reported: number of agents that have reported.
        ready: the head's report.
        exit_status: exit status of the batch script, once it has ended.
        detail: Slurm's report of the job's end.
        attempt: the attempt of the job that wrote the files, see `Seen`.
        restarts: known number of requeues of the job.
        min_hosts: number of hosts that suffice when others do not report in time; None if all must.
    """

    bootstrap_s: float
    stage: Stage = Stage.QUEUED
    reason: str = ""
    end: str = ""
    granted: Granted | None = None
    running_s: float | None = None
    granted_s: float | None = None
    num_reported: int = 0
    ready: Ready | None = None
    exit_status: int | None = None
    detail: JobDetail | None = None
    attempt: int = 0
    restarts: int = 0
    min_hosts: int | None = None

    def see_files(self, seen: Seen, now_s: float) -> Lifecycle:
        """Return the state after reading the directory."""
        restarts = seen.granted.restarts if seen.granted is not None else self.restarts
        if seen.attempt < self.attempt or restarts < self.restarts:
            return self  # the files are of an earlier attempt
        life = self if seen.attempt == self.attempt or not self.attempt else self._anew()
        return replace(life, attempt=seen.attempt, restarts=restarts)._take_files(seen, now_s)

    def _take_files(self, seen: Seen, now_s: float) -> Lifecycle:
        life = replace(
            self,
            granted=seen.granted or self.granted,
            granted_s=now_s if seen.granted and self.granted_s is None else self.granted_s,
            num_reported=max(self.num_reported, len(seen.reported)),
            ready=seen.ready or self.ready,
            exit_status=self.exit_status if seen.exit_status is None else seen.exit_status,
        )
        stage = Stage.QUEUED
        if life.granted is not None:
            stage = Stage.GRANTED
        if life.num_reported:
            stage = Stage.REPORTING
        if life.ready is not None and life._suffices(life.ready):
            stage = Stage.READY
        if life.exit_status is not None:
            stage = Stage.ENDED
        return life._reach(stage)

    def see_queue(self, row: QueueRow, now_s: float) -> Lifecycle:
        """Return the state after squeue listed the job."""
        running = row.state.phase is Phase.RUNNING
        return replace(
            self,
            reason=row.reason if row.state.phase is Phase.QUEUED else "",
            # Slurm prints an estimate while the job is pending.
            end=row.end if running else self.end,
            running_s=now_s if running and self.running_s is None else self.running_s,
        )

    def see_detail(self, detail: JobDetail | None) -> Lifecycle:
        """Return the state after asking scontrol, because squeue did not list the job or listed it as not running.

        Args:
            detail: scontrol's answer; None if Slurm does not know the job.
        """
        if detail is not None and detail.state.phase.alive:
            if detail.restarts > self.restarts:
                return replace(self._anew(), attempt=self.attempt, restarts=detail.restarts, reason=detail.reason)
            return self
        return replace(self, detail=detail)._reach(Stage.ENDED)

    def overdue(self, now_s: float) -> bool:
        """Tell whether the agents, or the job's first file, have missed their deadline."""
        if self.stage in (Stage.READY, Stage.ENDED):
            return False
        if self.ready is not None:
            # The head has given up waiting for the missing agents.
            return True
        since_s = self.granted_s if self.granted_s is not None else self.running_s
        limit_s = self.bootstrap_s + (_HEAD_S if self.min_hosts is not None and self.granted_s is not None else 0.0)
        return since_s is not None and now_s - since_s >= limit_s

    def _anew(self) -> Lifecycle:
        return Lifecycle(self.bootstrap_s, min_hosts=self.min_hosts)

    def _suffices(self, ready: Ready) -> bool:
        # Without the head's host no client can attach.
        enough = self.min_hosts is not None and len(ready.hosts) >= self.min_hosts and bool(ready.addresses)
        return not ready.missing or enough

    def _reach(self, stage: Stage) -> Lifecycle:
        return replace(self, stage=max(stage, self.stage))


@dataclass(frozen=True, slots=True)
class Keep:
    """No action is due."""


@dataclass(frozen=True, slots=True)
class AskSlurm:
    """scontrol must be asked for the job's state."""

    job_id: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    """The job must be cancelled: it is orphaned, or its release was requested. *why* is shown to the user."""

    job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class CloseRecord:
    """The allocation has ended, and its record must be closed."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class PartRecord:
    """The first job of an allocation has ended, which goes on with others: that must be recorded."""

    ended: Ended


Decision = Keep | AskSlurm | CancelJob | CloseRecord | PartRecord


def decide(
    record: AllocationRecord, row: QueueRow | None, owner_lives: bool | None, now_s: float, *, goes_on: bool = False
) -> Decision:
    """Return the action due for *record* after squeue answered.

    Args:
        record: the registry's record.
        row: its job, if squeue listed it.
        owner_lives: whether the process that made the record still runs; None if that cannot be seen from here.
        now_s: seconds since the epoch.
        goes_on: whether further jobs that have joined it run.
    """
    in_queue = row is not None and row.state.phase.alive
    if not record.live:
        if row is not None and in_queue and row.state.phase is not Phase.ENDING:
            return CancelJob(row.job_id, "its job appeared after the allocation had been given up")
        return Keep()
    if record.job_id is None:
        return _decide_intent(record, row if in_queue else None, owner_lives, now_s)
    if not in_queue and record.parted is not None and goes_on:
        return Keep()
    if not in_queue:
        return AskSlurm(record.job_id)
    if record.release_why and row is not None and row.state.phase is not Phase.ENDING:
        return CancelJob(row.job_id, record.release_why)
    return Keep()


def decide_gone(
    record: AllocationRecord,
    detail: JobDetail | None,
    exit_status: int | None,
    now_s: float,
    released: str = "",
    *,
    goes_on: bool = False,
) -> Decision:
    """Return the action due for a *record* whose job squeue did not list.

    Args:
        record: the registry's record.
        detail: scontrol's answer; None if Slurm no longer knows the job.
        exit_status: exit status of the batch script, if it was recorded.
        now_s: seconds since the epoch.
        released: why the head ended the allocation by itself; empty if it did not.
        goes_on: whether further jobs that have joined it run.
    """
    if detail is not None and detail.state.phase.alive:
        if record.release_why and detail.state.phase is not Phase.ENDING:
            return CancelJob(detail.job_id, record.release_why)
        return Keep()
    if released and not record.release_why:
        return CloseRecord(Ended("RELEASED", released, "released.json", now_s))
    if goes_on and not record.release_why:
        return PartRecord(how_it_ended(record, detail, exit_status, now_s))
    return CloseRecord(record.parted or how_it_ended(record, detail, exit_status, now_s))


def how_it_ended(record: AllocationRecord, detail: JobDetail | None, exit_status: int | None, now_s: float) -> Ended:
    """Return the best account of an end: Slurm's, else the batch script's, else ``UNKNOWN``."""
    if record.release_why:
        return Ended("RELEASED", record.release_why, "monarch-hpc", now_s)
    if detail is not None:
        parts = [detail.state.meaning or detail.slurm_state]
        if detail.reason:
            parts.append(f"Slurm's reason: {detail.reason}")
        if detail.state in (SlurmState.FAILED, SlurmState.COMPLETED) and detail.exit_code:
            parts.append(f"exit code {detail.exit_code}")
        return Ended(detail.slurm_state, "; ".join(parts), detail.source, now_s)
    if exit_status is not None:
        state = "COMPLETED" if exit_status == 0 else "FAILED"
        return Ended(state, f"its batch script ended with exit status {exit_status}", "ended.json", now_s)
    return Ended("UNKNOWN", "no longer known to Slurm", "monarch-hpc", now_s)


def _decide_intent(record: AllocationRecord, row: QueueRow | None, owner_lives: bool | None, now_s: float) -> Decision:
    if owner_lives:
        return Keep()
    age_s = now_s - record.created_s
    if row is not None:
        # No record has its id: the process that submitted it died before sbatch answered.
        given_up = owner_lives is False or age_s > ELSEWHERE_S
        return CancelJob(row.job_id, "the command that requested it is gone") if given_up else Keep()
    if age_s > (IN_FLIGHT_S if owner_lives is False else ELSEWHERE_S):
        reason = "the command that requested it died before its job existed"
        return CloseRecord(Ended("NEVER_SUBMITTED", reason, "monarch-hpc", now_s))
    return Keep()
