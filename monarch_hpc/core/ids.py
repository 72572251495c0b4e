"""Identities: which process of which allocation is speaking, and in which of its lives."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "MAX_RUN_CHARS",
    "Identity",
    "Role",
    "SlurmIds",
    "mesh_number",
    "new_allocation_id",
    "new_incarnation",
    "new_run_id",
    "number_in_program",
]

MAX_RUN_CHARS = 16
"""Longest name of a run: what is left in the path of a socket (`agent.procs.mpi_task.socket_path`) of 107 bytes."""

_PROGRAM_BITS = 32
"""Low bits of a mesh's number that count within its program. Members take those above, of a signed 64-bit number.

So an allocation has room for 2**31 openings, two thousand a day for three thousand years, and each of them for 2**32
meshes, a hundred a second for more than a year. Nothing may pack more than a mesh's number into 64 bits.
"""


class Role(enum.IntEnum):
    """What a process is in its allocation; part of what each side of a channel proves."""

    CONTROLLER = 1
    AGENT = 2
    PROC = 3
    TOOL = 4  # a command such as `status`, which asks and leaves


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of one process of an allocation.

    Args:
        allocation: 32 hexadecimal digits, the allocation's uuid.
        role: what the process is.
        host: name of its host, for people.
        incarnation: random 64-bit number of this life; never 0.
        epoch: number of the controller's tenure; 0 where there is none.
    """

    allocation: str
    role: Role
    host: str
    incarnation: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class SlurmIds:
    """How Slurm calls the place of a process; empty where it has no name for it.

    A proc has the step and the task of its host's agent, which started it.

    Attributes:
        job_id: number of the job.
        step_id: number of the step in the job, or ``batch``.
        node: name of the node.
        node_id: place of the node in the step.
        task_id: place of the task in the step.
    """

    job_id: str = ""
    step_id: str = ""
    node: str = ""
    node_id: str = ""
    task_id: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SlurmIds:
        """Read the variables of a process that Slurm started."""
        get = environment.get
        step = get("SLURM_STEP_ID") or get("SLURM_STEPID", "")
        return cls(
            get("SLURM_JOB_ID", ""), step, get("SLURMD_NODENAME", ""), get("SLURM_NODEID", ""), get("SLURM_PROCID", "")
        )


def new_incarnation() -> int:
    """Draw the number of a new life: 64 random bits, never 0, which stands for "whichever"."""
    return int.from_bytes(os.urandom(8), "little") or 1


def mesh_number(member: int, number: int) -> int:
    """The number of a mesh in its allocation: the *number*-th, from 1, of the program that is *member* of a run."""
    return member << _PROGRAM_BITS | number


def number_in_program(mesh: int) -> int:
    """The place of a mesh among those of its program: 1 for the first."""
    return mesh & ((1 << _PROGRAM_BITS) - 1)


def new_allocation_id() -> str:
    """Draw a new allocation's identity: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def new_run_id() -> str:
    """Draw a new run's identity: 12 hexadecimal digits, which no other run of its allocation has.

    Two runs with one name would be one run to the head. Among 10 000 that happens in one of five million allocations;
    with 8 digits it would in one of a hundred.
    """
    return os.urandom(6).hex()
