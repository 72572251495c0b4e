"""The interfaces of the transport: a channel, whatever carries its frames, and the fabrics that may carry them.

A channel is an ordered, authenticated stream of frames between two incarnations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.address import FORWARD_PREFIX, RELAY_PREFIX
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.peer import MemoryPeer
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.sharing import SharedFrames
from monarch_hpc.wire.frames import Frame, FrameHead

__all__ = [
    "Capabilities",
    "Fabric",
    "FabricKind",
    "FrameChannel",
    "LandingMemory",
    "Lane",
    "LaneListener",
    "Listener",
    "Peer",
]


class FabricKind(enum.Enum):
    """A kind of fabric; the value is its name in status reports and messages."""

    TCP = "tcp"
    RELAY = "relay"
    UCX_SHM = "ucx/shm"
    UCX_RDMA = "ucx/rdma"
    UCX_TCP = "ucx/tcp"


@dataclass(frozen=True, slots=True)
class Peer:
    """The authenticated process at the other end of a channel.

    Attributes:
        python: ``major.minor.micro`` of its interpreter.
        package: version of its monarch_hpc.
        address: ``tcp://address:port``; ``relay+tcp://address:port`` through the relay; or ``via+tcp://address:port``,
            the address of the process that forwards to it.
        allocation: the allocation that it belongs to.
        link: name of the link whose key it has proven, on the accepting side; empty for that of the allocation.
    """

    role: Role
    host: str
    incarnation: int
    epoch: int
    python: str
    package: str
    address: str
    allocation: str = ""
    link: str = ""

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
    def memory(self) -> MemoryPeer:
        """The registered memory of the peer, used by its identifiers; `get` and `put` use it by its keys."""
        ...

    @property
    def sharing(self) -> SharedFrames:
        """The frames whose buffers are mapped by the other side instead of sent."""
        ...

    @property
    def error(self) -> TransportError | None:
        """Why the channel is over: `ChannelClosed` or `PeerLost`; None while it is open."""
        ...

    @property
    def received_s(self) -> float:
        """When bytes last arrived, on the engine's clock."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes that `send` accepted and that neither the kernel nor the fabric has taken yet."""
        ...

    @property
    def fabric(self) -> str:
        """What carries the frames, for people: the value of a `FabricKind`, or ``tcp via ADDRESS``."""
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
            key: the memory's key, see `transport.memory.memory.Memory.key`.
            into: a writable, contiguous buffer; do not touch it until the transfer is done.
        """
        ...

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write *data* to the peer's memory at *offset*; done when the data has arrived. Otherwise as `get`."""
        ...

    def probe(self, asked_us: int) -> None:
        """Ask the peer to send something soon; *asked_us* is the time, in microseconds of the engine's clock.

        `received_s` then shows that the process lives, where an open socket may be that of one that is ending.
        """
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


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The fabrics that one side of a channel could use.

    Attributes:
        place: equal for two processes that can share memory; empty if this one cannot.
        rdma: whether it has an RDMA network.
        tcp: whether its profile trusts the network, so that a fabric without encryption may use tcp.
        problem: why it can use nothing; empty if it might.
        rdma_fault: why it cannot use the RDMA network that it has; empty if it might.
    """

    place: str = ""
    rdma: bool = False
    tcp: bool = False
    problem: str = ""
    rdma_fault: str = ""


class LandingMemory(Protocol):
    """The memory of this process that transfers read into."""

    def land(self, head: FrameHead, withdraw: Callable[[], object]) -> list[memoryview] | None:
        """Targets for the buffers of a DATA frame with *head*, which has begun to arrive; None for fresh memory.

        Args:
            withdraw: called, from any thread, to take the memory back; returns once nothing writes to it. Then the list
                has other memory.
        """
        ...


class LaneListener(Protocol):
    """The owner of a lane, which is its channel; called by the thread that drives the engine. Must not block."""

    @property
    def memory(self) -> LandingMemory:
        """Where the data of transfers belongs."""
        ...

    def on_lane_frame(self, frame: Frame) -> None:
        """A frame arrived, in order."""
        ...

    def on_lane_error(self, error: TransportError) -> None:
        """The lane has failed; no frame follows. Not called by or after `Lane.close`."""
        ...

    def probe(self, asked_us: int) -> None:
        """Ask the peer to send on the lane, then echo *asked_us* on the socket: see `Lane.answered`."""
        ...


class Lane(Protocol):
    """One channel's frames over a fabric, beside its socket.

    The two sides exchange their tokens over the socket, connect, and send SWITCH on the socket; all later frames use
    the lane. They arrive in the order sent, each once, or the lane fails as a whole. It need not notice the peer's
    death, which ends the socket and so the channel.

    Any thread may send, move memory and read `pending_bytes`; all else is for the driver of the engine. The owner may
    close the lane under threads that send.
    """

    @property
    def token(self) -> bytes:
        """The token that the peer must put into each message."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes that were sent and that the fabric has not taken yet."""
        ...

    @property
    def transports(self) -> tuple[str, ...]:
        """Names of what the fabric itself uses to reach the peer; empty if it does not report them."""
        ...

    @property
    def received_s(self) -> float:
        """When frames last arrived, on the engine's clock; 0 before."""
        ...

    def connect(self, kind: FabricKind, address: bytes, token: bytes, connected: Callable[[], None]) -> None:
        """Connect to the peer's lane; once.

        Args:
            kind: the result of the negotiation.
            address: `Fabric.address` of the peer.
            token: the token of the peer's lane.
            connected: called on the driver when frames may be sent, perhaps before this returns; not after `close`, and
                never if the fabric does not reach the peer and cannot tell.

        Raises:
            PeerLost: the fabric does not reach the peer; the channel stays on its socket.
        """
        ...

    def send(self, frame: Frame) -> None:
        """Send *frame*; blocks and raises as `FrameChannel.send` does."""
        ...

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        """Get memory of the peer into *buffer*, or put *buffer* there if *write*, without the peer's Python code.

        Returns:
            The transfer, which `close` ends, too. None where the fabric cannot do it, or frames would be faster.

        Raises:
            TypeError: *buffer* has no buffer protocol.
            BufferError: it is not contiguous, or is read-only and cannot be read into.
        """
        ...

    def move_all(self, moves: Moves, keys: Sequence[Key]) -> Transfer | None:
        """Begin all *moves*, with memories of *keys*, as one transfer; None where `move` is to begin each."""
        ...

    def open(self) -> None:
        """Deliver the peer's frames from here on: SWITCH has arrived. Earlier ones were kept."""
        ...

    def answered(self, asked_us: int) -> None:
        """Handle an answer to `LaneListener.probe` that came over the socket."""
        ...

    def close(self, error: TransportError, *, peer_died: bool) -> None:
        """Disconnect from the peer, once.

        Args:
            error: the reason that later calls raise, and with which transfers in flight fail.
            peer_died: neither side closed the channel: the peer may have died in the middle of a write.
        """
        ...


class Fabric(Protocol):
    """What may carry frames faster than a socket, for all channels of a process. Encryption is the fabric's own matter.

    `register` and `close` are for any thread, all else is for the driver of the engine.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The facts that a peer needs to choose a fabric; does not start this one."""
        ...

    @property
    def address(self) -> bytes:
        """The address to which peers connect their lanes; only once it has started."""
        ...

    def start(self, started: Callable[[str], None]) -> None:
        """Start the fabric unless it has started, without blocking.

        Args:
            started: called once on the driver with the reason why the fabric is not available; empty if it is.
        """
        ...

    def open_lane(self, listener: LaneListener, peer: str, send_queue_bytes: int) -> Lane:
        """Open a lane; only once the fabric has started.

        Args:
            peer: the peer, for errors.
            send_queue_bytes: bytes that may be pending before senders block.
        """
        ...

    def register(self, memory: Memory) -> None:
        """Serve *memory* to peers, too, if possible; otherwise it is reached by frames."""
        ...

    def close(self) -> None:
        """Stop the fabric, once; lanes can no longer be used. Blocks, unless called from an engine callback."""
        ...
