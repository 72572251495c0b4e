"""Messages about jobs that a program on a compute node asks for, and a client on a login node submits."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["UNKNOWN", "JobSubmitted", "ServeJobs", "SubmitJob"]

UNKNOWN = 124
"""A status of sbatch that says nothing about the job, as of a command that ran out of time."""


@dataclass(frozen=True, slots=True)
class ServeJobs(Message):
    """Client to head: this client submits jobs for the processes on the allocation's hosts."""


@dataclass(frozen=True, slots=True)
class SubmitJob(Message):
    """A process on a host to the head, and the head to a client: submit a job.

    Args:
        ticket: the head's number for the answer; 0 on the way to the head.
        script: the batch script, with all flags of the job, in base64; empty to learn whether a client would submit.
        folder: working directory of sbatch.
        environment: variables of the process, which the job inherits as far as its script says so.
    """

    ticket: int
    script: str
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class JobSubmitted(Message):
    """The answer to `SubmitJob`, back on the same way.

    Args:
        status: sbatch's exit status, or `UNKNOWN`: the job may or may not exist.
        output: what sbatch printed on its standard output, and *errors* on the other.
    """

    ticket: int
    status: int
    output: str
    errors: str
