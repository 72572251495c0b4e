"""Links for control messages to one peer: over a channel, or within the head's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["BACKLOG_BYTES", "ChannelLink", "Link", "LocalLink"]

BACKLOG_BYTES = 4 << 20
"""Above this backlog, output to that peer is dropped: half a second of a slow login node."""

_MAX_BACKLOG_BYTES = 32 << 20
"""Above this backlog the peer is disconnected. Output has been dropped long before, so these are answers to endless
requests, which would fill the agent's memory; the reports of a hundred thousand procs take less."""


class Link(Protocol):
    """Sends messages; never blocks or fails: the link's owner is notified when the link ends."""

    @property
    def backlogged(self) -> bool:
        """Whether the backlog is above `BACKLOG_BYTES`."""
        ...

    @property
    def fabric(self) -> str:
        """The fabric that carries the messages; see `transport.api.Channel.fabric`."""
        ...

    @property
    def why(self) -> str:
        """The reason for that fabric."""
        ...

    def send(self, message: Message) -> None:
        """Send *message*."""
        ...

    def close(self, reason: str) -> None:
        """End the link after its queued messages and *reason* have been sent."""
        ...


class ChannelLink:
    """A link over a channel."""

    def __init__(self, channel: FrameChannel) -> None:
        self.channel = channel

    @property
    def backlogged(self) -> bool:
        """Whether the backlog is above `BACKLOG_BYTES`."""
        return self.channel.queued_bytes > BACKLOG_BYTES

    @property
    def fabric(self) -> str:
        """The fabric of the channel."""
        return self.channel.fabric

    @property
    def why(self) -> str:
        """The reason for that fabric."""
        return self.channel.why

    def send(self, message: Message) -> None:
        """Send *message*."""
        if self.channel.queued_bytes > _MAX_BACKLOG_BYTES and self.channel.peer.role is not Role.AGENT:
            self.channel.close("it sends requests without reading the answers")
            return
        # A closed channel reports its end and the reason by itself.
        with contextlib.suppress(TransportError):
            self.channel.send(Frame(Kind.CONTROL, body=encode(message)))

    def close(self, reason: str) -> None:
        """End the channel."""
        self.channel.close(reason)


class LocalLink:
    """A link within this process."""

    backlogged = False
    fabric = "local"
    why = "the head is in this agent"

    def __init__(self, deliver: Callable[[Message], None], closed: Callable[[str], None]) -> None:
        self._deliver = deliver
        self._closed = closed

    def send(self, message: Message) -> None:
        """Deliver *message*."""
        self._deliver(message)

    def close(self, reason: str) -> None:
        """Notify the other side that the link is closed."""
        self._closed(reason)
