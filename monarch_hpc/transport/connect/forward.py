"""Joins two processes that cannot reach each other, on behalf of a process that reaches both.

A hello names the incarnation that it is for. A process that receives a hello for another process, made with our key,
and knows that process's addresses, forwards the hello and from then on all bytes, both ways. The two ends authenticate
and encrypt as on any connection: the forwarder can read nothing, and change nothing unnoticed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import begin_connect
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.tcp.keepalive import CutDetector

__all__ = ["BUFFER_BYTES", "Forward"]

BUFFER_BYTES = 256 * 1024
"""Bytes buffered in each direction, beyond the kernel's own buffers; while they are full, reading stops."""

_CHUNKS_PER_EVENT = 16  # then other callbacks run


class Forward:
    """A pair of joined sockets. For the driver of the engine.

    All addresses are dialled at once, since some may be dead or wrong; the first to send anything is used.

    Args:
        near: the socket that the dialling process opened; owned by this object from here on.
        hello: the bytes already read from *near*, forwarded first.
        addresses: the addresses of the wanted process.
        opened: called when the wanted process sends its first bytes.
        over: called once, with the reason, when both sockets are closed.
    """

    def __init__(
        self,
        engine: Engine,
        cut_detector: CutDetector,
        near: socket.socket,
        hello: bytes,
        addresses: Sequence[str],
        opened: Callable[[], None],
        over: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._cut_detector = cut_detector
        self._near = near
        self._hello = hello
        self._opened = opened
        self._over: Callable[[str], None] | None = over
        self._dialled: list[socket.socket] = []
        self._flows: list[_Direction] = []
        self._why = "it has no address"
        for address in addresses:
            self._dial(address)
        if not self._dialled:
            engine.call_soon(lambda: self.close(self._why))

    def close(self, why: str) -> None:
        """Close both sockets; data that was not forwarded yet is lost."""
        over, self._over = self._over, None
        if over is None:
            return
        for sock in (self._near, *self._dialled):
            self._cut_detector.forget(sock)
            self._engine.unwatch(sock.fileno())
            sock.close()
        over(why)

    # ---- until the first answer ----

    def _dial(self, address: str) -> None:
        try:
            sock = begin_connect(address)
        except (OSError, PeerLost) as error:
            self._why = str(error)
            return
        self._dialled.append(sock)
        self._engine.watch(sock.fileno(), lambda _mask: self._greet(sock), read=False, write=True)

    def _greet(self, sock: socket.socket) -> None:
        try:
            status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if status:
                raise OSError(status, os.strerror(status))
            sock.send(self._hello)  # 192 bytes always fit an empty socket buffer
        except OSError as error:
            self._failed(sock, error.strerror or str(error))
            return
        self._engine.watch(sock.fileno(), lambda _mask: self._answered(sock))

    def _failed(self, sock: socket.socket, why: str) -> None:
        self._why = why
        self._dialled.remove(sock)
        self._engine.unwatch(sock.fileno())
        sock.close()
        if not self._dialled:
            self.close(why)

    def _answered(self, sock: socket.socket) -> None:
        try:
            answer = sock.recv(BUFFER_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(sock, error.strerror or str(error))
            return
        if not answer:
            self._failed(sock, "it closed the connection after the hello")
            return
        for other in self._dialled:
            if other is not sock:
                self._engine.unwatch(other.fileno())
                other.close()
        self._dialled = [sock]
        for end in (self._near, sock):
            self._cut_detector.watch(end, end, self.close)
        self._flows = [_Direction(self._near, sock), _Direction(sock, self._near)]
        self._opened()
        self._flows[1].waiting = memoryview(answer)
        self._pump()

    # ---- joined ----

    def _pump(self, _mask: int = 0) -> None:
        try:
            ended = [flow.pump() for flow in self._flows]
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if any(ended):
            self.close("one side closed")
            return
        for flow, back in zip(self._flows, reversed(self._flows), strict=True):
            fd, read, write = flow.source.fileno(), not flow.waiting, bool(back.waiting)
            if read or write:
                self._engine.watch(fd, self._pump, read=read, write=write)
            else:
                self._engine.unwatch(fd)  # epoll always reports a hang-up, and would do so in a loop


class _Direction:
    """One direction of a forward."""

    __slots__ = ("_ended", "sink", "source", "waiting")

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.waiting = memoryview(b"")
        self._ended = False

    def pump(self) -> bool:
        """Move what can be moved; return whether the source has ended and all its data has been sent.

        Raises:
            OSError: one of the two ends is gone.
        """
        try:
            for _ in range(_CHUNKS_PER_EVENT):
                if self.waiting:
                    self.waiting = self.waiting[self.sink.send(self.waiting) :]
                    continue
                if self._ended:
                    return True
                data = self.source.recv(BUFFER_BYTES)
                self._ended = not data
                self.waiting = memoryview(data)
        except BlockingIOError:
            pass
        return False
