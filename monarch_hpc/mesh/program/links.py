"""Links between the allocations of a program: its procs on one may call those on another.

Each pair of allocations has a link with a random key, which the program gives to the procs of both over their own
channels. A proc proves the link's key to the procs of the other allocation, never its allocation's; see
docs/design/0009-links-between-allocations.md.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.secure.link import new_secret
from monarch_hpc.wire.control.links import LinkGiven, LinkOver
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Links"]

_TAKEN_S = 5.0
"""Longest wait for procs to take a link, which they do within milliseconds unless their code holds the interpreter's
lock. Calls between the allocations fail until they have."""


class Links:
    """The links of one program. For the driver only.

    Args:
        node: returns the program's node.
        later: schedules a callback after a number of seconds.
    """

    def __init__(self, node: Callable[[], Node], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._node = node
        self._later = later
        self._allocations: list[str] = []
        self._secrets: dict[frozenset[str], tuple[str, bytes]] = {}
        self._untaken: set[tuple[int, str]] = set()  # incarnation of a proc, and name of a link
        self._waiting: list[Callable[[], bool]] = []

    @property
    def needed(self) -> bool:
        """Whether the program has several allocations."""
        return len(self._allocations) > 1

    def open(self, allocation: str) -> None:
        """Link a new allocation with all others."""
        others, self._allocations = list(self._allocations), [*self._allocations, allocation]
        for other in others:
            self._secrets[frozenset((allocation, other))] = new_secret()
        for channel in list(self._node().channels.values()):
            if channel.peer.role is Role.PROC and channel.peer.allocation in others:
                self._give(channel, allocation)

    def introduce(self, channel: FrameChannel, done: Callable[[], None]) -> None:
        """Give all links to a new proc; call *done* once it, and every proc that runs already, has taken its links."""
        for other in self._allocations:
            if other != channel.peer.allocation:
                self._give(channel, other)
        over = False

        def check() -> bool:
            nonlocal over
            if not over and not self._untaken:
                over = True
                done()
            return over

        def give_up() -> None:
            nonlocal over
            if not over:
                over = True
                done()

        if not check():
            self._waiting.append(check)
            self._later(_TAKEN_S, give_up)

    def on_taken(self, incarnation: int, link: str) -> None:
        """Handle the report of a proc that it has taken a link."""
        self._untaken.discard((incarnation, link))
        self._settle()

    def forget(self, incarnation: int) -> None:
        """Do not wait for a proc, which is gone."""
        self._untaken = {one for one in self._untaken if one[0] != incarnation}
        self._settle()

    def close(self, allocation: str, cause: str) -> None:
        """Forget the links of an allocation, and have the procs of the others forget them."""
        if allocation not in self._allocations:
            return
        self._allocations.remove(allocation)
        names = {self._secrets.pop(pair)[0] for pair in list(self._secrets) if allocation in pair}
        self._untaken = {one for one in self._untaken if one[1] not in names}
        for channel in list(self._node().channels.values()):
            if channel.peer.role is Role.PROC and channel.peer.allocation in self._allocations:
                self._send(channel, LinkOver(allocation, cause))
        self._settle()

    def _give(self, channel: FrameChannel, other: str) -> None:
        name, key = self._secrets[frozenset((channel.peer.allocation, other))]
        self._untaken.add((channel.peer.incarnation, name))
        if not self._send(channel, LinkGiven(other, name, key.hex())):
            self._untaken.discard((channel.peer.incarnation, name))

    def _send(self, channel: FrameChannel, message: Message) -> bool:
        try:
            channel.send(Frame(Kind.CONTROL, body=encode(message)))
        except TransportError:  # the proc is gone
            return False
        return True

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._waiting += [check for check in waiting if not check()]
