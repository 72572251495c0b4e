"""The interface of a channel, whatever its fabric: an ordered, authenticated stream of frames between incarnations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.address import FORWARD_PREFIX, RELAY_PREFIX
from monarch_hpc.transport.memory.operations import Transfer
from monarch_hpc.wire.frames import Frame

__all__ = ["FrameChannel", "Listener", "Peer"]


@dataclass(frozen=True, slots=True)
class Peer:
    """The authenticated process at the other end of a channel.

    Attributes:
        python: ``major.minor.micro`` of its interpreter.
        package: version of its monarch_hpc.
        address: ``tcp://address:port``; ``relay+tcp://address:port`` through the relay; or ``via+tcp://address:port``,
            the address of the process that forwards to it.
    """

    role: Role
    host: str
    incarnation: int
    epoch: int
    python: str
    package: str
    address: str

    @property
    def relayed(self) -> bool:
        """Whether it was reached through the relay."""
        return self.address.startswith(RELAY_PREFIX)

    @property
    def via(self) -> str:
        """Address of the process that forwards to it; empty if none does, and always empty on the accepting side."""
        return self.address.removeprefix(FORWARD_PREFIX) if self.address.startswith(FORWARD_PREFIX) else ""

    def __str__(self) -> str:
        return f"{self.role.name.lower()} on {self.host or 'an unnamed host'} ({self.address})"


class FrameChannel(Protocol):
    """One end of an established channel.

    Frames arrive at the other end in the order sent, each once, or the channel is lost as a whole.
    """

    mark: int
    """Free for the user of the channel; initially 0."""

    @property
    def peer(self) -> Peer:
        """The process at the other end."""
        ...

    @property
    def error(self) -> TransportError | None:
        """Why the channel is over: `ChannelClosed` or `PeerLost`; None while it is open."""
        ...

    @property
    def heard_s(self) -> float:
        """When bytes last arrived, on the engine's clock."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes that `send` accepted and that neither the kernel nor UCX's transport has taken yet."""
        ...

    @property
    def fabric(self) -> str:
        """What carries the frames: ``tcp``, ``tcp via ADDRESS``, ``relay``, ``ucx/shm``, ``ucx/rdma``, ``ucx/tcp``."""
        ...

    @property
    def why(self) -> str:
        """Why this fabric was chosen and no faster one; empty while the two sides still negotiate."""
        ...

    @property
    def blocked_s(self) -> float:
        """Total time in seconds that senders were blocked by a full mailbox at the other end."""
        ...

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send *frame*; return whether it was sent.

        From an engine callback it never blocks. From any other thread it returns when the buffers may be modified
        again; while the send queue is full it waits, driving the engine.

        Args:
            end_s: for calls, the deadline on the engine's clock for waiting on a full mailbox; when it passes, the
                frame is not sent and the result is False.

        Raises:
            ChannelClosed: this side closed the channel.
            PeerLost: the peer or the connection is gone.
            FrameError: the frame exceeds a limit; the channel stays open.
        """
        ...

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read the peer's memory at *offset* into *into*; the peer's Python code is not involved.

        Args:
            key: the memory's key, see `transport.memory.registry.Memory.key`.
            into: a writable, contiguous buffer; do not touch it until the transfer is done.
        """
        ...

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write *data* to the peer's memory at *offset*; done when the data has arrived. Otherwise as `get`."""
        ...

    def consumed(self, dest: int, cost: int) -> None:
        """Report that local actor *dest* has handled a CALL frame that cost *cost*, see `transport.credit`."""
        ...

    def retire(self, dest: int) -> None:
        """Report that local actor *dest* has ended, so that both sides stop counting its credit."""
        ...

    def close(self, reason: str) -> None:
        """End the channel and send the peer *reason*; frames sent before still arrive."""
        ...

    def give_up(self, reason: str) -> None:
        """Declare the peer lost because of *reason*; the channel ends at once with `PeerLost`."""
        ...


class Listener(Protocol):
    """Callbacks for the channels of a process, invoked by the thread that drives the engine.

    They must be short and must not block.
    """

    def on_channel(self, channel: FrameChannel) -> None:
        """The peer opened a channel, and it is established."""
        ...

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """A frame arrived."""
        ...

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """The channel has ended; no frame follows."""
        ...
