"""Slurm's job states, grouped into the few phases that monarch-hpc distinguishes."""

from __future__ import annotations

import enum

from monarch_hpc.core.death import DeathKind

__all__ = ["Phase", "SlurmState"]


class Phase(enum.Enum):
    """Phases of a job, as far as a waiting command is concerned."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    # A state that is not in `SlurmState`. Such a job counts as alive until Slurm reports otherwise.
    UNKNOWN = "unknown"

    @property
    def alive(self) -> bool:
        """Whether the job may hold hosts, or still get them."""
        return self is not Phase.ENDED


class SlurmState(enum.Enum):
    """Every state and state flag of Slurm 20.11 to 26.05, as squeue and scontrol print them.

    Slurm prints a flag in place of the state that it modifies, so flags are states here, too.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"

    CONFIGURING = "CONFIGURING"
    COMPLETING = "COMPLETING"
    EXPEDITING = "EXPEDITING"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"

    UNKNOWN = "UNKNOWN"

    @classmethod
    def parse(cls, text: str) -> SlurmState:
        """Return the state that Slurm prints as *text*; `UNKNOWN` for an unknown one.

        ``CANCELLED by 1000`` and ``CANCELLED+`` are CANCELLED.
        """
        name = text.strip().split(" ", 1)[0].rstrip("+").upper()
        try:
            return cls(name)
        except ValueError:
            return cls.UNKNOWN

    @property
    def phase(self) -> Phase:
        """The phase of this state.

        The match is total on purpose: a new state without a case must fail the type check, not pass for finished.
        """
        match self:
            case (
                SlurmState.PENDING
                | SlurmState.EXPEDITING
                | SlurmState.REQUEUED
                | SlurmState.REQUEUE_FED
                | SlurmState.REQUEUE_HOLD
                | SlurmState.RESV_DEL_HOLD
                | SlurmState.SPECIAL_EXIT
            ):
                return Phase.QUEUED
            case SlurmState.CONFIGURING | SlurmState.POWER_UP_NODE:
                return Phase.STARTING
            case (
                SlurmState.RUNNING
                | SlurmState.SUSPENDED
                | SlurmState.RESIZING
                | SlurmState.SIGNALING
                | SlurmState.STOPPED
                | SlurmState.UPDATE_DB
            ):
                return Phase.RUNNING
            case SlurmState.COMPLETING | SlurmState.STAGE_OUT:
                return Phase.ENDING
            case (
                SlurmState.COMPLETED
                | SlurmState.CANCELLED
                | SlurmState.FAILED
                | SlurmState.TIMEOUT
                | SlurmState.PREEMPTED
                | SlurmState.NODE_FAIL
                | SlurmState.BOOT_FAIL
                | SlurmState.DEADLINE
                | SlurmState.OUT_OF_MEMORY
                | SlurmState.REVOKED
            ):
                return Phase.ENDED
            # A failed launch or reconfiguration is requeued, held or ended, as the site decided.
            case SlurmState.LAUNCH_FAILED | SlurmState.RECONFIG_FAIL | SlurmState.UNKNOWN:
                return Phase.UNKNOWN

    @property
    def death(self) -> DeathKind | None:
        """The kind of death of a job that has ended in this state; None for other states."""
        match self:
            case SlurmState.TIMEOUT | SlurmState.DEADLINE:
                return DeathKind.TIME_LIMIT
            case SlurmState.PREEMPTED:
                return DeathKind.PREEMPTED
            case SlurmState.CANCELLED | SlurmState.REVOKED:
                return DeathKind.CANCELLED
            case SlurmState.NODE_FAIL | SlurmState.BOOT_FAIL:
                return DeathKind.NODE_FAILURE
            case SlurmState.OUT_OF_MEMORY:
                return DeathKind.OOM
            case SlurmState.COMPLETED | SlurmState.FAILED:
                return DeathKind.EXIT
            case _:
                return None

    @property
    def meaning(self) -> str:
        """Why a job is in this state, for display; empty if the state's name says it."""
        match self:
            case SlurmState.TIMEOUT:
                return "the time limit was reached; ask for more with -t"
            case SlurmState.NODE_FAIL:
                return "a host failed"
            case SlurmState.PREEMPTED:
                return "a job of higher priority took the hosts"
            case SlurmState.OUT_OF_MEMORY:
                return "the job used more memory than it had been given"
            case SlurmState.BOOT_FAIL:
                return "a host did not boot"
            case SlurmState.DEADLINE:
                return "the job's deadline passed"
            case SlurmState.CANCELLED:
                return "it was cancelled"
            case SlurmState.COMPLETED | SlurmState.FAILED:
                return "its batch script ended"
            case _:
                return ""
