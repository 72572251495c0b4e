"""A way to send control messages to one other party: over a channel, or within the head's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.messages import Message, encode

__all__ = ["BACKLOG_BYTES", "ChannelLink", "Link", "LocalLink"]

BACKLOG_BYTES = 4 << 20
"""More than this on the way to somebody, and output is left out for him: half a second of a slow login node."""

_MAX_BACKLOG_BYTES = 32 << 20
"""More than this, and whoever it waits for is given up. Output has been left out for long, so these are answers to
questions without end, which would fill the agent's memory; a hundred thousand procs tell less of themselves."""


class Link(Protocol):
    """Sends messages; never blocks, never fails: whoever owns the link is told of its end."""

    @property
    def backlogged(self) -> bool:
        """Whether too much waits already."""
        ...

    @property
    def fabric(self) -> str:
        """What carries the messages, see `transport.api.Channel.fabric`."""
        ...

    @property
    def why(self) -> str:
        """Why it is that one."""
        ...

    def send(self, message: Message) -> None:
        """Send *message*."""
        ...

    def close(self, reason: str) -> None:
        """Send what was sent, then *reason*, and end."""
        ...


class ChannelLink:
    """A link over a channel."""

    def __init__(self, channel: FrameChannel) -> None:
        self.channel = channel

    @property
    def backlogged(self) -> bool:
        """Whether too much waits already."""
        return self.channel.queued_bytes > BACKLOG_BYTES

    @property
    def fabric(self) -> str:
        """What carries the messages."""
        return self.channel.fabric

    @property
    def why(self) -> str:
        """Why it is that one."""
        return self.channel.why

    def send(self, message: Message) -> None:
        """Send *message*."""
        if self.channel.queued_bytes > _MAX_BACKLOG_BYTES and self.channel.peer.role is not Role.AGENT:
            self.channel.close("it asked for more than it reads")
            return
        # A channel that is over reports that itself, with the reason.
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
        """Tell the other side that it is over."""
        self._closed(reason)
