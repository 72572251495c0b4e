"""One process's end of the transport: listens, dials, and keeps the resulting channels."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.transport.api import Fabric, FrameChannel, Listener, Peer
from monarch_hpc.transport.channel import PeerChannel
from monarch_hpc.transport.connect.dial import Dialer, Done, Opener
from monarch_hpc.transport.connect.listen import Acceptor, Forwards
from monarch_hpc.transport.connect.routes import Routes
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.registry import Memories
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import Dialing, make_proof
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.tcp.channel import LINGER_S
from monarch_hpc.transport.tcp.keepalive import CutDetector
from monarch_hpc.wire.frames import Frame

__all__ = ["Node"]


class Node:
    """Listens and dials for one process; events go to a `transport.api.Listener`.

    Args:
        key: the allocation's key, 32 bytes.
        listener: receives accepted channels, frames, and lost channels.
        relay: the fallback where peers cannot be dialled from here; closed with the node.
        forwarders: addresses of agents that may forward to a peer that cannot be dialled.
        forwards: looks up the processes for which this process itself forwards.
        fabric: the fabric to use between peers that both have it; closed with the node.
        refused: called with the number of refused connections each time it grows.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        key: bytes,
        listener: Listener,
        limits: TransportConfig,
        relay: Opener | None = None,
        *,
        forwarders: Sequence[str] = (),
        forwards: Forwards = lambda _incarnation: None,
        fabric: Fabric | None = None,
        refused: Callable[[int], object] = lambda _num: None,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._key = key
        self._listener = listener
        self._limits = limits
        self._channels: dict[int, PeerChannel] = {}
        self._fence = Fence(identity.role)
        self._cut_detector = CutDetector(engine, limits.cut_s)
        self._acceptor = Acceptor(
            engine, identity, key, limits, self._on_accepted, forwards, self._fence, self._cut_detector, refused
        )
        self._dialer = Dialer(
            engine, limits, self._begin_handshake, self.known, self.adopt, self._fence, relay, forwarders
        )
        self._open: set[PeerChannel] = set()  # every open channel, including those that a later one replaced
        self._relay = relay
        self._fabric = fabric
        self._memories = Memories(engine)
        self._closed = False

    @property
    def identity(self) -> Identity:
        """The identity of this process."""
        return self._identity

    @property
    def engine(self) -> Engine:
        """The engine that this node runs on."""
        return self._engine

    @property
    def limits(self) -> TransportConfig:
        """The limits of its channels."""
        return self._limits

    @property
    def routes(self) -> Routes:
        """The routes to other hosts that have worked."""
        return self._dialer.routes

    @property
    def channels(self) -> Mapping[int, FrameChannel]:
        """The open channels, by the peer's incarnation."""
        return self._channels

    @property
    def num_refused(self) -> int:
        """Number of connections refused so far."""
        return self._acceptor.num_refused

    @property
    def num_half_open(self) -> int:
        """Number of connections that have not authenticated yet."""
        return self._acceptor.num_half_open

    # ---- listening ----

    def listen(self, hosts: Sequence[str], port: int = 0) -> list[str]:
        """Listen on a free port, or on *port*, of each IP address in *hosts*; return the addresses.

        Raises:
            PeerLost: an address cannot be bound.
        """
        return self._acceptor.listen(hosts, port)

    def _on_accepted(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        if self._fence.admit(peer):
            for earlier in list(self._open):
                objection = self._fence.objection(earlier.peer)
                if objection:
                    earlier.give_up(objection)
        self.on_channel(self._make(sock, peer, ciphers, dialed=False))

    # ---- fencing ----

    def set_epoch(self, epoch: int) -> None:
        """Dial as the controller of *epoch* from here on."""
        self._identity = replace(self._identity, epoch=epoch)

    def bar(self, incarnation: int, why: str) -> None:
        """Refuse this incarnation for good; the caller ends the channel that it may have."""
        self._fence.bar(incarnation, why)

    # ---- dialling ----

    def dial(self, addresses: Sequence[str], incarnation: int, done: Done) -> None:
        """Open a channel to the process that listens at *addresses*; call *done* with the channel or with the error.

        All addresses are tried at once; the first to authenticate wins. Call it from engine callbacks only.
        """
        self._dialer.dial(addresses, incarnation, done)

    def _begin_handshake(self, incarnation: int, address: str) -> Dialing:
        return Dialing(self._identity, self._key, incarnation, address)

    def connect(self, addresses: Sequence[str], incarnation: int = 0, timeout_s: float | None = None) -> FrameChannel:
        """Like `dial`, for threads outside the engine: wait for the channel and return it.

        Raises:
            PeerLost: no answer in time (default: config key `transport.connect_s`).
            AuthenticationError, VersionMismatch: a process answered, but it holds another key or runs other versions.
        """
        known = self.known(incarnation)
        if known is not None:
            return known
        outcome: list[FrameChannel | TransportError] = []
        signal = Flag(self._engine)

        def done(result: FrameChannel | TransportError) -> None:
            outcome.append(result)
            signal.set()

        self._engine.call_soon(lambda: self.dial(addresses, incarnation, done))
        wait_s = timeout_s
        if wait_s is None:
            # The race has its own deadline; this one only guards against a race that never ends.
            wait_s = 1.0 + 2 * self._limits.connect_s + (self._limits.relay_s if self._relay is not None else 0.0)
        if not signal.wait(wait_s):
            raise PeerLost(", ".join(addresses), f"no answer in {wait_s:.1f} s")
        if isinstance(outcome[0], TransportError):
            raise outcome[0]
        return outcome[0]

    # ---- memory ----

    @property
    def memories(self) -> Memories:
        """The registered memories of this process, through which it reads and writes its own."""
        return self._memories

    def register(self, buffer: object, *, writable: bool = True) -> Memory:
        """Let other processes read *buffer*, and write to it if *writable*, until the memory is closed.

        Args:
            buffer: an object with the buffer protocol or `__cuda_array_interface__`; contiguous.

        Raises:
            TypeError: *buffer* has neither.
            ValueError: *buffer* is not contiguous, or *writable* was asked for and it is read-only.
        """
        memory = self._memories.register(buffer, writable=writable)
        if self._fabric is not None:
            self._fabric.register(memory)
        return memory

    # ---- channels ----

    def adopt(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> PeerChannel:
        """Make a channel of a socket that this side dialled and whose handshake is done."""
        with contextlib.suppress(OSError):  # the connection is gone: the channel's first read finds out
            sock.send(make_proof(ciphers[0]))  # 16 bytes always fit an empty socket buffer
        return self._make(sock, peer, ciphers, dialed=True)

    def _make(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher], *, dialed: bool) -> PeerChannel:
        channel = PeerChannel(
            self._engine, sock, peer, ciphers, self, self._limits, self._memories, self._fabric, dialed=dialed
        )
        self._open.add(channel)
        known = self._channels.get(peer.incarnation)
        if known is None or not self._dialed_both_ways(known, channel):
            self._channels[peer.incarnation] = channel
        if peer.role is not Role.AGENT:  # channels to agents have heartbeats
            self._cut_detector.watch(channel, sock, channel.give_up)
        channel.start()
        return channel

    def _dialed_both_ways(self, known: PeerChannel, channel: PeerChannel) -> bool:
        """Whether both sides dialled each other at once; each then keeps sending on its first channel, in order.

        Otherwise the peer opens another channel because it lost the one that is known here.
        """
        race_s = 2 * self._limits.connect_s + self._limits.relay_s
        recent = channel.opened_s - known.opened_s < race_s
        return known.error is None and known.dialed is not channel.dialed and recent

    def known(self, incarnation: int) -> FrameChannel | None:
        """The open channel to an incarnation; None if there is none, and for incarnation 0, which means any process."""
        known = self._channels.get(incarnation)
        return known if known is not None and known.error is None else None

    def on_channel(self, channel: FrameChannel) -> None:
        """Report a channel that the other side opened."""
        self._listener.on_channel(channel)

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Deliver a frame."""
        self._listener.on_frame(channel, frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Drop a channel and report its loss."""
        self._open.discard(channel)
        self._cut_detector.forget(channel)
        incarnation = channel.peer.incarnation
        if self._channels.get(incarnation) is channel:
            del self._channels[incarnation]
            for left in self._open:  # a simultaneously dialled channel may live on
                if left.peer.incarnation == incarnation:
                    self._channels[incarnation] = left
        self._listener.on_lost(channel, error)

    def close(self, reason: str) -> None:
        """Stop listening and close all channels, sending the peers *reason*.

        Outside callbacks it returns when the kernel has taken all that was sent, at most `LINGER_S` later.
        """
        if not self._engine.driving:
            self._engine.call_soon(lambda: self.close(reason))
            self._engine.wait(lambda: self._closed and not self._open, 2 * LINGER_S)
            if self._relay is not None:
                self._relay.close()
            if self._fabric is not None:
                self._fabric.close()
            return
        self._closed = True
        self._acceptor.close()
        self._cut_detector.close()
        self._dialer.close(reason)
        for channel in list(self._open):
            channel.close(reason)
        self._engine.wake_waiters()
