"""The listening half of a process: whoever connects proves that it holds the key, or leaves.

Of somebody without proof nothing is kept but a socket and at most `HELLO_BYTES` bytes, and nothing that
it sends reaches anything but the handshake.
"""

from __future__ import annotations

import functools
import logging
import socket
import struct
from collections.abc import Callable, Sequence

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, PeerLost, VersionMismatch
from monarch_hpc.core.ids import Identity, Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.address import make_socket, render_address, tune
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.connect.forward import Forward
from monarch_hpc.transport.connect.half_open import GRACE_S, HalfOpen
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.timer import Timer
from monarch_hpc.transport.secure.fence import Fence
from monarch_hpc.transport.secure.handshake import (
    HELLO_BYTES,
    PROOF_BYTES,
    Accepting,
    check_proof,
    check_versions,
    ephemeral_key,
)
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import RecordWriter
from monarch_hpc.transport.secure.replay_cache import ReplayCache
from monarch_hpc.transport.tcp.keepalive import CutDetector
from monarch_hpc.wire.frames import Frame, Kind, pack_frame

__all__ = ["Acceptor", "Forwards", "OnAccepted"]

Forwards = Callable[[int], Sequence[str] | None]
"""Where an incarnation listens, for which this process passes things on; None for all others."""

OnAccepted = Callable[[socket.socket, Peer, tuple[Cipher, Cipher]], None]
"""Called on the driver with the socket of a proven peer, and the (send, receive) ciphers."""

_BACKLOG = 4096  # the kernel may allow less; whoever finds it full tries again after 1 s
_ACCEPTS_PER_EVENT = 64  # then others get their turn
_LOG_AGAIN_S = 60.0
"""A scan of ports is one line in the log, with a count in the next one."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s

_log = Logger(__name__)


class Acceptor:
    """Listens for one process. All methods but `listen` are for the driver of the engine.

    Args:
        on_accepted: given each socket whose other end has proved itself.
        forwards: for whom it passes things on.
        fence: who is refused, although it holds the key.
        cut_detector: watches those of what it passes on.
        refused: told how many connections were refused so far, each time that it is one more.
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
    ) -> None:
        self._engine = engine
        self._refused = refused
        # What others write to a proc or a program belongs on its user's terminal only if he asks for it.
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
        """How many connections went without proof so far."""
        return self._num_refused

    @property
    def num_half_open(self) -> int:
        """How many have not proved themselves yet."""
        return len(self._half_open)

    def listen(self, hosts: Sequence[str], port: int = 0) -> list[str]:
        """Listen on a free port, or on *port*, of each IP address in *hosts*; return the addresses.

        Raises:
            PeerLost: an address cannot be bound.
        """
        addresses = []
        for host in hosts:
            sock = make_socket(host)
            try:
                if port:  # who listened there before us may have left connections behind
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
            except OSError as error:
                sock.close()
                raise PeerLost(host, f"cannot listen there: {error.strerror}") from error
            sock.listen(_BACKLOG)
            self._listening.append(sock)
            self._watch(sock)
            addresses.append(render_address(sock.getsockname()))
        return addresses

    def close(self) -> None:
        """Stop listening, and drop whoever has not proved itself."""
        for sock in self._listening:
            self._engine.unwatch(sock.fileno())
            sock.close()
        self._listening.clear()
        for inbound in list(self._half_open):
            self._remove(inbound)
            inbound.close("the gate closes")
        for forward in list(self._open_forwards):
            forward.close("the gate closes")
        if self._tick is not None:
            self._tick.cancel()

    # ---- arrivals ----

    def _watch(self, sock: socket.socket) -> None:
        self._engine.watch(sock.fileno(), functools.partial(self._accept, sock))

    def _accept(self, sock: socket.socket, _mask: int) -> None:
        for number in range(_ACCEPTS_PER_EVENT):
            if self._half_open.full:
                if number:
                    return  # perhaps nobody else waits: then nobody need go
                if not self._make_room():
                    self._pause()
                    return
            try:
                accepted, name = sock.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is left, as a rule: asking again at once would only spin
                self._log_rate_limited(logging.WARNING, "cannot accept a connection: %s", error)
                self._pause()
                return
            inbound = _Inbound(self, accepted, name, self._engine.clock())
            self._half_open.add(inbound)
            self._engine.watch(accepted.fileno(), inbound.on_ready)
            self._wake_at(self._half_open.next_s())
            inbound.on_ready()  # who waited in the backlog has greeted already

    def _make_room(self) -> bool:
        while self._half_open.full:
            evictable = self._half_open.evictable(self._engine.clock())
            if evictable is None:
                return False
            self._evict(evictable, "too many connections have not proved themselves")
        return True

    def _pause(self) -> None:
        """Leave further connections in the backlog, until there is room or the next look."""
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
            self._evict(inbound, "it did not prove itself in time")
        self._resume()
        self._wake_at(self._half_open.next_s())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            for sock in self._listening:
                self._watch(sock)

    def _evict(self, inbound: _Inbound, why: str) -> None:
        """Make somebody go, unless what is wanted of him lies in the socket: then it was us who were slow."""
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
        """Answer a complete greeting, and wait for the proof that it is not a recorded one; return who it says it is.

        One for somebody else is passed on, if it is known where that one is. One of us who may not speak is told why.
        There is nobody to return then.

        Raises:
            AuthenticationError, VersionMismatch: it is none of us, or cannot be spoken to.
            OSError: it left.
        """
        key = ephemeral_key(hello)
        if key in self._greetings:  # before any cryptography, which is what a flood of recordings would cost
            inbound.reset()
            raise AuthenticationError(inbound.address, "its greeting has been used before")
        accepting = Accepting(self._identity, self._key, inbound.address)
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
        """Give somebody who greeted with the key his time once more."""
        self._half_open.remove(inbound)
        inbound.at_s = self._engine.clock()
        self._half_open.add(inbound)

    def _forward(self, inbound: _Inbound, hello: bytes, addresses: Sequence[str]) -> None:
        """Join a greeting's sender to the one that it looks for. It counts as half open until that one answers."""

        def over(why: str) -> None:
            self._open_forwards.discard(forward)
            if inbound in self._half_open:
                self.refuse(inbound, f"cannot pass it on: {why}")

        self._renew(inbound)
        self._engine.unwatch(inbound.sock.fileno())
        opened = functools.partial(self._remove, inbound)
        forward = Forward(self._engine, self._cut_detector, inbound.sock, hello, addresses, opened, over)
        inbound.forward = forward
        self._open_forwards.add(forward)

    def admit(self, inbound: _Inbound, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        """Hand on a connection that proved itself, unless somebody came meanwhile because of whom it may not speak.

        Raises:
            OSError: it left.
        """
        objection = self._fence.objection(peer)
        if objection:
            inbound.sock.send(_farewell(ciphers[0], objection))
            self.refuse(inbound, f"{peer}: {objection}")
            return
        self._remove(inbound)
        self._on_accepted(inbound.sock, peer, ciphers)

    def refuse(self, inbound: _Inbound, why: str) -> None:
        """Close a connection and count it."""
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
    """A connection that has not proved itself."""

    __slots__ = ("_acceptor", "_claim", "_got", "_name", "at_s", "forward", "sock")  # strangers get little memory

    def __init__(self, acceptor: Acceptor, sock: socket.socket, name: tuple[str, int], at_s: float) -> None:
        self.sock = sock
        self.at_s = at_s
        self.forward: Forward | None = None  # who takes its socket over, if it looks for somebody else
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
        """Where it came from."""
        return render_address(self._name)

    @property
    def greeted(self) -> bool:
        """Whether its greeting was made with the key."""
        return self._claim is not None or self.forward is not None

    def reset(self) -> None:
        """Let `close` be a reset, which tells an honest peer that it was not judged and may greet anew."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def close(self, why: str) -> None:
        """Close the connection, and what it is joined to."""
        if self.forward is not None:
            self.forward.close(why)
        self.sock.close()

    def on_ready(self, _mask: int = 0) -> None:
        """Take what it sent."""
        if self.forward is not None:
            return
        try:
            data = self.sock.recv((HELLO_BYTES if self._claim is None else PROOF_BYTES) - len(self._got))
            if not data:
                raise AuthenticationError(self.address, "it left before it had proved itself")
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
    """The one record of a channel that is refused: its end, and why."""
    return RecordWriter(seal).seal(pack_frame(Frame(Kind.BYE, body=reason.encode())))
