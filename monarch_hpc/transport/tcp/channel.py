"""The `tcp` fabric: sealed records on a socket; see `transport.secure.records` for the wire format."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from _thread import RLock, allocate_lock
from collections.abc import Callable

from monarch_hpc.config.schema import TransportConfig
from monarch_hpc.core.errors import ChannelClosed, FrameError, PeerLost, TransportError
from monarch_hpc.core.errors.transport import FAREWELL, NO_MEMORY
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import CHUNK_BYTES, INLINE_BYTES, Bulk, Landing, RecordReader, RecordWriter
from monarch_hpc.wire.frames import HEAD_BYTES, Frame, Kind, pack_frame, pack_head

__all__ = ["CHUNK_BYTES", "INLINE_BYTES", "LINGER_S", "TcpChannel", "read_farewell"]

_MAX_REASON_BYTES = 400
_READS_PER_EVENT = 16  # then other channels are served, and timers
_READING_S = 0.01  # the same after this time: 16 reads of small messages can delay heartbeats by 10 s
LINGER_S = 2.0
"""Time that a closing channel has to send what was accepted; a peer that does not read loses the rest."""

_PING = Kind.PING
_BYE = Kind.BYE
_WRITABLE = select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP
_SOCKET_KINDS = frozenset({Kind.PING, Kind.OFFER, Kind.SWITCH, Kind.PROBE})
"""Frames that use the socket even when there is a lane."""

_URGENT = frozenset({Kind.PING, Kind.CREDIT})
"""Frames that overtake queued ones: heartbeats, and credit that lets a sender go on. They depend on no other frame."""

_TURN_BYTES = 4 * 2**20
"""Bytes that the driver writes at a time; then timers run, among them those of heartbeats."""

_INLINE_BODY_BYTES = INLINE_BYTES - HEAD_BYTES


_log = Logger(__name__)


class TcpChannel:
    """Frames over one socket: every channel begins with one; see `transport.channel`.

    Any thread sends. The first thread to send writes to the socket, and also what other threads send meanwhile, small
    frames together. So no sender waits for another one, and the driver for none.

    Args:
        ciphers: for sending and for receiving.
        on_frame: called on the driver with each frame that arrives.
        on_lost: called on the driver when the socket is closed; no frame follows.
    """

    def __init__(
        self,
        engine: Engine,
        sock: socket.socket,
        peer: Peer,
        ciphers: tuple[Cipher, Cipher],
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[TransportError], None],
        limits: TransportConfig,
    ) -> None:
        self._engine = engine
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._limits = limits
        self._error: TransportError | None = None
        self._dead = False  # nothing more is written or read
        self._reported = False  # on_lost was called
        self._received_s = engine.clock()
        self._blocked_s = 0.0
        # out
        self._lock = RLock()  # guards the error and the counters
        self._accepted_bytes = 0
        self._outbox = RecordWriter(ciphers[0])
        self._writing = allocate_lock()  # its holder writes to the socket
        self._unsent: bytes | memoryview = b""  # the rest of a write that the socket did not take
        self._blocked = False  # the socket buffer is full, and the engine reports when there is room
        self._turn = -1  # the engine's turn in which the driver last wrote directly
        self._flushes = False  # a flush is due at the end of this turn
        self._divert: Callable[[Frame], None] | None = None
        self._closing = False
        self._linger: Timer | None = None
        # in
        self._inbox = RecordReader(ciphers[1], limits.max_frame_bytes, self._deliver)

    def start(self) -> None:
        """Begin to read; call once, on the driver."""
        self._engine.watch(self._fd, self._on_ready)

    def land(self, landing: Landing) -> None:
        """Let *landing* choose the targets of large frames' buffers; call before `start`."""
        self._inbox.landing = landing

    @property
    def peer(self) -> Peer:
        """The process at the other end."""
        return self._peer

    @property
    def error(self) -> TransportError | None:
        """Why the channel has ended; None while it is open."""
        return self._error

    @property
    def received_s(self) -> float:
        """When bytes last arrived, on the engine's clock."""
        return self._received_s

    @property
    def queued_bytes(self) -> int:
        """Bytes that `send` accepted and that the kernel has not taken yet."""
        return self._accepted_bytes - self._outbox.sealed_bytes + len(self._unsent)

    @property
    def blocked_s(self) -> float:
        """Total time in seconds that senders were blocked by a full send queue."""
        return self._blocked_s

    # ---- sending ----

    def send(self, frame: Frame) -> None:
        """Send *frame*; see `transport.api.FrameChannel.send`."""
        if frame.buffers or len(frame.body) > _INLINE_BODY_BYTES:
            head = pack_head(frame)
            size = len(head) + len(frame.body) + sum([memoryview(buffer).nbytes for buffer in frame.buffers])
            if size > INLINE_BYTES:
                self._send_bulk(frame, head, size)
                return
        with self._engine.undisturbed():
            self._send_packed(frame, pack_frame(frame))
        limit = self._limits.send_queue_bytes
        if self.queued_bytes > limit and not self._engine.driving:
            self._wait(lambda: self.queued_bytes <= limit)

    def _send_packed(self, frame: Frame, packed: bytes) -> None:
        engine, outbox = self._engine, self._outbox
        driving = engine.driving
        # The driver writes its first frame of a turn directly, for low latency of answers; later ones are combined.
        if not (driving and self._turn == engine.turn) and self._writing.acquire(blocking=False):
            try:
                if self._error is not None:
                    raise self._error.for_later_calls(str(self._peer))
                if direct := not (self._unsent or outbox.queued or self._divert):
                    self._write(outbox.seal(packed))
            finally:
                self._writing.release()
            if outbox.queued or outbox.urgent:  # queued by threads that found the write lock taken
                self._pump()
            if direct:
                if driving:
                    self._turn = engine.turn
                return
        self._send_later(frame, packed, driving=driving)

    def divert(self, last: Frame, divert: Callable[[Frame], None]) -> None:
        """Pass all further frames to *divert*, except those that belong on the socket; send *last* before them.

        Raises:
            TransportError: the channel has ended.
        """
        with self._lock:
            self._divert = divert
        self.send(last)

    def _send_later(self, frame: Frame, packed: bytes, *, driving: bool) -> None:
        if self._push(frame, packed, len(packed)):
            (self._flush_later if driving else self._pump)()

    def _send_bulk(self, frame: Frame, head: bytes, size: int) -> None:
        if size > self._limits.max_frame_bytes:
            raise FrameError(
                f"{size} bytes, at most {self._limits.max_frame_bytes} (config key 'transport.max_frame_bytes')"
            )
        bulk = Bulk(frame, head, size)
        with self._engine.undisturbed():
            if not self._push(frame, bulk, size):
                return
            driving = self._engine.driving
            (self._flush_later if driving else self._pump)()
        # The buffers are the caller's again when the last byte is sealed.
        if not (bulk.sealed or driving):
            try:
                self._wait(lambda: bulk.sealed)
            except BaseException:  # of a signal handler: the peer waits for the rest of the frame all the same
                with self._engine.undisturbed(), self._writing:
                    bulk.own()
                raise

    def _push(self, frame: Frame, item: bytes | Bulk, size: int) -> bool:
        """Queue a frame; return False if it took the lane instead."""
        with self._lock:
            if self._error is not None:
                raise self._error.for_later_calls(str(self._peer))
            divert = self._divert
            if divert is None or frame.kind in _SOCKET_KINDS:
                self._accepted_bytes += size
                if isinstance(item, bytes) and frame.kind in _URGENT:
                    self._outbox.urgent.append(item)
                else:
                    self._outbox.queued.append(item)
                return True
        divert(frame)
        return False

    def _wait(self, ready: Callable[[], bool]) -> None:
        begun_s = self._engine.clock()
        self._engine.wait(lambda: ready() or self._error is not None, None, whole=True)
        with self._engine.undisturbed(), self._lock:
            self._blocked_s += self._engine.clock() - begun_s
        if not ready() and self._error is not None:
            raise self._error.for_later_calls(str(self._peer))

    def _flush_later(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._engine.at_end_of_turn(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self._pump()

    def _pump(self) -> None:
        """Write until the queue is empty or the socket full, unless another thread is writing: that thread goes on."""
        while self._outbox.waiting and not (self._blocked or self._dead) and self._writing.acquire(blocking=False):
            if self._unsent and not self._blocked:  # the connection is broken, as the next read will report
                self._writing.release()
                return
            try:
                self._drain()
            finally:
                self._writing.release()
            self._engine.wake_waiters()  # senders whose frames have been written

    def _drain(self) -> None:
        """Write queued frames; the caller holds `_writing`."""
        left = _TURN_BYTES if self._engine.driving else sys.maxsize
        while not (self._unsent or self._dead):
            if left <= 0:
                self._watch_writable()  # there is room already, so the next turn goes on
                return
            data = self._outbox.next_write()
            if not data:
                if self._closing:
                    self._engine.call_soon(self._finish)
                return
            left -= len(data)
            self._write(data)

    def _watch_writable(self) -> None:
        if not self._blocked:
            self._blocked = True
            self._engine.watch(self._fd, self._on_ready, write=True)

    def _write(self, data: bytes | memoryview) -> None:
        try:
            sent = self._sock.send(data)
            if sent == len(data):
                return
            while sent < len(data):
                data = memoryview(data)[sent:]
                sent = self._sock.send(data)
            data = b""
        except BlockingIOError:
            self._watch_writable()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the next read ends the channel, after the peer's last frames: perhaps a BYE with the reason
        except OSError as error:
            self._end_soon(PeerLost(str(self._peer), error.strerror or str(error)), error)
            return
        self._unsent = data

    def _on_writable(self) -> None:
        with self._writing:
            unsent, self._unsent = self._unsent, b""
            if unsent:
                self._write(unsent)
            self._drain()
            if not (self._unsent or self._dead or self._outbox.waiting):
                self._blocked = False
                self._engine.watch(self._fd, self._on_ready)
        self._pump()
        self._engine.wake_waiters()

    # ---- receiving ----

    def _on_ready(self, mask: int) -> None:
        if self._blocked and mask & _WRITABLE:
            self._on_writable()
        inbox, receive = self._inbox, self._sock.recv_into
        try:
            for _ in range(_READS_PER_EVENT):
                if self._dead:
                    return
                room = inbox.room()
                count = receive(room)
                if not count:
                    raise PeerLost(str(self._peer), "the connection ended")
                self._received_s = self._engine.clock()
                inbox.arrived(count)
                if (
                    count < len(room) or self._engine.clock() - self._received_s > _READING_S
                ):  # short read: socket empty
                    return
        except BlockingIOError:
            return
        except TransportError as error:
            self._end(error, None)
        except OSError as error:
            self._end(PeerLost(str(self._peer), error.strerror or str(error)), error)
        except MemoryError as error:  # of a frame on which those behind it rely
            self._end(PeerLost(str(self._peer), NO_MEMORY), error)

    def _deliver(self, frame: Frame) -> None:
        if frame.kind is _PING:
            return
        if frame.kind is _BYE:
            raise PeerLost(str(self._peer), read_farewell(frame))
        try:
            self._on_frame(frame)
        except (TransportError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 the frames behind this one must still arrive
            self._engine.on_fault(f"a frame from {self._peer} could not be handled", error)

    # ---- the end ----

    def close(self, reason: str) -> None:
        """End the channel and send the peer *reason*."""
        bye = pack_frame(Frame(Kind.BYE, body=reason.encode()))
        with self._lock:
            if self._error is not None:
                return
            self._error = ChannelClosed(str(self._peer), reason)
            self._closing = True
            self._accepted_bytes += len(bye)
            self._outbox.queued.append(bye)
        self._pump()
        self._linger = self._engine.call_later(LINGER_S, self._finish)

    def give_up(self, reason: str) -> None:
        """Declare the peer lost because of *reason*."""
        self._end_soon(PeerLost(str(self._peer), reason), None)

    def _end_soon(self, error: TransportError, cause: BaseException | None) -> None:
        """Record the end now, report it from the driver."""
        with self._lock:
            if self._error is None:
                error.__cause__ = cause
                self._error = error
        self._dead = True
        self._engine.call_soon(self._finish)

    def _finish(self) -> None:
        assert self._error is not None
        self._end(self._error, self._error.__cause__)

    def _end(self, error: TransportError, cause: BaseException | None) -> None:
        if self._reported:
            return
        self._reported = self._dead = True
        self._inbox.close()
        if self._linger is not None:  # or the timer would keep this object alive until it fires
            self._linger.cancel()
        with self._lock:
            if self._error is None:
                error.__cause__ = cause
                self._error = error
        with self._writing:  # no thread writes from here on
            self._outbox.clear()
            self._unsent = b""
        _forget_frames(self._error)
        self._engine.unwatch(self._fd)
        with contextlib.suppress(OSError):  # other code has closed it
            self._sock.close()
        self._engine.wake_waiters()
        self._on_lost(self._error)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the traceback of *error*: a stored error would otherwise keep the channel's buffers alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def read_farewell(bye: Frame) -> str:
    """The peer's farewell, with its reason, cut to a readable length."""
    return FAREWELL + bytes(bye.body[:_MAX_REASON_BYTES]).decode(errors="replace")
