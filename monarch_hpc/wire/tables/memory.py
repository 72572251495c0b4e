"""The table of memory that processes lend to others, and of the transfers between them: `status --memory`."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = ["MEMORY", "LentMemory", "MemoryUse", "Moved", "ProcMemory"]


@dataclass(frozen=True, slots=True)
class LentMemory:
    """What one actor lends, or the program.

    Args:
        name: name of its mesh; empty for a program.
        rank: its rank in that mesh.
        num: number of arrays and other buffers.
    """

    name: str
    rank: int
    num: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Transfers with one process, by one path and in one direction, that this one has begun.

    Args:
        peer: incarnation of the other process, hexadecimal; *host* is its host.
        path: see `rdma.RDMABuffer.path`.
        write: whether they wrote.
        num: number of those that have ended well.
        num_bytes: size of the last of them, which took *took_s*, and ended *age_s* ago.
    """

    peer: str
    host: str
    path: str
    write: bool
    num: int
    num_bytes: int
    took_s: float
    age_s: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a process, as its records have it at one moment.

    Args:
        problem: why its records cannot be read; empty if they can.
    """

    problem: str
    lent: list[LentMemory]
    moved: list[Moved]


@dataclass(frozen=True, slots=True)
class ProcMemory(RunProcess):
    """The memory of one process."""

    use: Annotated[MemoryUse, "what its actors lend, and its last transfers"]


MEMORY = Table("memory", ProcMemory, "Memory that processes of runs lend to others, and their transfers.")
