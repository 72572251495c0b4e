"""How processes name each other in messages."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ProcRef"]


@dataclass(frozen=True, slots=True)
class ProcRef:
    """Where a proc is; may travel in messages.

    Attributes:
        rank: rank in its proc mesh.
        mesh: number of that mesh in its run.
        addresses: where it listens, ``tcp://address:port``, best first.
    """

    mesh: int
    rank: int
    host: str
    host_rank: int
    pid: int
    incarnation: int
    addresses: tuple[str, ...]
