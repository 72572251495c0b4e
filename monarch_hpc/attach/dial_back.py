"""A connection from a host to a login node, over which a relay goes on in place of its step's pipes.

At some sites hosts can connect to login nodes, but not the other way around. The near end of a relay listens, and tells
the far end its addresses and a token through the pipes, which only the user can read. Whoever connects must send the
token first. The connection carries what the pipes did: streams that are sealed at their ends.
"""

from __future__ import annotations

import functools
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Sequence

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import begin_connect, bind_to, bind_within, render_address, tune
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["BackDialer", "BackListener"]

_TOKEN_BYTES = 32
_WELCOME = b"+"
_MAX_WAITING = 16
"""Connections that have not sent the token; further ones are closed."""

_MAX_ADDRESSES = 16
_LIMIT_S = 5.0
"""Time for a connection, and for the token on it."""


class BackListener:
    """Listens on a login node, for one connection. All methods are for the driver of the engine.

    Args:
        hosts: IP addresses to listen on.
        port_range: config key `fabric.port_range`.
        accepted: called with the connection that has sent the token; nothing listens then any more.
    """

    def __init__(
        self, engine: Engine, hosts: Sequence[str], port_range: str, accepted: Callable[[socket.socket], None]
    ) -> None:
        self._engine = engine
        self._accepted = accepted
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._listening: list[socket.socket] = []
        self._waiting: dict[socket.socket, bytes] = {}
        for host in hosts[:_MAX_ADDRESSES]:
            try:
                sock = bind_within(host, port_range) if port_range else bind_to(host, 0)
            except PeerLost:
                continue  # the others do, or the pipes
            sock.listen(_MAX_WAITING)
            self._listening.append(sock)
            engine.watch(sock.fileno(), functools.partial(self._on_connection, sock))

    @property
    def how(self) -> bytes:
        """What the far end must know; empty if nothing listens."""
        addresses = ",".join(render_address(sock.getsockname()) for sock in self._listening)
        return self._token + addresses.encode() if addresses else b""

    def close(self) -> None:
        """Listen no more, and close the connections that have not sent the token."""
        for sock in (*self._listening, *self._waiting):
            self._engine.unwatch(sock.fileno())
            sock.close()
        self._listening, self._waiting = [], {}

    def _on_connection(self, listening: socket.socket, _mask: int) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        if len(self._waiting) >= _MAX_WAITING:
            sock.close()
            return
        sock.setblocking(False)
        self._waiting[sock] = b""
        self._engine.watch(sock.fileno(), functools.partial(self._on_data, sock))
        self._engine.call_later(_LIMIT_S, functools.partial(self._drop, sock))

    def _on_data(self, sock: socket.socket, _mask: int) -> None:
        try:
            data = sock.recv(_TOKEN_BYTES - len(self._waiting[sock]))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._waiting[sock] += data
        if data and len(self._waiting[sock]) < _TOKEN_BYTES:
            return
        if not data or not hmac.compare_digest(self._waiting[sock], self._token):
            self._drop(sock)
            return
        del self._waiting[sock]
        self._engine.unwatch(sock.fileno())
        tune(sock)
        self.close()
        try:
            sock.send(_WELCOME)
        except OSError:
            sock.close()
            return
        self._accepted(sock)

    def _drop(self, sock: socket.socket) -> None:
        if self._waiting.pop(sock, None) is not None:
            self._engine.unwatch(sock.fileno())
            sock.close()


class BackDialer:
    """Connects from a host to a login node: to all addresses at once, and the first one that answers is used.

    Args:
        how: of `BackListener.how`; anything else leads nowhere.
        changed: called with the connection; not called if there is none.
    """

    def __init__(self, engine: Engine, how: bytes, changed: Callable[[socket.socket], None]) -> None:
        self._engine = engine
        self._changed = changed
        self._token = how[:_TOKEN_BYTES]
        self._dialled: set[socket.socket] = set()
        for address in how[_TOKEN_BYTES:].decode(errors="replace").split(",")[:_MAX_ADDRESSES]:
            try:
                sock = begin_connect(address)
            except (OSError, PeerLost):
                continue
            self._dialled.add(sock)
            engine.watch(sock.fileno(), functools.partial(self._on_connected, sock), read=False, write=True)
        engine.call_later(_LIMIT_S, self.close)

    def close(self) -> None:
        """Close the connections that nobody has answered."""
        for sock in list(self._dialled):
            self._drop(sock)

    def _on_connected(self, sock: socket.socket, _mask: int) -> None:
        try:
            if status := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(status, os.strerror(status))
            sock.send(self._token)  # so few bytes always fit an empty buffer
        except OSError:
            self._drop(sock)
            return
        self._engine.watch(sock.fileno(), functools.partial(self._on_answer, sock))

    def _on_answer(self, sock: socket.socket, _mask: int) -> None:
        try:
            welcome = sock.recv(1) == _WELCOME
        except BlockingIOError:
            return
        except OSError:
            welcome = False
        if not welcome:
            self._drop(sock)
            return
        self._dialled.discard(sock)
        self._engine.unwatch(sock.fileno())
        self.close()
        tune(sock)
        self._changed(sock)

    def _drop(self, sock: socket.socket) -> None:
        if sock in self._dialled:
            self._dialled.discard(sock)
            self._engine.unwatch(sock.fileno())
            sock.close()
