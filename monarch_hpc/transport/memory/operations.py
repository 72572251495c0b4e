"""Reads and writes memory of another process by frames, where the fabric has no one-sided operations.

An operation is cut into pieces, each a frame and its answer, a few of them in flight at a time: so a large operation
neither exceeds the largest frame, nor fills a queue, nor delays the channel's other frames.
"""

from __future__ import annotations

import functools
import itertools
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable

from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key, host_view, pack_span
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, RefusedBuffers

__all__ = ["PIECE_BYTES", "WINDOW_BYTES", "Operations", "Transfer"]

PIECE_BYTES = 4 * 2**20
"""Large enough that the round trip per piece is negligible, small enough that a call behind one waits a millisecond."""

WINDOW_BYTES = 4 * PIECE_BYTES
"""Bytes in flight on one channel: enough for 10 GB/s at a round trip of 1.6 ms."""

_DIRECT_BYTES = 32 * 1024
"""Up to this size a channel copies what it sends, so that any thread may write it without waiting for the socket."""

_FRAME_BYTES = 4096  # upper bound on the header of a piece


class Transfer:
    """A get or put in flight. It always ends: with the data, an error, or the loss of the peer.

    Args:
        what: describes the transfer in errors.
    """

    def __init__(self, engine: Engine, what: str) -> None:
        self._engine = engine
        self._what = what
        self._done = False
        self._error: TransportError | None = None
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._stop: Callable[[TransportError], object] | None = None
        self._lock = allocate_lock()

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not; its buffer is the caller's again."""
        return self._done

    @property
    def error(self) -> TransportError | None:
        """Why it failed; None while it runs and after success."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the data has been transferred. After a timeout the transfer continues.

        Raises:
            MemoryAccessError: the peer has no such memory, or does not allow this access.
            PeerLost, ChannelClosed: the channel ended first.
            TimeoutError: the transfer still runs after *timeout_s* seconds.
        """
        if not self._engine.wait(lambda: self._done, timeout_s) and not self._done:
            raise TimeoutError(f"{self._what}: not done after {timeout_s:g} s")
        if self._error is not None:
            raise self._error

    def on_done(self, callback: Callable[[Transfer], None]) -> None:
        """Call *callback* on the driver of the engine when the transfer has ended."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._engine.call_soon(functools.partial(callback, self))

    def stop(self, error: TransportError) -> bool:
        """End the transfer with *error* if that can be done without its peer; on the driver.

        Returns:
            Whether it has ended, so that its buffer is the caller's again. False where a fabric writes or reads the
            buffer until the peer has answered or is lost.
        """
        if not self._done and self._stop is not None:
            self._stop(error)
        return self._done

    def stop_by(self, stop: Callable[[TransportError], object]) -> None:
        """Let `stop` end the transfer with *stop*; for its implementation."""
        self._stop = stop

    def finish(self, error: TransportError | None = None) -> None:
        """End the transfer; for its implementation. Only the first end counts."""
        with self._lock:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._engine.call_soon(functools.partial(callback, self))
        self._engine.wake_waiters()


class _Operation:
    """A transfer as a sequence of pieces."""

    __slots__ = ("begun", "in_flight", "key", "kind", "landing", "left", "number", "offset", "transfer", "view")

    def __init__(self, kind: Kind, number: int, key: Key, offset: int, view: memoryview, transfer: Transfer) -> None:
        self.kind = kind
        self.number = number
        self.key = key
        self.offset = offset
        self.view = view
        self.transfer = transfer
        self.begun = 0  # bytes whose pieces are in flight or done
        self.left = view.nbytes  # bytes that are not done
        self.in_flight: dict[int, int] = {}  # offset and length of the pieces in flight
        self.landing: list[memoryview] = []  # target of the piece that is arriving

    @property
    def all_begun(self) -> bool:
        return self.begun == self.view.nbytes and (self.begun > 0 or bool(self.in_flight))

    @property
    def direct(self) -> bool:
        """Whether any thread may send its pieces; others are left to the driver, which never waits for the socket."""
        return self.kind is Kind.GET or self.view.nbytes <= _DIRECT_BYTES


class Operations:
    """The transfers of one channel that this side started.

    Args:
        send: sends a frame to the peer.
        where: the peer, for errors.
        max_frame_bytes: upper bound on a piece and its header.
    """

    def __init__(self, engine: Engine, send: Callable[[Frame], object], where: str, max_frame_bytes: int) -> None:
        self._engine = engine
        self._send = send
        self._where = where
        self._piece_bytes = max(1, min(PIECE_BYTES, max_frame_bytes - _FRAME_BYTES))
        self._lock = allocate_lock()
        self._numbers = itertools.count(1)
        self._running: dict[int, _Operation] = {}
        self._waiting: deque[_Operation] = deque()  # operations with pieces to send, served in turn
        self._in_flight_bytes = 0
        self._error: TransportError | None = None

    def get(self, key: Key, offset: int, into: object) -> Transfer:
        """Read from *offset* of the memory with *key* until *into* is full; from any thread."""
        return self._start(Kind.GET, key, offset, into)

    def put(self, key: Key, offset: int, data: object) -> Transfer:
        """Write *data* to *offset* of the memory with *key*; from any thread."""
        return self._start(Kind.PUT, key, offset, data)

    def _start(self, kind: Kind, key: Key, offset: int, buffer: object) -> Transfer:
        view = host_view(buffer, writable=kind is Kind.GET)
        what = f"{kind.name.lower()} of {view.nbytes} bytes at {offset}, {self._where}"
        transfer = Transfer(self._engine, what)
        try:
            key.check(self._where, offset, view.nbytes, write=kind is Kind.PUT)
            with self._lock:
                if self._error is not None:
                    raise self._error
                operation = _Operation(kind, next(self._numbers), key, offset, view, transfer)
                transfer.stop_by(functools.partial(self._end, operation))
                self._running[operation.number] = operation
                self._waiting.append(operation)
        except TransportError as error:
            transfer.finish(error)
            return transfer
        if operation.direct:
            self._send_pieces()
        else:
            self._engine.call_soon(self._send_pieces)
        return transfer

    def _send_pieces(self) -> None:
        """Send pieces until the window is full."""
        driving = self._engine.driving
        while True:
            with self._lock:
                frame = self._next(driving)
            if frame is None:
                return
            try:
                self._send(frame)
            except TransportError as error:
                self.fail_all(error)
                return

    def _next(self, driving: bool) -> Frame | None:
        for _ in range(len(self._waiting)):
            if self._in_flight_bytes >= WINDOW_BYTES:
                return None
            operation = self._waiting[0]
            self._waiting.rotate(-1)
            if not (driving or operation.direct):
                continue
            at = operation.begun
            size = min(self._piece_bytes, operation.view.nbytes - at)
            operation.begun += size
            operation.in_flight[at] = size
            if operation.all_begun:
                self._waiting.remove(operation)
            self._in_flight_bytes += size
            span = pack_span(operation.key.id, operation.offset + at, size)
            buffers = () if operation.kind is Kind.GET else (operation.view[at : at + size],)
            return Frame(operation.kind, at, operation.number, span, buffers)
        return None

    # ---- on the driver ----

    def land(self, head: FrameHead) -> list[memoryview] | None:
        """Targets for the buffers of an arriving DATA frame; see `transport.secure.records.Landing`."""
        operation = self._running.get(head.dest)
        if operation is None or operation.kind is not Kind.GET:
            return None
        size = operation.in_flight.get(head.reply)
        if size is None or head.buffer_bytes != (size,):
            return None
        operation.landing = [operation.view[head.reply : head.reply + size]]
        return operation.landing

    def on_data(self, frame: Frame) -> None:
        """Handle the answer to a piece."""
        operation = self._running.get(frame.dest)
        if operation is None:
            return  # the operation has failed already
        with self._lock:
            size = operation.in_flight.pop(frame.reply, None)
            if size is not None:
                self._in_flight_bytes -= size
        if frame.body:
            self._end(operation, MemoryAccessError(self._where, bytes(frame.body).decode(errors="replace")))
        elif size is None or (operation.kind is Kind.GET and not _place(operation, frame, size)):
            self._end(operation, MemoryAccessError(self._where, "its answer does not match the request"))
        else:
            operation.left -= size
            if not operation.left and not operation.in_flight:
                self._end(operation, None)
        self._send_pieces()

    def fail_all(self, error: TransportError) -> None:
        """Fail all transfers, and all later ones: the channel has ended."""
        with self._lock:
            self._error = self._error or error
            running = list(self._running.values())
        for operation in running:
            self._end(operation, error)

    def _end(self, operation: _Operation, error: TransportError | None) -> None:
        with self._lock:
            self._running.pop(operation.number, None)
            if operation in self._waiting:
                self._waiting.remove(operation)
            self._in_flight_bytes -= sum(operation.in_flight.values())
            operation.in_flight.clear()
            if operation.landing:
                # The caller may use its buffer again: data that still arrives is discarded.
                operation.landing[0] = memoryview(bytearray(len(operation.landing[0])))
        operation.transfer.finish(error)


def _place(operation: _Operation, frame: Frame, size: int) -> bool:
    """Copy a piece to its target, unless it arrived there; False if it does not belong to this operation."""
    landed, operation.landing = operation.landing, []
    if len(frame.buffers) != 1 or isinstance(frame.buffers, RefusedBuffers):
        return False
    data: Buffer = frame.buffers[0]
    if landed and data is landed[0]:
        return True
    if len(data) != size:
        return False
    operation.view[frame.reply : frame.reply + size] = data
    return True
