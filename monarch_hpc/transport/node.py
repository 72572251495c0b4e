"""One process's seat in the allocation: it listens, dials, and holds the channels that came of it."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Mapping, Sequence

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, PeerLost, TransportError, VersionMismatch
from monarch_hpc.core.ids import Identity
from monarch_hpc.transport.address import make_socket, render_address, tune
from monarch_hpc.transport.api import Channel, Listener, Peer
from monarch_hpc.transport.dial import Done, Opener, Race
from monarch_hpc.transport.engine import Engine, Signal, Timer
from monarch_hpc.transport.handshake import HELLO_BYTES, Accepting, Dialing, check_versions
from monarch_hpc.transport.noise import Cipher
from monarch_hpc.transport.tcp import LINGER_S, TcpChannel
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Node"]

_log = logging.getLogger(__name__)


class Node:
    """Listens and dials for one process; see `transport.api.Listener` for what it reports.

    Args:
        key: the allocation's key, 32 bytes.
        listener: told of channels that others open, of frames, and of lost channels.
        relay: the way around where peers cannot be dialled from here; closed with the node.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        key: bytes,
        listener: Listener,
        limits: TransportConfig,
        relay: Opener | None = None,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._key = key
        self._listener = listener
        self._limits = limits
        self._channels: dict[int, TcpChannel] = {}
        self._listening: list[socket.socket] = []
        self._half_open: dict[_Inbound, None] = {}  # in order of arrival
        self._unproven: dict[Channel, Timer] = {}  # greeted, but maybe with a recorded greeting
        self._open: set[TcpChannel] = set()  # all of them, also those that a later one replaced
        self._races: list[Race] = []
        self._refused = 0
        self._relay = relay
        self._prefers_relay = False
        self._direct_works = False
        self._closed = False

    @property
    def identity(self) -> Identity:
        """Who this process is."""
        return self._identity

    @property
    def channels(self) -> Mapping[int, Channel]:
        """The open channels, by the peer's incarnation."""
        return self._channels

    @property
    def num_refused(self) -> int:
        """How many greetings were refused so far."""
        return self._refused

    # ---- listening ----

    def listen(self, hosts: Sequence[str]) -> list[str]:
        """Listen on a free port of each IP address in *hosts*; return the addresses, ``tcp://address:port``.

        Raises:
            PeerLost: an address cannot be bound.
        """
        addresses = []
        for host in hosts:
            sock = make_socket(host)
            try:
                sock.bind((host, 0))
            except OSError as error:
                sock.close()
                raise PeerLost(host, f"cannot listen there: {error.strerror}") from error
            sock.listen(512)
            self._listening.append(sock)
            self._engine.watch(sock.fileno(), functools.partial(self._accept, sock))
            addresses.append(render_address(sock.getsockname()))
        return addresses

    def _accept(self, sock: socket.socket, _mask: int) -> None:
        while True:
            try:
                accepted, address = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error)
                return
            # The oldest has had the most time: a flood of silent strangers only evicts itself.
            if len(self._half_open) + len(self._unproven) >= self._limits.max_half_open:
                if self._half_open:
                    next(iter(self._half_open)).drop()
                else:
                    next(iter(self._unproven)).give_up("too many greetings are unconfirmed")
            inbound = _Inbound(self, accepted, render_address(address))
            self._half_open[inbound] = None

    # ---- dialling ----

    def dial(self, addresses: Sequence[str], incarnation: int, done: Done) -> None:
        """Open a channel to whoever listens at one of *addresses*; call *done* with it or with why not.

        All addresses are tried at once; the first proven one wins. From callbacks of the engine.
        """
        known = self._channels.get(incarnation) if incarnation else None
        if known is not None and known.error is None:
            done(known)
            return
        self._races = [race for race in self._races if not race.over]
        self._races.append(Race(self, list(addresses), incarnation, done))

    def connect(self, addresses: Sequence[str], incarnation: int = 0, timeout_s: float | None = None) -> Channel:
        """Like `dial`, for threads outside the engine: wait for the channel and return it.

        Raises:
            PeerLost: nobody answers in time (default: config key `transport.connect_s`).
            AuthenticationError, VersionMismatch: somebody does, but cannot be spoken to.
        """
        known = self._channels.get(incarnation) if incarnation else None
        if known is not None and known.error is None:
            return known
        outcome: list[Channel | TransportError] = []
        signal = Signal(self._engine)

        def done(result: Channel | TransportError) -> None:
            outcome.append(result)
            signal.set()

        self._engine.call_soon(lambda: self.dial(addresses, incarnation, done))
        wait_s = timeout_s
        if wait_s is None:
            # The race has its deadline; this one only guards against a race that does not end.
            wait_s = 1.0 + self._limits.connect_s + (self._limits.relay_s if self._relay is not None else 0.0)
        if not signal.wait(wait_s):
            raise PeerLost(", ".join(addresses), f"no answer in {wait_s:.1f} s")
        if isinstance(outcome[0], TransportError):
            raise outcome[0]
        return outcome[0]

    # ---- channels ----

    def adopt(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> TcpChannel:
        """Make a channel of a socket that this side dialled and whose handshake is done."""
        if peer.relayed:
            self._prefers_relay = True
        else:
            self._direct_works = True
        channel = TcpChannel(self._engine, sock, peer, ciphers, self, self._limits)
        self._open.add(channel)
        self._channels[peer.incarnation] = channel
        channel.start()
        channel.send(Frame(Kind.PING))  # proves to the other side that our greeting is not a recorded one
        return channel

    def _on_proven(self, channel: TcpChannel) -> None:
        self._unproven.pop(channel).cancel()
        self._channels[channel.peer.incarnation] = channel
        self.on_channel(channel)

    def on_channel(self, channel: Channel) -> None:
        """Pass on a channel that the other side opened."""
        self._listener.on_channel(channel)

    def on_frame(self, channel: Channel, frame: Frame) -> None:
        """Pass on a frame."""
        self._listener.on_frame(channel, frame)

    def on_lost(self, channel: Channel, error: TransportError) -> None:
        """Forget a channel and pass the news on."""
        self._open.discard(channel)
        unproven = self._unproven.pop(channel, None)
        if unproven is not None:
            unproven.cancel()
            self.refuse(channel.peer.address, f"its greeting was never confirmed: {error}")
            return
        if self._channels.get(channel.peer.incarnation) is channel:
            del self._channels[channel.peer.incarnation]
        self._listener.on_lost(channel, error)

    def close(self, reason: str) -> None:
        """Stop listening and close all channels, telling the other sides *reason*.

        Outside of callbacks it returns when what was sent is with the kernel, at most `LINGER_S` later.
        """
        if not self._engine.driving:
            self._engine.call_soon(lambda: self.close(reason))
            self._engine.wait(lambda: self._closed and not self._open, 2 * LINGER_S)
            if self._relay is not None:
                self._relay.close()
            return
        self._closed = True
        for sock in self._listening:
            self._engine.unwatch(sock.fileno())
            sock.close()
        self._listening.clear()
        for inbound in list(self._half_open):
            inbound.drop()
        for race in self._races:
            race.cancel(reason)
        for channel in list(self._open):
            channel.close(reason)
        self._engine.wake_waiters()

    # ---- for the handshakes below ----

    def greeted(self, inbound: _Inbound, hello: bytes) -> None:
        """Judge a complete greeting."""
        del self._half_open[inbound]
        try:
            answer, peer, ciphers = Accepting(self._identity, self._key, inbound.address).answer(hello)
            inbound.sock.send(answer)  # 144 bytes always fit an empty socket buffer
            check_versions(peer.python, peer.package, str(peer))
        except (AuthenticationError, VersionMismatch, OSError, ValueError) as error:
            self.refuse(inbound.address, str(error))
            inbound.sock.close()
            return
        channel = TcpChannel(self._engine, inbound.sock, peer, ciphers, self, self._limits, self._on_proven)
        self._open.add(channel)
        late = functools.partial(channel.give_up, "no proof in time")
        self._unproven[channel] = self._engine.call_later(self._limits.handshake_s, late)
        channel.start()

    def refuse(self, address: str, why: str) -> None:
        """Count a refused greeting; one line for the first and for each hundredth."""
        self._refused += 1
        if self._refused % 100 == 1:
            _log.warning("refused %s (%d so far): %s", address, self._refused, why)

    def forget(self, inbound: _Inbound, why: str) -> None:
        """Drop a connection that did not greet."""
        if inbound in self._half_open:
            del self._half_open[inbound]
            self.refuse(inbound.address, why)

    @property
    def engine(self) -> Engine:
        """The engine that this node runs on."""
        return self._engine

    @property
    def relay(self) -> Opener | None:
        """The way around where the direct ones are blocked; None once a direct one has worked.

        Then a peer that cannot be dialled is gone, and no way around leads to it.
        """
        return None if self._direct_works else self._relay

    @property
    def prefers_relay(self) -> bool:
        """Whether a peer could be reached through the relay only; then all are dialled so."""
        return self._prefers_relay

    @property
    def limits(self) -> TransportConfig:
        """The limits of its channels."""
        return self._limits

    def dialing(self, incarnation: int, address: str) -> Dialing:
        """Begin a handshake with *address*."""
        return Dialing(self._identity, self._key, incarnation, address)


class _Inbound:
    """A connection that has not greeted completely: at most `HELLO_BYTES` bytes, and a deadline."""

    def __init__(self, node: Node, sock: socket.socket, address: str) -> None:
        self.sock = sock
        self.address = address
        self._node = node
        self._hello = b""
        sock.setblocking(False)
        tune(sock)
        self._timer: Timer = node.engine.call_later(node.limits.handshake_s, self._late)
        node.engine.watch(sock.fileno(), self._on_ready)

    def _late(self) -> None:
        self.drop("it sent no complete greeting in time")

    def _on_ready(self, _mask: int) -> None:
        try:
            data = self.sock.recv(HELLO_BYTES - len(self._hello))
        except BlockingIOError:
            return
        except OSError as error:
            self.drop(str(error))
            return
        if not data:
            self.drop("it left before greeting")
            return
        self._hello += data
        if len(self._hello) == HELLO_BYTES:
            self._timer.cancel()
            self._node.engine.unwatch(self.sock.fileno())
            self._node.greeted(self, self._hello)

    def drop(self, why: str = "too many connections have not greeted") -> None:
        """Close the connection."""
        self._timer.cancel()
        self._node.engine.unwatch(self.sock.fileno())
        self.sock.close()
        self._node.forget(self, why)
