"""The `tcp` fabric: frames on a plain socket, each record sealed.

On the wire a record is `u32 length | sealed bytes`. A frame of at most `INLINE_BYTES` is one record.
A larger one is a record with its header, then its body and each buffer in records of `CHUNK_BYTES`
(the last one shorter), which the receiver opens straight into the memory that it hands on.
"""

from __future__ import annotations

import _thread
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import AuthenticationError, ChannelClosed, FrameError, PeerLost, TransportError
from monarch_hpc.transport.api import Listener, Peer
from monarch_hpc.transport.engine import Engine
from monarch_hpc.transport.noise import TAG_BYTES, Cipher
from monarch_hpc.wire.frames import Buffer, Frame, Head, Kind, pack_head, parse_head

__all__ = ["CHUNK_BYTES", "INLINE_BYTES", "LINGER_S", "TcpChannel"]

INLINE_BYTES = 64 * 1024
"""Up to here one copy into one record is cheaper than several records."""

CHUNK_BYTES = 2**20
"""Large enough that the cost per record vanishes, small enough that sealing one delays nobody."""

_LENGTH = struct.Struct("<I")
_READ_BYTES = 256 * 1024
_READS_PER_EVENT = 16  # then other channels get their turn
LINGER_S = 2.0
"""How long a closing channel may take to send what was accepted: a peer that does not read loses it."""


class _Outgoing:
    """One frame on its way out, as plain records that are sealed when the socket takes them."""

    __slots__ = ("records", "size")

    def __init__(self, records: Iterator[Buffer], size: int) -> None:
        self.records: Iterator[Buffer] | None = records  # None: all are with the kernel
        self.size = size


class TcpChannel:
    """An established channel over one socket; see `transport.api.Channel`.

    Args:
        ciphers: for sending and for receiving.
        proven: called when the first record opens. Only that proves the dialling side: its greeting
            may be a recorded one.
    """

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        peer: Peer,
        ciphers: tuple[Cipher, Cipher],
        listener: Listener,
        limits: TransportConfig,
        proven: Callable[[TcpChannel], None] | None = None,
    ) -> None:
        self._proven = proven
        self._engine = engine
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._seal, self._open = ciphers
        self._listener = listener
        self._limits = limits
        self._error: TransportError | None = None
        self._lost = False  # on_lost was called
        self._heard_s = engine.clock()
        # out
        self._lock = _thread.allocate_lock()
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0
        self._unsent = memoryview(b"")  # the sealed rest of a record
        self._wants_room = False  # the engine watches for room in the socket
        self._closing = False
        # in
        self._buffer = bytearray(_READ_BYTES)
        self._start = 0
        self._end = 0
        self._head: Head | None = None  # of a frame whose records are arriving
        self._parts: list[bytearray] = []
        self._part = 0
        self._filled = 0

    def start(self) -> None:
        """Begin to read; called once, on the driver."""
        self._engine.watch(self._fd, self._on_ready)

    @property
    def peer(self) -> Peer:
        """Who is at the other end."""
        return self._peer

    @property
    def error(self) -> TransportError | None:
        """Why the channel is over; None while it is open."""
        return self._error

    @property
    def heard_s(self) -> float:
        """When bytes last arrived, on the engine's clock."""
        return self._heard_s

    @property
    def queued_bytes(self) -> int:
        """Bytes accepted by `send` that are not with the kernel yet."""
        return self._queued_bytes

    # ---- sending ----

    def send(self, frame: Frame) -> None:
        """Send *frame*; see `transport.api.Channel.send`."""
        head = pack_head(frame)
        sizes = [memoryview(buffer).nbytes for buffer in frame.buffers]
        size = len(head) + len(frame.body) + sum(sizes)
        if size > self._limits.max_frame_bytes:
            raise FrameError(
                f"{size} bytes, at most {self._limits.max_frame_bytes} (config key 'transport.max_frame_bytes')"
            )
        bulk = size > INLINE_BYTES
        if bulk:
            outgoing = _Outgoing(_bulk_records(head, frame), size)
        else:
            outgoing = _Outgoing(iter((b"".join((head, frame.body, *frame.buffers)),)), size)
        with self._lock:
            if self._error is not None:
                raise self._error
            self._queue.append(outgoing)
            self._queued_bytes += size
            if len(self._queue) == 1:
                self._pump()
        if self._engine.driving:
            return
        # A bulk frame's buffers are the caller's: it gets them back when the last byte is sealed.
        if bulk and outgoing.records is not None:
            self._engine.wait(lambda: outgoing.records is None or self._error is not None, None)
        elif self._queued_bytes > self._limits.send_queue_bytes:
            limit = self._limits.send_queue_bytes
            self._engine.wait(lambda: self._queued_bytes <= limit or self._error is not None, None)
        if outgoing.records is not None and self._error is not None:
            raise self._error

    def _pump(self) -> None:
        """Send until the queue is empty or the socket full. The lock is held."""
        try:
            while True:
                if self._unsent:
                    sent = self._sock.send(self._unsent)
                    self._unsent = self._unsent[sent:]
                    continue
                if not self._queue:
                    if self._wants_room:
                        self._wants_room = False
                        self._engine.watch(self._fd, self._on_ready)
                    if self._closing:
                        self._engine.call_soon(self._finish)
                    return
                outgoing = self._queue[0]
                assert outgoing.records is not None
                plain = next(outgoing.records, None)
                if plain is None:
                    outgoing.records = None
                    self._queue.popleft()
                    self._queued_bytes -= outgoing.size
                    continue
                size = memoryview(plain).nbytes + TAG_BYTES
                record = bytearray(_LENGTH.size + size)
                _LENGTH.pack_into(record, 0, size)
                self._seal.seal_into(plain, memoryview(record)[_LENGTH.size :])
                self._unsent = memoryview(record)
        except BlockingIOError:
            if not self._wants_room:
                self._wants_room = True
                self._engine.watch(self._fd, self._on_ready, write=True)
        except OSError as error:
            self._fail_soon(PeerLost(str(self._peer), error.strerror or str(error)), error)

    def close(self, reason: str) -> None:
        """Tell the other side *reason* and end the channel."""
        with self._lock:
            if self._error is not None:
                return
            self._error = ChannelClosed(str(self._peer), reason)
            self._closing = True
            bye = b"".join((pack_head(Frame(Kind.BYE, body=reason.encode())), reason.encode()))
            self._queue.append(_Outgoing(iter((bye,)), len(bye)))
            self._queued_bytes += len(bye)
            if len(self._queue) == 1:
                self._pump()
        self._engine.call_later(LINGER_S, self._finish)

    def give_up(self, reason: str) -> None:
        """Declare the other side lost, for *reason*."""
        with self._lock:
            self._fail_soon(PeerLost(str(self._peer), reason), None)

    # ---- receiving ----

    def _on_ready(self, mask: int) -> None:
        if self._lost:
            return
        # A thread that holds the lock is pumping and will watch for room itself.
        if (self._queue or self._unsent) and self._lock.acquire(blocking=False):
            try:
                self._pump()
            finally:
                self._lock.release()
            self._engine.wake_waiters()
        try:
            for _ in range(_READS_PER_EVENT):
                if self._end == len(self._buffer):
                    self._make_room()
                room = len(self._buffer) - self._end
                count = self._sock.recv_into(memoryview(self._buffer)[self._end :])
                if not count:
                    raise PeerLost(str(self._peer), "the connection ended")
                self._end += count
                self._heard_s = self._engine.clock()
                self._take_records()
                if self._lost or count < room:  # the socket is empty
                    return
        except BlockingIOError:
            return
        except TransportError as error:
            self._fail(error, None)
        except OSError as error:
            self._fail(PeerLost(str(self._peer), error.strerror or str(error)), error)

    def _make_room(self) -> None:
        held = self._end - self._start
        need = _READ_BYTES
        if held >= _LENGTH.size:
            need = max(need, _LENGTH.size + _LENGTH.unpack_from(self._buffer, self._start)[0])
        grown = self._buffer if need <= len(self._buffer) and self._start else bytearray(max(need, len(self._buffer)))
        grown[:held] = self._buffer[self._start : self._end]
        self._buffer = grown
        self._start, self._end = 0, held

    def _take_records(self) -> None:
        view = memoryview(self._buffer)
        while self._end - self._start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(view, self._start)
            if not TAG_BYTES < size <= CHUNK_BYTES + TAG_BYTES:
                raise FrameError(f"a record of {size} bytes")
            begin = self._start + _LENGTH.size
            if self._end - begin < size:
                break
            self._start = begin + size
            self._take(view[begin : begin + size])
            if self._lost:
                return
        if self._start == self._end:
            self._start = self._end = 0

    def _take(self, sealed: memoryview) -> None:
        try:
            if self._head is not None:
                self._take_bulk(self._head, sealed)
                return
            plain = bytearray(len(sealed) - TAG_BYTES)
            self._open.open_into(sealed, memoryview(plain))
            if self._proven is not None:
                proven, self._proven = self._proven, None
                proven(self)
        except AuthenticationError as error:
            raise FrameError("a record that the other side did not seal") from error
        head = parse_head(plain, self._limits.max_frame_bytes)
        total = head.body_bytes + sum(head.buffer_bytes)
        if len(plain) == head.size and total:
            self._head = head
            self._parts = [bytearray(size) for size in (head.body_bytes, *head.buffer_bytes)]
            self._part, self._filled = -1, 0
            self._next_part()
        elif len(plain) == head.size + total:
            view = memoryview(plain)
            at = head.size
            parts = []
            for size in (head.body_bytes, *head.buffer_bytes):
                parts.append(view[at : at + size])
                at += size
            self._deliver(head, parts[0], parts[1:])
        else:
            raise FrameError(f"a record of {len(plain)} bytes for a frame of {head.size + total}")

    def _take_bulk(self, head: Head, sealed: memoryview) -> None:
        part = self._parts[self._part]
        size = min(CHUNK_BYTES, len(part) - self._filled)
        if len(sealed) - TAG_BYTES != size:
            raise FrameError(f"a record of {len(sealed) - TAG_BYTES} bytes where {size} were due")
        self._open.open_into(sealed, memoryview(part)[self._filled : self._filled + size])
        self._filled += size
        if self._filled == len(part):
            self._next_part()
            if self._part == len(self._parts):
                parts, self._parts, self._head = self._parts, [], None
                self._deliver(head, parts[0], parts[1:])

    def _next_part(self) -> None:
        """Go to the next part that is not empty, or past the last one."""
        self._filled = 0
        self._part += 1
        while self._part < len(self._parts) and not self._parts[self._part]:
            self._part += 1

    def _deliver(self, head: Head, body: Buffer, buffers: list[memoryview] | list[bytearray]) -> None:
        if head.kind is Kind.PING:
            return
        if head.kind is Kind.BYE:
            raise PeerLost(str(self._peer), f"it left: {bytes(body).decode(errors='replace')}")
        self._listener.on_frame(self, Frame(head.kind, head.dest, head.reply, body, buffers))

    # ---- the end ----

    def _finish(self) -> None:
        assert self._error is not None
        self._fail(self._error, None)

    def _fail_soon(self, error: TransportError, cause: BaseException | None) -> None:
        """Record the end now (the lock is held), tell the listener from the driver."""
        if self._error is None:
            error.__cause__ = cause
            self._error = error
            self._engine.call_soon(self._finish)

    def _fail(self, error: TransportError, cause: BaseException | None) -> None:
        if self._lost:
            return
        self._lost = True
        with self._lock:
            if self._error is None:
                if cause is not None:
                    error.__cause__ = cause
                self._error = error
            self._queue.clear()
            self._unsent = memoryview(b"")
        self._engine.unwatch(self._fd)
        self._sock.close()
        self._engine.wake_waiters()
        self._listener.on_lost(self, self._error)


def _bulk_records(head: bytes, frame: Frame) -> Iterator[Buffer]:
    yield head
    for part in (frame.body, *frame.buffers):
        view = memoryview(part).cast("B")
        for at in range(0, view.nbytes, CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]
