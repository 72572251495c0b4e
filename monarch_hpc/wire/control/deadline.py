"""Messages about the end of an allocation's job: when Slurm ends it, and that little time is left."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["SIGTERM", "TIME_LIMIT", "AwaitDeadline", "DeadlineMet", "DeadlineNear", "JobEnd", "SetJobEnd", "Terminated"]

TIME_LIMIT, SIGTERM = "time limit", "SIGTERM"
"""The causes of a deadline."""


@dataclass(frozen=True, slots=True)
class SetJobEnd(Message):
    """Tool to head: Slurm has moved the end of the job; the head answers `JobEnd`.

    Args:
        end_s: the end, in seconds since the epoch, as Slurm reports it.
    """

    end_s: float


@dataclass(frozen=True, slots=True)
class JobEnd(Message):
    """Head to programs and tools: the time left until Slurm ends the job.

    Seconds instead of a time of day: the clocks of login node and host may differ.

    Args:
        left_s: seconds left; -1 if the end is unknown.
    """

    left_s: float


@dataclass(frozen=True, slots=True)
class AwaitDeadline(Message):
    """Program to head: it wants `DeadlineNear`, and time to handle it before the agents end; the head sends one at once
    if the end is near already."""


@dataclass(frozen=True, slots=True)
class DeadlineNear(Message):
    """Head to programs: the allocation ends soon.

    Args:
        left_s: seconds left to the program.
        cause: `TIME_LIMIT` or `SIGTERM`.
    """

    left_s: float
    cause: str


@dataclass(frozen=True, slots=True)
class DeadlineMet(Message):
    """Program to head: it has handled `DeadlineNear`."""


@dataclass(frozen=True, slots=True)
class Terminated(Message):
    """Agent to head: the agent got SIGTERM, as it does when Slurm ends the job or takes a host from it."""
