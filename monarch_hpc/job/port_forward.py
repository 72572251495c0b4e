"""Forwards TCP connections through actors, to services on hosts that cannot be reached directly."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.ports.port import Channel, Port, PortReceiver
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.core.shape import Point
from monarch_hpc.job.peer import Owners, OwnerTables, peers_owner
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh

__all__ = ["PortForwarder"]

_HOST = "127.0.0.1"
_READ_BYTES = 64 << 10
_CAPACITY = 64
"""Chunks in flight in each direction, 4 MiB: more than the bandwidth-delay product of any network that we know."""
_BACKLOG = 128
_MAX_CONNECTIONS = 64
"""Limit of open connections on each listening proc; further ones wait. A browser opens six to a service, a pool of
clients some dozen, and each takes two threads at each end."""

_PAUSE_S = 0.1
"""Pause before the next accept when the process or the machine has no descriptor or memory left."""

_STOP_S = 5.0
"""Time limit for the forwarding actors to stop: a proc that hangs must not delay the end of the program."""

_UNIX = "unix:"
_MAX_PATH_BYTES = 107
"""Length limit of a Unix socket's path."""

_WhichPort = int | Callable[[Point], int]
_WhichAddress = str | Callable[[Point], str]


class PortForwarder(Actor):
    """Forwards TCP ports between meshes of procs until the actor is stopped; spawn it on `this_proc()`."""

    @endpoint
    def forward(
        self, dst_proc_mesh: ProcMesh, dst_port: _WhichPort, src_proc_mesh: ProcMesh, src_address: _WhichAddress
    ) -> None:
        """Listen in each proc of one mesh, and forward connections through the proc of another mesh at the same point.

        Args:
            dst_proc_mesh: procs on the hosts of the service.
            dst_port: port of the service on 127.0.0.1 of these hosts; or a function of the proc's coordinates.
            src_proc_mesh: procs that listen, e.g. `this_proc()`; a mesh with the same dimensions.
            src_address: address to listen at, ``127.0.0.1:8080`` or ``unix:/path/of/a/socket``; or a function of the
                proc's coordinates. Connections from the listening machine are accepted only from processes of this
                user, as reported by the kernel. Any process on another machine that can reach the address can connect.

        Raises:
            ValueError: the meshes differ in shape, or an address or port is invalid.
            OSError: an address is in use; then none of the procs listens.
        """
        if dst_proc_mesh.extent != src_proc_mesh.extent:
            shapes = f"{src_proc_mesh.extent} and {dst_proc_mesh.extent}"
            raise ValueError(f"each listening proc needs a proc to forward to: the meshes are {shapes}")
        if not callable(dst_port):
            _check_port(dst_port)
        if not callable(src_address):
            _parse_address(src_address)
        far = dst_proc_mesh.spawn("forward-to", _Far)
        context().own(partial(_stop, far))
        far.configure.call(dst_port).get()
        near = src_proc_mesh.spawn("forward-from", _Near, far)
        context().own(partial(_stop, near))
        try:
            near.listen.call(src_address, shared=len(src_proc_mesh) > 1).get()
        except BaseException:
            _stop(near)
            _stop(far)
            raise


def _stop(mesh: ActorMesh[Any]) -> None:
    # The caller of stop() may reuse the address at once. Owned actors would end anyway, but only later.
    with contextlib.suppress(Exception):  # a host that died no longer listens
        mesh.stop().get(_STOP_S)


class _Relays:
    """Forwarded connections, each with one thread for each direction."""

    def __init__(self) -> None:
        self._sockets: set[socket.socket] = set()
        self._ending = threading.Lock()
        self.slots = threading.Semaphore(_MAX_CONNECTIONS)
        """Free connections: acquired after each accept, and released when the connection ends."""

    def carry(self, sock: socket.socket, out: Port[bytes], back: PortReceiver[bytes]) -> None:
        """Copy from *sock* to *out* and from *back* to *sock*, until both directions have ended."""
        self._sockets.add(sock)
        halves = [threading.Event(), threading.Event()]

        def send() -> None:
            try:
                while data := sock.recv(_READ_BYTES):
                    out.send(data)
                out.send(b"")  # end of this direction; the other may continue
            except (OSError, PortClosed):
                self._abort(sock, out)
            finally:
                self._half(sock, halves, 0, back)

        def receive() -> None:
            try:
                for data in back:
                    if not data:
                        sock.shutdown(socket.SHUT_WR)
                        return
                    sock.sendall(data)
            except Exception:  # noqa: BLE001 the other end aborted: it sends the exception of its choice
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            finally:
                self._half(sock, halves, 1, back)

        for half in (send, receive):
            threading.Thread(target=half, name="monarch-forward", daemon=True).start()

    def _abort(self, sock: socket.socket, out: Port[bytes]) -> None:
        with contextlib.suppress(PortClosed):
            out.exception(ConnectionAbortedError("the connection was broken off at the other end"))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def _half(self, sock: socket.socket, halves: list[threading.Event], which: int, back: PortReceiver[bytes]) -> None:
        with self._ending:
            halves[which].set()
            ended = all(half.is_set() for half in halves)
        if ended:  # true for exactly one of the two threads
            self._sockets.discard(sock)
            sock.close()
            back.close()
            self.slots.release()

    def close(self) -> None:
        """Abort all connections."""
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Far(Actor):
    """Connects to the service."""

    def __init__(self) -> None:
        self._port = 0
        self._relays = _Relays()
        context().own(self._relays.close)

    @endpoint
    def configure(self, port: _WhichPort) -> None:
        """Set the service's port."""
        self._port = _check_port(port(context().spawn_rank) if callable(port) else port)

    @endpoint
    def open(self, back: Port[bytes]) -> Port[bytes]:
        """Connect to the service, whose data goes to *back*; return the port for the data sent to the service."""
        sock = socket.create_connection((_HOST, self._port))
        out, receiver = Channel.open(capacity=_CAPACITY)
        self._relays.carry(sock, back, receiver)
        return out


class _Near(Actor):
    """Listens for connections to the service."""

    def __init__(self, far: ActorMesh[_Far]) -> None:
        self._far = far.slice(**dict(context().spawn_rank))
        self._relays = _Relays()
        self._listening: socket.socket | None = None
        self._path = ""
        self._over = threading.Event()
        context().own(self._close)

    @endpoint
    def listen(self, address: _WhichAddress, *, shared: bool) -> None:
        """Start to listen at *address*.

        Args:
            shared: whether other procs on this host may listen at the address, too: the kernel deals out connections.
        """
        place = _parse_address(address(context().spawn_rank) if callable(address) else address)
        if isinstance(place, str):
            self._listening = _listen_at(place)
            self._path = place
        else:
            family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
            self._listening = socket.create_server(place, family=family, backlog=_BACKLOG, reuse_port=shared)
        threading.Thread(target=self._accept, args=(self._listening,), name="monarch-forward", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        poll = select.poll()
        poll.register(listening, select.POLLIN)
        with OwnerTables() as tables:
            while not self._over.is_set():
                poll.poll()
                arrived, is_scarce = _accept_waiting(listening)
                owners = tables.read() if arrived else {}
                for sock in arrived:
                    if not _is_permitted(sock, owners):
                        sock.close()
                        continue
                    self._relays.slots.acquire()
                    threading.Thread(target=self._join, args=(sock,), name="monarch-forward", daemon=True).start()
                if is_scarce:
                    self._over.wait(_PAUSE_S)

    def _join(self, sock: socket.socket) -> None:
        back, receiver = Channel.open(capacity=_CAPACITY)
        try:
            out = self._far.open.call_one(back).get()
        except Exception:  # noqa: BLE001 no service or no proc there: the client sees a closed connection
            sock.close()
            receiver.close()
            self._relays.slots.release()
            return
        self._relays.carry(sock, out, receiver)

    def _close(self) -> None:
        self._over.set()
        self._relays.slots.release()  # wakes the accepting thread if it waits for a slot
        if self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread if it polls
            self._listening.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._relays.close()


_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def _accept_waiting(listening: socket.socket) -> tuple[list[socket.socket], bool]:
    """Accept all waiting connections; also return whether descriptors or memory have run out."""
    arrived: list[socket.socket] = []
    while len(arrived) < _BACKLOG:
        try:
            arrived.append(listening.accept()[0])
        except OSError as error:  # none is left, a client has gone again, or the socket was closed
            return arrived, error.errno in _SCARCE
    return arrived, False


def _is_permitted(sock: socket.socket, owners: Owners) -> bool:
    try:
        return peers_owner(sock, owners) in (None, os.geteuid())
    except OSError:  # the client has gone
        return False


def _listen_at(path: str) -> socket.socket:
    """Listen on a Unix socket; a stale one, left by a killed process, is removed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listening.fileno(), 0o600)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
            raise OSError(errno.EADDRINUSE, "a process listens there", path)
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                os.unlink(path)
        listening.bind(path)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _check_port(port: object) -> int:
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        raise ValueError(f"port {port!r} is out of range: a number from 1 to 65535")
    return port


def _parse_address(address: object) -> tuple[str, int] | str:
    """Return host and port, or the path of a Unix socket."""
    if isinstance(address, str) and address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not path.startswith("/") or len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise ValueError(f"address {address!r} needs an absolute path of at most {_MAX_PATH_BYTES} bytes")
        return path
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not colon or not host or not port.isdecimal():
        raise ValueError(f"address {address!r} is invalid: write address:port, such as 127.0.0.1:8080, or unix:/path")
    return host.strip("[]"), _check_port(int(port))
