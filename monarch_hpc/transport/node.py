"""One process's end of the transport: listens, dials, and keeps the resulting channels."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.transport.api import Fabric, FrameChannel, Listener, Peer
from monarch_hpc.transport.arrival import SPARES
from monarch_hpc.transport.channel import PeerChannel
from monarch_hpc.transport.connect.dial import Done, Opener
from monarch_hpc.transport.connect.listen import Acceptor, Forwards
from monarch_hpc.transport.connect.realms import Realms
from monarch_hpc.transport.connect.routes import Routes
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.own import OwnMemories
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import make_proof
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.tcp.channel import LINGER_S
from monarch_hpc.transport.tcp.keepalive import CutDetector
from monarch_hpc.wire.frames import Frame

__all__ = ["Node"]


class Node:
    """Listens and dials for one process; events go to a `transport.api.Listener`.

    A process has the key of its own allocation, if it has one; it may join others, see `join` and `link`.

    Args:
        key: the allocation's key, 32 bytes; empty for a program, which joins its allocations one by one.
        listener: receives accepted channels, frames, and lost channels.
        relay: the fallback where peers cannot be dialled from here; closed with the node.
        forwarders: addresses of agents that may forward to a peer that cannot be dialled.
        forwards: looks up the processes for which this process itself forwards.
        fabric: the fabric to use between peers that both have it, of all allocations; closed with the node.
        refused: called with the number of refused connections each time it grows.

    Attributes:
        own_memory: the registered memory of this process itself.
        fabric: its fabric; None if it has none.
        links: those whose procs it accepts, by name.
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
        SPARES.release_by(engine.call_later)
        self._identity = identity
        self._listener = listener
        self._limits = limits
        self._channels: dict[int, PeerChannel] = {}
        self._fence = Fence(identity.role)
        self._cut_detector = CutDetector(engine, limits.cut_s)
        self._realms = Realms(engine, limits, identity, self._fence, self.known, self.adopt)
        self.links = self._realms.links
        self.fabric = fabric
        self._acceptor = Acceptor(
            *(engine, identity, key, limits, self._on_accepted, forwards, self._fence, self._cut_detector, refused),
            self.links,
        )
        if key:
            self.join(identity.allocation, key, relay=relay, forwarders=forwarders, with_fabric=True)
        self._open: set[PeerChannel] = set()  # every open channel, including those that a later one replaced
        self.own_memory = OwnMemories(engine)
        self.own_memory.pulls.reach_by(identity.incarnation, self.dial)
        self.own_memory.find_paths(identity.incarnation, self._channels)
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
        return self._realms.own.dialer.routes

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

    def listen(self, hosts: Sequence[str], port: int = 0, port_range: str = "") -> list[str]:
        """Listen on a free port of each IP address in *hosts*; arguments and errors as of `Acceptor.listen`."""
        return self._acceptor.listen(hosts, port, port_range)

    def listen_on(self, sock: socket.socket) -> str:
        """Listen on *sock*, which is bound; return its address. It is closed with the node."""
        return self._acceptor.listen_on(sock)

    def _on_accepted(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> Callable[[], None]:
        if self._fence.admit(peer):
            for earlier in list(self._open):
                if objection := self._fence.objection(earlier.peer):
                    earlier.give_up(objection)
        return partial(self.on_channel, self._make(sock, peer, ciphers, dialed=False))

    # ---- whom it dials ----

    def join(
        self,
        allocation: str,
        key: bytes,
        *,
        name: str = "",
        relay: Opener | None = None,
        forwarders: Sequence[str] = (),
        with_fabric: bool = False,
    ) -> None:
        """Be able to dial the processes of *allocation*, too; see the class for the arguments.

        Args:
            name: stands in greetings in place of the allocation's id; only for links.
            with_fabric: whether its processes may be reached over the fabric of this process.
        """
        self._realms.join(allocation, key, name=name, relay=relay, forwarders=forwarders, with_fabric=with_fabric)

    def link(self, link: LinkKey) -> None:
        """Trust the procs of another allocation: accept them, and be able to dial them, with the key of *link*."""
        self._realms.link(link)

    def leave(self, allocation: str, reason: str) -> None:
        """Close the channels to the processes of *allocation*, sending them *reason*, and forget its key."""
        if not self._engine.driving:
            self._engine.call_soon(lambda: self.leave(allocation, reason))
            self._engine.wait(lambda: not self.belongs(allocation) and not self._reaches(allocation), 2 * LINGER_S)
            self._realms.close_relays()
            return
        self._realms.leave(allocation, reason)
        for channel in list(self._open):
            if channel.peer.allocation == allocation:
                channel.close(reason)
        self._engine.wake_waiters()

    def belongs(self, allocation: str) -> bool:
        """Whether this process can dial processes of *allocation*; true for a process that cannot be dialled."""
        return not allocation or allocation in self._realms.joined

    def use_fabric(self, make: Callable[[], Fabric]) -> None:
        """Use the fabric that *make* makes, unless there is one already: an engine polls one, for all allocations."""
        if self.fabric is None:
            self.fabric = make()

    def _reaches(self, allocation: str) -> bool:
        return any(channel.peer.allocation == allocation for channel in self._open)

    # ---- fencing ----

    def set_epoch(self, epoch: int, allocation: str = "") -> None:
        """Dial as the controller of *epoch* from here on, in *allocation* or in the process's own."""
        self._realms.set_epoch(epoch, allocation)

    def accept_all_runs(self) -> None:
        """Serve the programs of all runs from here on, see `Fence`."""
        self._fence.accept_all_runs()

    def bar(self, incarnation: int, why: str) -> None:
        """Refuse this incarnation for good; the caller ends the channel that it may have."""
        self._fence.bar(incarnation, why)

    # ---- dialling ----

    def dial(self, addresses: Sequence[str], incarnation: int, done: Done, allocation: str = "") -> None:
        """Open a channel to the process that listens at *addresses*; call *done* with the channel or with the error.

        All addresses are tried at once; the first to authenticate wins. Call it from engine callbacks only.

        Args:
            allocation: the allocation of that process; empty for this process's own.
        """
        realm = self._realms.get(allocation)
        if realm is None:
            where = ", ".join(addresses) or "a process without addresses"
            why = self._fence.barred(incarnation) or "its allocation has ended, or this process has no key for it"
            done(PeerLost(where, why))
        else:
            realm.dialer.dial(addresses, incarnation, done)

    def connect(
        self, addresses: Sequence[str], incarnation: int = 0, timeout_s: float | None = None, allocation: str = ""
    ) -> FrameChannel:
        """Like `dial`, for threads outside the engine: wait for the channel and return it.

        Raises:
            PeerLost: no answer in time (default: config key `transport.connect_s`).
            AuthenticationError, VersionMismatch: a process answered, but it holds another key or runs other versions.
        """
        if (known := self.known(incarnation)) is not None:
            return known
        outcome: list[FrameChannel | TransportError] = []
        signal = Flag(self._engine)

        def done(result: FrameChannel | TransportError) -> None:
            outcome.append(result)
            signal.set()

        self._engine.call_soon(lambda: self.dial(addresses, incarnation, done, allocation))
        relayed = self._realms.relayed
        wait_s = timeout_s
        if wait_s is None:
            # The race has its own deadline; this one only guards against a race that never ends.
            wait_s = 1.0 + 2 * self._limits.connect_s + (self._limits.relay_s if relayed else 0.0)
        if not signal.wait(wait_s):
            raise PeerLost(", ".join(addresses), f"no answer in {wait_s:.1f} s")
        if isinstance(outcome[0], TransportError):
            raise outcome[0]
        return outcome[0]

    # ---- memory ----

    def register(self, buffer: object, *, writable: bool = True, allocation: tuple[int, int] | None = None) -> Memory:
        """Let other processes read *buffer*, and write to it if *writable*, until the memory is closed.

        Arguments and errors are those of `transport.memory.registry.Memories.register`.
        """
        memory = self.own_memory.memories.register(buffer, writable=writable, allocation=allocation)
        if self.fabric is not None:
            self.fabric.register(memory)
        return memory

    # ---- channels ----

    def adopt(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> PeerChannel:
        """Make a channel of a socket that this side dialled and whose handshake is done."""
        with contextlib.suppress(OSError):  # the connection is gone: the channel's first read finds out
            sock.send(make_proof(ciphers[0]))  # 16 bytes always fit an empty socket buffer
        return self._make(sock, peer, ciphers, dialed=True)

    def _make(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher], *, dialed: bool) -> PeerChannel:
        realm = self._realms.get(peer.allocation)
        fabric = self.fabric if realm is not None and realm.with_fabric else None
        channel = PeerChannel(
            *(self._engine, sock, peer, ciphers, self, self._limits, self.own_memory, fabric),
            dialed=dialed,
            hands_on=self._identity.role is Role.AGENT,
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

        Outside callbacks it returns when every channel has ended. Each has `LINGER_S` to send what was accepted, but a
        thousand of them on a busy machine take longer to end; the wait is over when none has ended for twice that time.
        """
        if not self._engine.driving:
            self._engine.call_soon(lambda: self.close(reason))
            self._wait_for_the_end()
            self._realms.close_relays()
            self.own_memory.cross_memory.copiers.close()
            if self.fabric is not None:
                self.fabric.close()
            return
        self._closed = True
        self._acceptor.close()
        self._cut_detector.close()
        self._realms.close(reason)
        for channel in list(self._open):
            channel.close(reason)
        self._engine.wake_waiters()

    def _wait_for_the_end(self) -> None:
        num_open = -1
        while (self._open or not self._closed) and num_open != len(self._open):
            num_open = len(self._open)
            self._engine.wait(lambda: self._closed and not self._open, 2 * LINGER_S)
