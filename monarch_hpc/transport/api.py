"""What every fabric offers: an ordered, authenticated stream of frames between two incarnations."""

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
    """Who is at the other end of a channel, as it proved.

    Attributes:
        python: ``major.minor.micro`` of its interpreter.
        package: version of its monarch_hpc.
        address: where it is, as ``tcp://address:port``, or ``relay+tcp://address:port``; or ``via+tcp://address:port``
            for where the process is that passes things on to it.
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
        """Whether the way to it is the relay."""
        return self.address.startswith(RELAY_PREFIX)

    @property
    def via(self) -> str:
        """Address of the process that passes things on to it; empty if none does. Only the side that dialled knows."""
        return self.address.removeprefix(FORWARD_PREFIX) if self.address.startswith(FORWARD_PREFIX) else ""

    def __str__(self) -> str:
        return f"{self.role.name.lower()} on {self.host or 'an unnamed host'} ({self.address})"


class FrameChannel(Protocol):
    """One end of an established channel.

    Frames arrive at the other end in the order sent, each once, or the channel is lost as a whole.
    """

    mark: int
    """For whoever uses the channel; 0 at first."""

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
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
        """Bytes accepted by `send` that are not with the kernel, or with UCX's transport, yet."""
        ...

    @property
    def fabric(self) -> str:
        """What carries the frames: ``tcp``, ``tcp via ADDRESS``, ``relay``, ``ucx/shm``, ``ucx/rdma``, ``ucx/tcp``."""
        ...

    @property
    def why(self) -> str:
        """Why it is that fabric and no faster one; empty while the two sides still talk about it."""
        ...

    @property
    def blocked_s(self) -> float:
        """For how many seconds in all senders were held back because an actor there had its mailbox full."""
        ...

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send *frame*; return whether it was.

        From an engine callback it never blocks. From any other thread it returns when the buffers
        may be changed again; while the queue is full it waits, driving the engine.

        Args:
            end_s: for calls: until when, on the engine's clock, to wait while the mailbox there is full. It is not
                sent then, and False returned.

        Raises:
            ChannelClosed: this side has closed.
            PeerLost: the other side, or the wire, is gone.
            FrameError: the frame is over a limit; the channel lives on.
        """
        ...

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Fill *into* with the bytes from *offset* on of a memory of the peer, none of whose code runs for it.

        Args:
            key: of the memory, see `transport.memory.registry.Memory.key`.
            into: a writable, contiguous buffer; not to be touched until the transfer is done.
        """
        ...

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write *data* to *offset* of a memory of the peer; otherwise as `get`. Done when it is there."""
        ...

    def consumed(self, dest: int, cost: int) -> None:
        """Say that actor *dest* of this side has handled a CALL frame that cost *cost*, see `transport.credit`."""
        ...

    def retire(self, dest: int) -> None:
        """Say that actor *dest* of this side has ended, so that neither side keeps count of it."""
        ...

    def close(self, reason: str) -> None:
        """Tell the other side *reason* and end the channel; frames already sent still arrive."""
        ...

    def give_up(self, reason: str) -> None:
        """Declare the other side lost, for *reason*: the channel ends at once with `PeerLost`."""
        ...


class Listener(Protocol):
    """Who is told what happens on the channels of a process; called by the thread that drives the engine.

    The methods must be short and must not block.
    """

    def on_channel(self, channel: FrameChannel) -> None:
        """A channel that the other side opened is established."""
        ...

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """A frame arrived."""
        ...

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """The channel is over; no frame of it follows."""
        ...
