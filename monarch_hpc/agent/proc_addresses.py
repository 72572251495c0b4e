"""Where the procs listen that an agent has heard of: the head of all, the others of their own."""

from __future__ import annotations

from collections.abc import Sequence

from monarch_hpc.wire.messages import Message, ProcEnded, ProcReady

__all__ = ["ProcAddresses"]


class ProcAddresses:
    """An agent's address book of procs; see `transport.connect.listen.Forwards`."""

    def __init__(self) -> None:
        self._known: dict[int, ProcReady] = {}

    def note(self, message: Message) -> None:
        """Take note of what an agent says of its procs; other messages are ignored."""
        match message:
            case ProcReady():
                self._known[int(message.incarnation)] = message
            case ProcEnded():
                place = message.run, message.mesh, message.rank
                ended = [one for one, ready in self._known.items() if (ready.run, ready.mesh, ready.rank) == place]
                for incarnation in ended:
                    del self._known[incarnation]

    def lose_host(self, rank: int) -> list[int]:
        """Forget the procs of a lost host; return their incarnations."""
        lost = [incarnation for incarnation, ready in self._known.items() if ready.host == rank]
        for incarnation in lost:
            del self._known[incarnation]
        return lost

    def addresses(self, incarnation: int) -> Sequence[str] | None:
        """Where a proc listens; None if there is none of that incarnation."""
        ready = self._known.get(incarnation)
        return None if ready is None else ready.addresses
