"""Identities of processes, allocations, runs and meshes."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping

from monarch_hpc.core.dataclass import dataclass

__all__ = [
    "MAX_RUN_CHARS",
    "Identity",
    "Role",
    "SlurmIds",
    "first_member",
    "mesh_number",
    "new_allocation_id",
    "new_incarnation",
    "new_run_id",
    "number_in_program",
]

MAX_RUN_CHARS = 16
"""Longest name of a run: the room for it in a 107-byte socket path (`agent.procs.mpi_task.socket_path`)."""

_PROGRAM_BITS = 32
"""Low bits of a mesh's number, which count within its program; the others, of a signed 64-bit number, are the member.

So each member can have 2**32 meshes, a hundred a second for more than a year. A mesh's number leaves no bits free:
nothing else can be packed into those 64.
"""

_TERM_BITS = 20
"""Low bits of a member's number, which count within a term of the head; the others are the term.

So an allocation can have 2**11 terms, and a term 2**20 members, two thousand a day for more than a year.
"""


class Role(enum.IntEnum):
    """The role of a process in its allocation; part of the identity that each side of a channel proves."""

    CONTROLLER = 1
    AGENT = 2
    PROC = 3
    TOOL = 4  # a command such as `status`, connected only for its requests


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of one process of an allocation.

    Args:
        allocation: 32 hexadecimal digits, the allocation's uuid.
        role: the role of the process.
        host: name of its host, for display.
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
    """Slurm's names for the location of a process; empty where Slurm has none.

    A proc has the step and the task of the agent that started it.

    Attributes:
        job_id: number of the job.
        step_id: number of the step in the job, or ``batch``.
        node: name of the node.
        node_id: index of the node in the step.
        task_id: index of the task in the step.
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
    """Draw the number of a new incarnation: 64 random bits, never 0, which stands for "any"."""
    return int.from_bytes(os.urandom(8), "little") or 1


def first_member(term: int) -> int:
    """The number before the first member that the head of *term* numbers; above all numbers of earlier terms."""
    return term - 1 << _TERM_BITS


def mesh_number(member: int, number: int) -> int:
    """The number of a mesh in its allocation: the *number*-th mesh, from 1, of the program with number *member*."""
    return member << _PROGRAM_BITS | number


def number_in_program(mesh: int) -> int:
    """The number of a mesh within its program, from 1."""
    return mesh & ((1 << _PROGRAM_BITS) - 1)


def new_allocation_id() -> str:
    """Draw a new allocation's identity: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def new_run_id() -> str:
    """Draw a new run's identity: 12 hexadecimal digits, unique in its allocation.

    The head would take two runs of one name for one run. With 10 000 runs that happens in one of five million
    allocations; with 8 digits it would happen in one of a hundred.
    """
    return os.urandom(6).hex()
