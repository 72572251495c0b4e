"""References to procs in messages."""

from __future__ import annotations

from collections.abc import Iterable

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.control.procs import ProcReplaced

__all__ = ["ProcRef", "proc_of", "replaced"]


@dataclass(frozen=True, slots=True)
class ProcRef:
    """Identity and addresses of a proc; may be sent in messages.

    Attributes:
        mesh: number of its proc mesh in the run.
        rank: rank in that mesh.
        addresses: listening addresses, ``tcp://address:port``, best first.
        restarts: number of earlier procs with this mesh and rank, the last of which it replaces.
        allocation: the allocation that it belongs to; empty for a program, which is not dialled.
    """

    mesh: int
    rank: int
    host: str
    host_rank: int
    pid: int
    incarnation: int
    addresses: tuple[str, ...]
    restarts: int = 0
    allocation: str = ""

    @property
    def region(self) -> Region:
        """The place of this proc alone in its mesh, without dimensions."""
        return Region(Extent((), ()), self.rank, ())


def replaced(proc: ProcRef, actors: Iterable[int]) -> ProcReplaced:
    """The message that *proc* is the current one of its rank, with *actors*."""
    return ProcReplaced(
        proc.mesh,
        proc.rank,
        proc.host,
        proc.host_rank,
        proc.pid,
        proc.incarnation,
        list(proc.addresses),
        proc.restarts,
        proc.allocation,
        list(actors),
    )


def proc_of(message: ProcReplaced) -> ProcRef:
    """The proc that a message is about."""
    return ProcRef(
        message.mesh,
        message.rank,
        message.host,
        message.host_rank,
        message.pid,
        message.incarnation,
        tuple(message.addresses),
        message.restarts,
        message.allocation,
    )
