"""Links between the allocations of a program: its procs on one may call those on another.

Each pair of allocations has a link with a random key, which the program gives to the procs of both over their own
channels, and to the agents at which casts enter. A proc proves the link's key to the procs of the other allocation, and
to its agent, never its allocation's; see docs/design/0009-links-between-allocations.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.secure.link import new_secret
from monarch_hpc.wire.control.links import LinkGiven, LinkOver, LinkRoute
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["CastEntry", "Links"]

_TAKEN_S = 5.0
"""Longest wait for procs to take a link, which they do within milliseconds unless their code holds the interpreter's
lock. Calls between the allocations fail until they have."""


class CastEntry(NamedTuple):
    """The agent of an allocation at which casts enter.

    Attributes:
        run: the program's run on the allocation.
        addresses: those of the agent.
        send: sends it a message.
    """

    run: str
    addresses: Sequence[str]
    send: Callable[[Message], None]


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
        self._entries: dict[str, CastEntry] = {}
        self._open_entries: set[tuple[str, str]] = set()  # allocation of the entry, and name of a link that it takes

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
                self._route(channel, other)
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
        self._entries.pop(allocation, None)
        name_of = {other: self._secrets[frozenset((allocation, other))][0] for other in self._allocations}
        for other, entry in self._entries.items():
            with contextlib.suppress(TransportError):  # that allocation is gone, too
                entry.send(LinkOver(allocation, name_of[other], cause))
        names = {self._secrets.pop(pair)[0] for pair in list(self._secrets) if allocation in pair}
        self._open_entries = {one for one in self._open_entries if one[1] not in names}
        self._untaken = {one for one in self._untaken if one[1] not in names}
        for channel in list(self._node().channels.values()):
            if channel.peer.role is Role.PROC and channel.peer.allocation in self._allocations:
                self._send(channel, LinkOver(allocation, name_of[channel.peer.allocation], cause))
        self._settle()

    # ---- casts ----

    def on_entry(self, allocation: str, entry: CastEntry) -> None:
        """Let procs of other allocations cast into one whose run is open, and its procs into those."""
        self._entries[allocation] = entry
        for other in self._allocations:
            if other != allocation and allocation in self._allocations:
                self._open_entry(allocation, other)
                self._open_entry(other, allocation)

    def _open_entry(self, allocation: str, other: str) -> None:
        """Have the agent of an allocation take the casts of the procs of another one."""
        entry = self._entries.get(allocation)
        if entry is not None:
            name, key = self._secrets[frozenset((allocation, other))]
            with contextlib.suppress(TransportError):  # the allocation is gone
                entry.send(LinkGiven(other, name, key.hex(), entry.run))

    def on_entry_open(self, allocation: str, link: str) -> None:
        """Handle the report of the agent of *allocation* that it takes the casts of a link."""
        self._open_entries.add((allocation, link))
        for channel in list(self._node().channels.values()):
            if channel.peer.role is Role.PROC and channel.peer.allocation != allocation:
                self._route(channel, allocation)

    def _route(self, channel: FrameChannel, other: str) -> None:
        """Tell a proc where its casts to another allocation enter, if that is open."""
        name = self._secrets.get(frozenset((channel.peer.allocation, other)), ("", b""))[0]
        entry = self._entries.get(other)
        if entry is not None and (other, name) in self._open_entries:
            self._send(channel, LinkRoute(other, entry.run, list(entry.addresses)))

    # ---- messages ----

    def _give(self, channel: FrameChannel, other: str) -> None:
        name, key = self._secrets[frozenset((channel.peer.allocation, other))]
        self._untaken.add((channel.peer.incarnation, name))
        if not self._send(channel, LinkGiven(other, name, key.hex(), "")):
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
