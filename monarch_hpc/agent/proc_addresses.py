"""Listening addresses of procs: all procs on the head's agent, local ones elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady

__all__ = ["ProcAddresses"]


class ProcAddresses:
    """Listening addresses by incarnation; see `transport.connect.listen.Forwards`."""

    def __init__(self) -> None:
        self._known: dict[int, ProcReady] = {}

    def note(self, message: Message) -> None:
        """Update from an agent's report about a proc; other messages are ignored."""
        match message:
            case ProcReady():
                self._known[int(message.incarnation)] = message
            case ProcEnded():
                ended = [one for one, ready in self._known.items() if ready.proc == message.proc]
                for incarnation in ended:
                    del self._known[incarnation]

    def lose_host(self, rank: int) -> list[int]:
        """Forget the procs of a lost host; return their incarnations."""
        lost = [incarnation for incarnation, ready in self._known.items() if ready.proc.host == rank]
        for incarnation in lost:
            del self._known[incarnation]
        return lost

    def addresses(self, incarnation: int) -> Sequence[str] | None:
        """The listening addresses of a proc; None for an unknown incarnation."""
        ready = self._known.get(incarnation)
        return None if ready is None else ready.addresses
