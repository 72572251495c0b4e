"""The life of an allocation as pure decisions: what was seen goes in, what is so and what is due comes out.

`Lifecycle` follows one allocation until it is ready; `decide` says what is due for a record that nobody may be
looking after any more. Neither reads a clock, a file or Slurm. Times of a `Lifecycle` are of a clock that never jumps.
Records are read by other processes, after reboots and on other machines, so that their times are of the wall clock:
one that is set changes how soon an intent without owner and job is given up, and touches no job that has a number.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from monarch_hpc.slurm.directory import AgentsReport, Granted, Seen
from monarch_hpc.slurm.parse import JobDetail, QueueRow
from monarch_hpc.slurm.registry import AllocationRecord, Ended
from monarch_hpc.slurm.states import Phase, SlurmState

__all__ = [
    "IN_FLIGHT_S",
    "AskSlurm",
    "CancelJob",
    "CloseRecord",
    "Decision",
    "Keep",
    "Lifecycle",
    "Stage",
    "decide",
    "decide_gone",
    "how_it_ended",
]

# sbatch's request may still be on its way when sbatch is gone: slurmctld works off what its socket holds.
IN_FLIGHT_S = 30.0
# A process on another login node cannot be looked at; by then even a slow sbatch has answered or given up.
ELSEWHERE_S = 900.0


class Stage(enum.IntEnum):
    """How far an allocation has come; within an attempt of its job it never goes back."""

    QUEUED = 1
    GRANTED = 2
    REPORTING = 3
    READY = 4
    ENDED = 5


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One allocation on its way to ready; times are in seconds of one clock that never jumps, as `time.monotonic`.

    Args:
        bootstrap_s: how long agents have from the job's begin, in seconds.
        stage: how far it has come.
        reason: why it waits, in Slurm's words.
        end: when the job ends at the latest, in Slurm's words; empty while unknown.
        granted: its hosts, once it has them.
        running_s: when Slurm was first seen to say that the job runs.
        granted_s: when *granted* was first seen.
        num_reported: agents that have reported.
        ready: the head's word.
        exit_status: of the batch script, once it ended.
        detail: how Slurm says that it ended.
        attempt: which attempt of the job the files are of, see `Seen`.
        restarts: how often Slurm has requeued the job, as far as is known.
    """

    bootstrap_s: float
    stage: Stage = Stage.QUEUED
    reason: str = ""
    end: str = ""
    granted: Granted | None = None
    running_s: float | None = None
    granted_s: float | None = None
    num_reported: int = 0
    ready: AgentsReport | None = None
    exit_status: int | None = None
    detail: JobDetail | None = None
    attempt: int = 0
    restarts: int = 0

    def see_files(self, seen: Seen, now_s: float) -> Lifecycle:
        """Return this life after a look into the directory."""
        restarts = seen.granted.restarts if seen.granted is not None else self.restarts
        if seen.attempt < self.attempt or restarts < self.restarts:
            return self  # of an attempt that is over
        life = self if seen.attempt == self.attempt or not self.attempt else Lifecycle(self.bootstrap_s)
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
        if life.ready is not None and not life.ready.missing:
            stage = Stage.READY
        if life.exit_status is not None:
            stage = Stage.ENDED
        return life._reach(stage)

    def see_queue(self, row: QueueRow, now_s: float) -> Lifecycle:
        """Return this life after squeue listed its job."""
        running = row.state.phase is Phase.RUNNING
        return replace(
            self,
            reason=row.reason if row.state.phase is Phase.QUEUED else "",
            # While it waits, Slurm prints a guess.
            end=row.end if running else self.end,
            running_s=now_s if running and self.running_s is None else self.running_s,
        )

    def see_detail(self, detail: JobDetail | None) -> Lifecycle:
        """Return this life after scontrol was asked: squeue did not list the job, or as if its attempt were over.

        Args:
            detail: what it said; None if Slurm does not know the job.
        """
        if detail is not None and detail.state.phase.alive:
            if detail.restarts > self.restarts:
                return Lifecycle(self.bootstrap_s, attempt=self.attempt, restarts=detail.restarts, reason=detail.reason)
            return self
        return replace(self, detail=detail)._reach(Stage.ENDED)

    def overdue(self, now_s: float) -> bool:
        """Tell whether agents, or the first sign of the job on its hosts, should have been there by now."""
        if self.stage in (Stage.READY, Stage.ENDED):
            return False
        if self.ready is not None:
            # The head has given up on some: it will not come to more.
            return True
        since_s = self.granted_s if self.granted_s is not None else self.running_s
        return since_s is not None and now_s - since_s >= self.bootstrap_s

    def _reach(self, stage: Stage) -> Lifecycle:
        return replace(self, stage=max(stage, self.stage))


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing is due."""


@dataclass(frozen=True, slots=True)
class AskSlurm:
    """scontrol must say what became of the job."""

    job_id: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    """The job must go; it is nobody's, or was to be released. *why* is for people."""

    job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class CloseRecord:
    """The allocation has ended."""

    ended: Ended


Decision = Keep | AskSlurm | CancelJob | CloseRecord


def decide(record: AllocationRecord, row: QueueRow | None, owner_lives: bool | None, now_s: float) -> Decision:
    """Say what is due for *record* after squeue answered.

    Args:
        record: as the registry has it.
        row: its job, if squeue listed it.
        owner_lives: whether the process that made it runs; None if that cannot be seen from here.
        now_s: seconds since the epoch.
    """
    in_queue = row is not None and row.state.phase.alive
    if not record.live:
        if row is not None and in_queue and row.state.phase is not Phase.ENDING:
            return CancelJob(row.job_id, "its job appeared after the allocation had been given up")
        return Keep()
    if record.job_id is None:
        return _decide_intent(record, row if in_queue else None, owner_lives, now_s)
    if not in_queue:
        return AskSlurm(record.job_id)
    if record.release_why and row is not None and row.state.phase is not Phase.ENDING:
        return CancelJob(row.job_id, record.release_why)
    return Keep()


def decide_gone(record: AllocationRecord, detail: JobDetail | None, exit_status: int | None, now_s: float) -> Decision:
    """Say what is due for a *record* with a job that squeue did not list.

    Args:
        record: as the registry has it.
        detail: what scontrol says; None if Slurm no longer knows the job.
        exit_status: of the batch script, if it left word.
        now_s: seconds since the epoch.
    """
    if detail is not None and detail.state.phase.alive:
        if record.release_why and detail.state.phase is not Phase.ENDING:
            return CancelJob(detail.job_id, record.release_why)
        return Keep()
    return CloseRecord(how_it_ended(record, detail, exit_status, now_s))


def how_it_ended(record: AllocationRecord, detail: JobDetail | None, exit_status: int | None, now_s: float) -> Ended:
    """Return the best account of an end: Slurm's, else the batch script's, else that nobody knows."""
    if record.release_why:
        return Ended("RELEASED", record.release_why, "monarch-hpc", now_s)
    if detail is not None:
        parts = [detail.state.meaning or detail.word]
        if detail.reason:
            parts.append(f"Slurm's reason: {detail.reason}")
        if detail.state in (SlurmState.FAILED, SlurmState.COMPLETED) and detail.exit_code:
            parts.append(f"exit code {detail.exit_code}")
        return Ended(detail.word, "; ".join(parts), "scontrol", now_s)
    if exit_status is not None:
        state = "COMPLETED" if exit_status == 0 else "FAILED"
        return Ended(state, f"its batch script ended with exit status {exit_status}", "ended.json", now_s)
    return Ended("UNKNOWN", "no longer known to Slurm", "monarch-hpc", now_s)


def _decide_intent(record: AllocationRecord, row: QueueRow | None, owner_lives: bool | None, now_s: float) -> Decision:
    if owner_lives:
        return Keep()
    age_s = now_s - record.created_s
    if row is not None:
        # Its number is in no record: whoever submitted it died before sbatch answered.
        given_up = owner_lives is False or age_s > ELSEWHERE_S
        return CancelJob(row.job_id, "who asked for it is gone") if given_up else Keep()
    if age_s > (IN_FLIGHT_S if owner_lives is False else ELSEWHERE_S):
        reason = "who asked for it died before its job existed"
        return CloseRecord(Ended("NEVER_SUBMITTED", reason, "monarch-hpc", now_s))
    return Keep()
