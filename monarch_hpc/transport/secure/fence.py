"""The fence: refuses processes that were declared dead, and controllers whose tenure is over.

Other processes have acted on the report that a process is dead; if it sent again, the two would contradict. So a
process that was only frozen, or cut off, does not return under the same incarnation: it starts a new one.
"""

from __future__ import annotations

from monarch_hpc.core.ids import Role
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.api import Peer

__all__ = ["Fence"]

_KEEP = 16384
"""Number of fenced incarnations kept, about 200 bytes each: a head fences every program that has left, for the life of
the allocation. A late one returns within minutes, or its kernel has closed the connection."""


class Fence:
    """The fence of one process.

    Args:
        own: the process's role. All controllers of a proc belong to one run, so that their epochs can be compared; an
            agent's belong to many.
    """

    def __init__(self, own: Role) -> None:
        self._single_run = own is Role.PROC
        self._epoch = 0
        self._barred: Recent[int, str] = Recent(_KEEP)

    def accept_all_runs(self) -> None:
        """Compare no epochs from here on: the controllers of a kept proc belong to many runs."""
        self._single_run = False

    def bar(self, incarnation: int, why: str) -> None:
        """Refuse an incarnation from here on; the first reason is kept."""
        self._barred.setdefault(incarnation, why)

    def admit(self, peer: Peer) -> bool:
        """Record an authenticated peer; return whether it ends the tenure of earlier controllers."""
        if not self._has_comparable_epoch(peer) or peer.epoch <= self._epoch:
            return False
        self._epoch = peer.epoch
        return True

    def barred(self, incarnation: int) -> str:
        """Why this incarnation is refused; empty if it is not."""
        return self._barred.get(incarnation) or ""

    def objection(self, peer: Peer) -> str:
        """Why *peer* is refused; empty if it is not."""
        if self._has_comparable_epoch(peer) and peer.epoch < self._epoch:
            return f"controller {self._epoch} has taken over the run from controller {peer.epoch}"
        why = self.barred(peer.incarnation)
        return f"it was declared lost: {why}" if why else ""

    def _has_comparable_epoch(self, peer: Peer) -> bool:
        return self._single_run and peer.role is Role.CONTROLLER
