"""Who may no longer speak to this process: those declared dead, and controllers whose tenure is over.

Others have acted on the news that somebody is dead; if he speaks all the same, the two stories do not fit. So nobody
returns from the dead in the same life: a process that was only frozen, or cut off, begins a new one.
"""

from __future__ import annotations

from monarch_hpc.core.ids import Role
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.api import Peer

__all__ = ["Fence"]

_KEEP = 16384
"""Lives that are kept out, about 200 bytes each: a head bars every program that has left, for as long as the
allocation lives. One that comes back does so within minutes, or its kernel has ended the connection."""


class Fence:
    """The fence around one process.

    Args:
        own: the process's role. The controllers that speak to a proc are of one run, so that their epochs compare;
            those of an agent are of many.
    """

    def __init__(self, own: Role) -> None:
        self._of_one_run = own is Role.PROC
        self._epoch = 0
        self._barred: Recent[int, str] = Recent(_KEEP)

    def bar(self, incarnation: int, why: str) -> None:
        """Keep one life of a process out from here on; the first reason stays."""
        self._barred.setdefault(incarnation, why)

    def admit(self, peer: Peer) -> bool:
        """Take note of a peer that has proved itself; return whether it ends the tenure of other controllers."""
        if not self._counts(peer) or peer.epoch <= self._epoch:
            return False
        self._epoch = peer.epoch
        return True

    def barred(self, incarnation: int) -> str:
        """Why this life of a process is kept out; empty if it is not."""
        return self._barred.get(incarnation) or ""

    def objection(self, peer: Peer) -> str:
        """Why *peer* may not speak; empty if it may."""
        if self._counts(peer) and peer.epoch < self._epoch:
            return f"controller {self._epoch} has taken over the run from controller {peer.epoch}"
        why = self.barred(peer.incarnation)
        return f"it was declared lost: {why}" if why else ""

    def _counts(self, peer: Peer) -> bool:
        return self._of_one_run and peer.role is Role.CONTROLLER
