"""Streams through the standard input and output of one process, for sites that block login from compute nodes.

A relay has two ends, joined by a pair of pipes (the stdin and stdout of an `srun` step). The near end opens streams to
TCP addresses; the far end, on a host of the allocation, dials them. The near end hands out sockets, so that everything
above a socket stays the same: the handshake and the sealed records of `tcp` run through the relay, which has no key and
cannot read what it carries.

A far end that can connect to the near one lets it change to that connection, see `attach.dial_back`. The format is in
`relay_records`.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from monarch_hpc.core.errors import FrameError, PeerLost
from monarch_hpc.transport.address import begin_connect
from monarch_hpc.transport.connect.relay_records import END_OF_PIPE, HEAD, WINDOW_BYTES, RelayStream, What
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["CLOSED_THERE", "GREETING", "KEEP_S", "SILENCE_S", "WINDOW_BYTES", "Relay"]

GREETING = b"monarch-hpc relay 1\n"
"""The first bytes of the far end: anything before them, such as output of a module system, is skipped."""


CLOSED_THERE = "the other side closed"
"""Reason of a stream that had reached its address; its meaning is up to the protocol on the stream."""

KEEP_S = 2.0
"""Period of the near end's keepalives. If both processes of an srun are killed, slurmstepd keeps the step's input open,
so that the far end would otherwise wait for ever."""

SILENCE_S = 10.0
"""Silence after which the far end ends: several lost KEEPs, and shorter than the detection of a dead host."""

_MAX_NOISE_BYTES = 2**16
_MAX_WAITING = 16
"""Records queued for the pipe before reading from streams pauses; otherwise each would keep a window in memory."""
_MAX_REASON_BYTES = 400
_READ_BYTES = 2**16


class Relay:
    """One end of a relay. All methods are for the driver of the engine.

    Args:
        read_fd: pipe from the other end.
        write_fd: pipe to the other end.
        far: whether this end dials.
        over: called once, with the reason, when the pipes can no longer be used.
        last_words: returns the last lines that the relay process wrote to stderr.
        reach: at the far end, takes the bytes of `ask_back`.
    """

    def __init__(
        self,
        engine: Engine,
        read_fd: int,
        write_fd: int,
        *,
        far: bool,
        over: Callable[[str], None],
        last_words: Callable[[], str] = str,
        reach: Callable[[bytes], None] = lambda _how: None,
    ) -> None:
        self._engine = engine
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._far = far
        self._last_words = last_words
        self._reach = reach
        self._connection: socket.socket | None = None  # that the pipes are changed for
        self._changed = False
        self._pipes: list[int] = []
        self._over: Callable[[str], None] | None = over
        self._streams: dict[int, RelayStream] = {}
        self._next = 1
        self._in = bytearray()
        self._greeted = far
        self._out: deque[memoryview] = deque()
        self._reads_paused = False  # some streams are not read, because too much is queued for the pipe
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        self._received_s = engine.clock()
        engine.watch(read_fd, self._on_readable)
        if far:
            self._write(GREETING)
        self._timer = engine.call_later(KEEP_S, self._keep)

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        """Return a socket that is joined to *address* on the far side, at once.

        Args:
            address: ``tcp://address:port``, as seen from the far end.
            failed: called with the reason when the far end ends the stream; the socket then ends too.
        """
        ours, theirs = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        stream = RelayStream(self._next, ours, failed)
        self._next += 1
        self._streams[stream.number] = stream
        self._send(What.OPEN, stream.number, address.encode())
        self._watch(stream)
        return theirs

    def ask_back(self, how: bytes) -> None:
        """Let the far end connect to this one; it goes on over its pipes if it cannot."""
        self._send(What.REACH, 0, how)

    def offer(self, connection: socket.socket) -> None:
        """Let the far end change to *connection*, which it has made to the near end."""
        if self._over is None:
            connection.close()
        else:
            self._connection = connection

    def change_to(self, connection: socket.socket) -> None:
        """Go on over *connection*, which the near end has been offered, in place of the pipes; for the far end."""
        self.offer(connection)
        self._leave_pipe()

    def close(self, reason: str) -> None:
        """End all streams and close the pipes."""
        over, self._over = self._over, None
        if over is None:
            return
        self._timer.cancel()
        self._engine.unwatch(self._read_fd)
        self._engine.unwatch(self._write_fd)
        for fd in self._pipes:
            self._engine.unwatch(fd)
        for fd in {self._read_fd, self._write_fd, *self._pipes}:
            os.close(fd)
        if self._connection is not None:
            self._connection.close()
        for stream in list(self._streams.values()):
            self._drop(stream, reason)
        over(reason)

    def _keep(self) -> None:
        if self._far and self._engine.clock() - self._received_s > SILENCE_S:
            self.close(f"silence from the near end for {SILENCE_S:.0f} s")
            return
        if not self._far:
            self._send(What.KEEP, 0)
        self._timer = self._engine.call_later(KEEP_S, self._keep)

    # ---- the pipes ----

    def _send(self, what: What, number: int, payload: bytes | memoryview = b"") -> None:
        self._write(HEAD.pack(what, number, len(payload)) + payload)

    def _write(self, data: bytes) -> None:
        if self._over is None:
            return
        self._queue(memoryview(data))

    def _queue(self, data: memoryview) -> None:
        self._out.append(data)
        if len(self._out) == 1:
            self._on_writable()

    def _leave_pipe(self) -> None:
        """Send the last record on the pipe, and whatever comes after it over the connection."""
        self._send(What.CHANGE, 0)
        if self._over is not None:
            self._queue(END_OF_PIPE)

    def _replace(self, fd: int) -> int:
        """Return a descriptor of the connection in place of *fd*, which stays open: its end is that of the step."""
        assert self._connection is not None
        self._engine.unwatch(fd)
        self._pipes.append(fd)
        return os.dup(self._connection.fileno())

    def _on_pipe(self, fd: int) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(f"the relay process ended: {self._last_words() or 'it wrote nothing'}")

    def _on_writable(self, _mask: int = 0) -> None:
        try:
            while self._out:
                if self._out[0] is END_OF_PIPE:
                    self._out.popleft()
                    self._write_fd = self._replace(self._write_fd)
                    continue
                sent = os.write(self._write_fd, self._out[0])
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except BlockingIOError:
            self._engine.watch(self._write_fd, self._on_writable, read=False, write=True)
            return
        except OSError as error:
            reason = f"the pipe to the other end broke: {error.strerror}"
            self._engine.call_soon(lambda: self.close(reason))
            return
        self._engine.unwatch(self._write_fd)
        if self._reads_paused:
            self._reads_paused = False
            for stream in list(self._streams.values()):
                self._watch(stream)

    def _on_readable(self, _mask: int) -> None:
        try:
            data = os.read(self._read_fd, 16 * _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if not data:
            self.close(f"the relay process ended: {self._last_words() or 'it wrote nothing'}")
            return
        self._received_s = self._engine.clock()
        self._in += data
        try:
            self._take_records()
        except FrameError as error:
            self.close(str(error))

    def _take_records(self) -> None:
        if not self._greeted:
            at = self._in.find(GREETING)
            if at < 0:
                if len(self._in) > _MAX_NOISE_BYTES:
                    raise FrameError(f"{len(self._in)} bytes came through the relay, but no greeting")
                return
            del self._in[: at + len(GREETING)]
            self._greeted = True
        at = 0
        while len(self._in) - at >= HEAD.size:
            what, number, size = HEAD.unpack_from(self._in, at)
            if size > WINDOW_BYTES:
                raise FrameError(f"a relay record of {size} bytes")
            begin = at + HEAD.size
            if len(self._in) - begin < size:
                break
            at = begin + size
            self._take(what, number, bytes(self._in[begin:at]))
            if self._over is None:
                return
        del self._in[:at]

    def _take(self, what: int, number: int, payload: bytes) -> None:
        if what == What.OPEN and self._far:
            if number in self._streams:
                raise FrameError(f"stream {number} is opened twice")
            self._dial(number, payload.decode(errors="replace"))
            return
        if what == What.REACH and self._far:
            self._reach(payload)
            return
        if what == What.CHANGE:
            self._change()
            return
        stream = self._streams.get(number)
        if stream is None:
            return  # it ended here while the record was in flight
        if what == What.DATA:
            if len(stream.unsent) + len(payload) > WINDOW_BYTES:
                raise FrameError(f"stream {number} exceeds its window")
            stream.unsent += payload
            self._flush(stream)
        elif what == What.TAKEN and len(payload) == 4:
            stream.credit += int.from_bytes(payload, "little")
            self._watch(stream)
        elif what == What.END:
            stream.ended = True
            if stream.failed is not None:
                stream.failed(payload[:_MAX_REASON_BYTES].decode(errors="replace"))
            self._flush(stream)
        else:
            raise FrameError(f"a relay record of kind {what}")

    def _change(self) -> None:
        """The other end writes to the connection from here on."""
        if self._connection is None or self._changed:
            raise FrameError("the other end changes to a connection that there is none")
        self._changed = True
        if not self._far:
            self._leave_pipe()
        pipe = self._read_fd
        self._read_fd = self._replace(pipe)
        self._engine.watch(pipe, lambda _mask: self._on_pipe(pipe))
        self._engine.watch(self._read_fd, self._on_readable)

    # ---- the local sockets ----

    def _dial(self, number: int, address: str) -> None:
        try:
            sock = begin_connect(address)
        except (OSError, PeerLost) as error:
            why = str(error) if isinstance(error, PeerLost) else error.strerror or str(error)
            self._send(What.END, number, why.encode())
            return
        stream = self._streams[number] = RelayStream(number, sock, None)
        stream.opened = False
        self._watch(stream)

    def _watch(self, stream: RelayStream) -> None:
        """Watch a stream's socket for the events that can be handled now."""
        read = stream.opened and stream.credit > 0
        if read and len(self._out) >= _MAX_WAITING:
            read = False
            self._reads_paused = True
        write = not stream.opened or bool(stream.unsent)
        if (read, write) == stream.watched:
            return
        stream.watched = (read, write)
        if read or write:
            self._engine.watch(stream.sock.fileno(), lambda _mask: self._on_socket(stream), read=read, write=write)
        else:
            self._engine.unwatch(stream.sock.fileno())

    def _on_socket(self, stream: RelayStream) -> None:
        if not stream.opened:
            status = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if status:
                self._end(stream, os.strerror(status))
                return
            stream.opened = True
        if stream.unsent:
            self._flush(stream)
        if stream.number in self._streams and stream.credit > 0:
            try:
                data = stream.sock.recv(min(_READ_BYTES, stream.credit))
            except BlockingIOError:
                pass
            except OSError as error:
                self._end(stream, error.strerror or str(error))
                return
            else:
                if not data:
                    self._end(stream, CLOSED_THERE)
                    return
                stream.credit -= len(data)
                self._send(What.DATA, stream.number, data)
        if stream.number in self._streams:
            self._watch(stream)

    def _flush(self, stream: RelayStream) -> None:
        """Write received data to the local socket, and acknowledge what it took."""
        taken = 0
        try:
            while stream.unsent and stream.opened:
                sent = stream.sock.send(stream.unsent)
                del stream.unsent[:sent]
                taken += sent
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(stream, error.strerror or str(error))
            return
        if taken and not stream.ended:
            self._send(What.TAKEN, stream.number, taken.to_bytes(4, "little"))
        if stream.ended and not stream.unsent:
            self._drop(stream, "")
        else:
            self._watch(stream)

    def _end(self, stream: RelayStream, why: str) -> None:
        """Close a stream whose local socket has ended, and notify the other end."""
        if not stream.ended:
            self._send(What.END, stream.number, why.encode())
        self._drop(stream, "")

    def _drop(self, stream: RelayStream, why: str) -> None:
        if self._streams.pop(stream.number, None) is None:
            return
        if why and stream.failed is not None:
            stream.failed(why)
        self._engine.unwatch(stream.sock.fileno())
        stream.sock.close()
