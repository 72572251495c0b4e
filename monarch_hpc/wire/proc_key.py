"""The key of a proc in its allocation."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass

__all__ = ["ProcKey"]


@dataclass(frozen=True, slots=True)
class ProcKey:
    """The key of a proc.

    Args:
        mesh: number of its mesh in the run.
        rank: its rank in that mesh.
        host: rank of its host in the allocation.
    """

    run: str
    mesh: int
    rank: int
    host: int
