"""The listening side of a process: a connection must prove that it holds the key, or it is closed.

Before that, the process keeps nothing of it but a socket and at most `HELLO_BYTES` bytes, and its data reaches nothing
but the handshake.
"""

from __future__ import annotations

import functools
import logging
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.address import bind_to, bind_within, render_address, tune
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.connect.forward import Forward
from monarch_hpc.transport.connect.half_open import GRACE_S, HalfOpen
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    Accepting,
    check_proof,
    check_versions,
    ephemeral_key,
)
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import RecordWriter
from monarch_hpc.transport.secure.replay_cache import ReplayCache
from monarch_hpc.transport.tcp.keepalive import CutDetector
from monarch_hpc.wire.frames import Frame, Kind, pack_frame

__all__ = ["Acceptor", "Forwards", "OnAccepted"]

Forwards = Callable[[int], Sequence[str] | None]
"""Returns the addresses of an incarnation that this process forwards to; None for any other."""

OnAccepted = Callable[[socket.socket, Peer, tuple[Cipher, Cipher]], Callable[[], None]]
"""Called on the driver with the socket of an authenticated peer, and the (send, receive) ciphers."""

_BACKLOG = 4096  # the kernel may allow less; a peer that finds it full retries after 1 s
_ACCEPTS_PER_EVENT = 64  # then other callbacks run
_LOG_AGAIN_S = 60.0
"""A port scan is one line in the log, with a count in the next one."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s

_log = Logger(__name__)


class Acceptor:
    """Listens for one process. All methods but `listen` are for the driver of the engine.

    Args:
        on_accepted: makes a channel of each socket whose peer has authenticated; returns what reports it.
        forwards: looks up the processes that it forwards to.
        fence: refuses peers although they hold the key.
        cut_detector: watches the forwarded connections.
        refused: called with the number of refused connections each time it grows.
        links: the links of this process, by name.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        key: bytes,
        limits: TransportConfig,
        on_accepted: OnAccepted,
        forwards: Forwards,
        fence: Fence,
        cut_detector: CutDetector,
        refused: Callable[[int], object],
        links: Mapping[str, LinkKey],
    ) -> None:
        self._engine = engine
        self._links = links
        self._refused = refused
        # On a proc or a program this would reach the user's terminal, so only agents log it at the default level.
        self._level = logging.WARNING if identity.role is Role.AGENT else logging.INFO
        self._forwards = forwards
        self._fence = fence
        self._cut_detector = cut_detector
        self._open_forwards: set[Forward] = set()
        self._identity = identity
        self._key = key
        self._on_accepted = on_accepted
        self._listening: list[socket.socket] = []
        self._half_open: HalfOpen[_Inbound] = HalfOpen(limits.max_half_open, limits.handshake_s)
        self._greetings = ReplayCache()
        self._paused = False
        self._tick: Timer | None = None
        self._num_refused = 0
        self._logged_s = -_LOG_AGAIN_S

    @property
    def num_refused(self) -> int:
        """Number of connections refused so far."""
        return self._num_refused

    @property
    def num_half_open(self) -> int:
        """Number of connections that have not authenticated yet."""
        return len(self._half_open)

    def listen(self, hosts: Sequence[str], port: int = 0, port_range: str = "") -> list[str]:
        """Listen on a free port, or on *port*, of each IP address in *hosts*; return the addresses.

        Args:
            port_range: ``LOW-HIGH``, of which a free port is taken; any if empty.

        Raises:
            PeerLost: an address cannot be bound, or no port of the range is free.
        """
        bind = partial(bind_within, port_range=port_range) if port_range and not port else partial(bind_to, port=port)
        return [self.listen_on(bind(host)) for host in hosts]

    def listen_on(self, sock: socket.socket) -> str:
        """Listen on *sock*, which is bound; return its address. It is closed with the listener."""
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._listening.append(sock)
        self._watch(sock)
        return render_address(sock.getsockname())

    def close(self) -> None:
        """Stop listening, and drop the connections that have not authenticated."""
        for sock in self._listening:
            self._engine.unwatch(sock.fileno())
            sock.close()
        self._listening.clear()
        for inbound in list(self._half_open):
            self._remove(inbound)
            inbound.close("the listener is closing")
        for forward in list(self._open_forwards):
            forward.close("the listener is closing")
        if self._tick is not None:
            self._tick.cancel()

    # ---- arrivals ----

    def _watch(self, sock: socket.socket) -> None:
        self._engine.watch(sock.fileno(), functools.partial(self._accept, sock))

    def _accept(self, sock: socket.socket, _mask: int) -> None:
        for number in range(_ACCEPTS_PER_EVENT):
            if self._half_open.full:
                if number:
                    return  # the backlog may be empty: evict only if another connection waits
                if not self._make_room():
                    self._pause()
                    return
            try:
                accepted, name = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:  # usually no descriptor is left: to retry at once would only spin
                self._log_rate_limited(logging.WARNING, "cannot accept a connection: %s", error)
                self._pause()
                return
            inbound = _Inbound(self, accepted, name, self._engine.clock())
            self._half_open.add(inbound)
            self._engine.watch(accepted.fileno(), inbound.on_ready)
            self._wake_at(self._half_open.next_s())
            inbound.on_ready()  # one that waited in the backlog has sent its hello already

    def _make_room(self) -> bool:
        while self._half_open.full:
            evictable = self._half_open.evictable(self._engine.clock())
            if evictable is None:
                return False
            self._evict(evictable, "too many connections have not authenticated")
        return True

    def _pause(self) -> None:
        """Leave further connections in the backlog, until there is room or the next tick."""
        self._paused = True
        for sock in self._listening:
            self._engine.unwatch(sock.fileno())
        self._wake_at(self._engine.clock() + GRACE_S)

    def _wake_at(self, at_s: float | None) -> None:
        if at_s is None or (self._tick is not None and self._tick.at_s <= at_s):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick = self._engine.call_later(at_s - self._engine.clock(), self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        for inbound in self._half_open.due(self._engine.clock()):
            self._evict(inbound, "it did not authenticate in time")
        self._resume()
        self._wake_at(self._half_open.next_s())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            for sock in self._listening:
                self._watch(sock)

    def _evict(self, inbound: _Inbound, why: str) -> None:
        """Close a connection, unless its next message is already in the socket: then this process was the slow one."""
        had_greeted = inbound.greeted
        inbound.on_ready()
        if inbound in self._half_open and inbound.greeted == had_greeted:
            inbound.reset()
            self.refuse(inbound, why)

    def _remove(self, inbound: _Inbound) -> None:
        self._half_open.remove(inbound)
        self._engine.unwatch(inbound.sock.fileno())
        if self._paused and not self._half_open.full and self._listening:
            self._resume()

    # ---- judgement ----

    def on_hello(self, inbound: _Inbound, hello: bytes) -> tuple[Peer, tuple[Cipher, Cipher]] | None:
        """Answer a complete hello, before the proof that it is not a recording; return the claimed peer and ciphers.

        A hello for another process is forwarded, if that process's addresses are known; a fenced peer is sent the
        reason. Both return None.

        Raises:
            AuthenticationError, VersionMismatch: the peer is not of this allocation, or runs other versions.
            OSError: the peer disconnected.
        """
        key = ephemeral_key(hello)
        if key in self._greetings:  # before any cryptography: a flood of recordings must be cheap
            inbound.reset()
            raise AuthenticationError(inbound.address, "its hello has been used before")
        accepting = Accepting(self._identity, self._key, inbound.address, self._links)
        peer, wanted = accepting.read(hello)
        self._greetings.add(key)
        objection = self._fence.objection(peer)
        if wanted not in (0, self._identity.incarnation) and not objection:
            addresses = self._forwards(wanted)
            if addresses is not None:
                self._forward(inbound, hello, addresses)
                return None
        answer, ciphers = accepting.answer()
        if objection:
            inbound.sock.send(answer + _farewell(ciphers[0], objection))
            self.refuse(inbound, f"{peer}: {objection}")
            return None
        inbound.sock.send(answer)  # 144 bytes always fit an empty socket buffer
        check_versions(peer.python, peer.package, str(peer))
        self._renew(inbound)
        return peer, ciphers

    def _renew(self, inbound: _Inbound) -> None:
        """Restart the time limit of a connection whose hello used the key."""
        self._half_open.remove(inbound)
        inbound.at_s = self._engine.clock()
        self._half_open.add(inbound)

    def _forward(self, inbound: _Inbound, hello: bytes, addresses: Sequence[str]) -> None:
        """Join a hello's sender to the wanted process; the connection is half-open until that process answers."""

        def over(why: str) -> None:
            self._open_forwards.discard(forward)
            if inbound in self._half_open:
                self.refuse(inbound, f"cannot forward it: {why}")

        self._renew(inbound)
        self._engine.unwatch(inbound.sock.fileno())
        opened = functools.partial(self._remove, inbound)
        forward = Forward(self._engine, self._cut_detector, inbound.sock, hello, addresses, opened, over)
        inbound.forward = forward
        self._open_forwards.add(forward)

    def admit(self, inbound: _Inbound, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        """Hand over a connection that has authenticated, unless its peer has been fenced meanwhile.

        Raises:
            OSError: the peer disconnected.
        """
        objection = self._fence.objection(peer)
        if objection:
            inbound.sock.send(_farewell(ciphers[0], objection))
            self.refuse(inbound, f"{peer}: {objection}")
            return
        self._remove(inbound)
        try:
            report = self._on_accepted(inbound.sock, peer, ciphers)
        except (OSError, MemoryError) as error:  # there is no room for another channel; those that are open go on
            inbound.close(str(error))
            self._log_rate_limited(logging.WARNING, "cannot serve %s: %s", peer, error or type(error).__name__)
            return
        report()

    def refuse(self, inbound: _Inbound, why: str) -> None:
        """Close a connection and count it as refused."""
        self._remove(inbound)
        inbound.close(why)
        self._num_refused += 1
        self._refused(self._num_refused)
        self._log_rate_limited(self._level, "refused %s (%d so far): %s", inbound.address, self._num_refused, why)

    def _log_rate_limited(self, level: int, words: str, *values: object) -> None:
        if _log.isEnabledFor(level) and self._engine.clock() - self._logged_s >= _LOG_AGAIN_S:
            self._logged_s = self._engine.clock()
            _log.log(level, words, *values)


class _Inbound:
    """A connection that has not authenticated."""

    __slots__ = ("_acceptor", "_claim", "_got", "_name", "at_s", "forward", "sock")  # strangers get little memory

    def __init__(self, acceptor: Acceptor, sock: socket.socket, name: tuple[str, int], at_s: float) -> None:
        self.sock = sock
        self.at_s = at_s
        self.forward: Forward | None = None  # owns the socket, once the hello turned out to be for another process
        self._acceptor = acceptor
        self._name = name
        self._got = b""
        self._claim: tuple[Peer, tuple[Cipher, Cipher]] | None = None
        sock.setblocking(False)
        tune(sock)

    @property
    def host(self) -> str:
        """The IP address that it came from."""
        return self._name[0]

    @property
    def address(self) -> str:
        """The address and port that it came from."""
        return render_address(self._name)

    @property
    def greeted(self) -> bool:
        """Whether its hello was made with the key."""
        return self._claim is not None or self.forward is not None

    def reset(self) -> None:
        """Make `close` send a reset, which tells an honest peer to retry, since its hello was not examined."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def close(self, why: str) -> None:
        """Close the connection, and the one it is joined to."""
        if self.forward is not None:
            self.forward.close(why)
        self.sock.close()

    def on_ready(self, _mask: int = 0) -> None:
        """Read what has arrived."""
        if self.forward is not None:
            return
        try:
            data = self.sock.recv((HELLO_BYTES if self._claim is None else PROOF_BYTES) - len(self._got))
            if not data:
                raise AuthenticationError(self.address, "it disconnected before it authenticated")
            self._got += data
            if self._claim is None and len(self._got) == HELLO_BYTES:
                self._claim = self._acceptor.on_hello(self, self._got)
                self._got = b""
            elif self._claim is not None and len(self._got) == PROOF_BYTES:
                peer, ciphers = self._claim
                check_proof(ciphers[1], self._got)
                self._acceptor.admit(self, peer, ciphers)
        except BlockingIOError:
            return
        except (AuthenticationError, VersionMismatch, OSError) as error:
            self._acceptor.refuse(self, str(error))


def _farewell(seal: Cipher, reason: str) -> bytes:
    """The only record sent to a refused peer: BYE with the reason."""
    return RecordWriter(seal).seal(pack_frame(Frame(Kind.BYE, body=reason.encode())))
