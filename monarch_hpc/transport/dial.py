"""Dialling: several addresses at once, each with its handshake."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from monarch_hpc.core.errors import AuthenticationError, PeerLost, TransportError
from monarch_hpc.transport.api import Channel, Peer, TransportLimits
from monarch_hpc.transport.engine import Engine
from monarch_hpc.transport.handshake import ANSWER_BYTES, Dialing
from monarch_hpc.transport.noise import Cipher

__all__ = ["Dialer", "Done", "Race", "render_address", "tune"]

Done = Callable[[Channel | TransportError], None]
"""Called on the driver with the channel, or with why there is none."""


class Dialer(Protocol):
    """For whom is dialled."""

    @property
    def engine(self) -> Engine:
        """Drives the sockets."""
        ...

    @property
    def limits(self) -> TransportLimits:
        """Among them the deadline."""
        ...

    def dialing(self, incarnation: int, address: str) -> Dialing:
        """Begin a handshake."""
        ...

    def adopt(self, sock: socket.socket, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> Channel:
        """Make a channel of the socket that won."""
        ...


class Race:
    """Dials several addresses at once; the first one that proves itself wins."""

    def __init__(self, node: Dialer, addresses: list[str], incarnation: int, done: Done) -> None:
        self._node = node
        self._done: Done | None = done
        self._errors: list[TransportError] = []
        self._outbound: list[_Outbound] = []
        self._timer = node.engine.call_later(node.limits.connect_s, self._late)
        self._addresses = addresses
        if not addresses:
            self._end(PeerLost("a peer", "it has no address"))
        for address in addresses:
            if self._done is not None:
                self._outbound.append(_Outbound(node, self, incarnation, address))

    def won(self, outbound: _Outbound, peer: Peer, ciphers: tuple[Cipher, Cipher]) -> None:
        if self._done is None:
            outbound.sock.close()
            return
        channel = self._node.adopt(outbound.sock, peer, ciphers)
        self._end(channel)

    def lost(self, error: TransportError) -> None:
        self._errors.append(error)
        if len(self._errors) == len(self._addresses):
            # What somebody with our key said is worth more than silence from the other addresses.
            said = [e for e in self._errors if not isinstance(e, PeerLost)]
            self._end((said or self._errors)[0])

    def _late(self) -> None:
        self._end(PeerLost(", ".join(self._addresses), f"no answer in {self._node.limits.connect_s:.1f} s"))

    def _end(self, result: Channel | TransportError) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._timer.cancel()
            for outbound in self._outbound:
                outbound.drop()
            done(result)


class _Outbound:
    """One address of a race."""

    def __init__(self, node: Dialer, race: Race, incarnation: int, address: str) -> None:
        self._node = node
        self._race = race
        self._address = address
        self._answer = b""
        self._sent = False
        self._over = False
        host, port = _parse(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        tune(self.sock)
        self._dialing = node.dialing(incarnation, address)
        status = self.sock.connect_ex((host, port))
        if status not in (0, errno.EINPROGRESS):
            self._fail(OSError(status, os.strerror(status)))
            return
        node.engine.watch(self.sock.fileno(), self._on_ready, read=False, write=True)

    def _on_ready(self, _mask: int) -> None:
        try:
            if not self._sent:
                status = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if status:
                    raise OSError(status, os.strerror(status))
                self.sock.send(self._dialing.hello)  # 192 bytes always fit an empty socket buffer
                self._sent = True
                self._node.engine.watch(self.sock.fileno(), self._on_ready)
                return
            data = self.sock.recv(ANSWER_BYTES - len(self._answer))
            if not data:
                raise AuthenticationError(
                    self._address, "it closed at our greeting, as an agent does that holds another key"
                )
            self._answer += data
            if len(self._answer) < ANSWER_BYTES:
                return
            peer, ciphers = self._dialing.finish(self._answer)
        except BlockingIOError:
            return
        except (OSError, TransportError) as error:
            self._fail(error)
            return
        self._over = True
        self._node.engine.unwatch(self.sock.fileno())
        self._race.won(self, peer, ciphers)

    def _fail(self, error: OSError | TransportError) -> None:
        self.drop()
        if isinstance(error, OSError):
            lost = PeerLost(self._address, error.strerror or str(error))
            lost.__cause__ = error
            error = lost
        self._race.lost(error)

    def drop(self) -> None:
        """Give up this address, unless it won."""
        if not self._over:
            self._over = True
            self._node.engine.unwatch(self.sock.fileno())
            self.sock.close()


def tune(sock: socket.socket) -> None:
    """Send small records at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def render_address(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """A socket's name as ``tcp://address:port``."""
    host, port = address[0], address[1]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _parse(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        raise PeerLost(address, "not an address of the form tcp://address:port")
    return parts.hostname, parts.port
