"""The `ucx` lane of a channel: frames as UCX active messages.

A frame of at most `RECORD_BYTES` is one record; UCX sends several together. A larger one is a front (its header, body
and small buffers) followed by each large buffer as a separate message, which UCX moves straight into the memory that
the receiver gets. All messages carry sequence numbers: a large one may still be in flight when the next one arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch_hpc.core.errors import FrameError, MemoryAccessError, PeerLost, TransportError
from monarch_hpc.transport.api import FabricKind, LaneListener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.operations import Transfer
from monarch_hpc.transport.ucx.hole_probe import Probe
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    Buffer,
    Frame,
    FrameHead,
    pack_head,
    parse_alone,
    parse_frame,
    parse_head,
)

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["APART_BYTES", "UcxLane"]

APART_BYTES = 64 * 1024
"""Buffers from this size on are sent separately: copying a smaller one into the front costs less than a message."""


_MAX_EARLY = 2**16
"""Messages that may wait for an earlier one: more than a sender has in flight while a large one is received."""

_MAX_REMOTES = 1024
"""Unpacked memory keys cached per peer."""


class _Front:
    """A frame with buffers, some of which may still be arriving.

    Args:
        data: header, body and the buffers that were not sent separately.
        apart: indices of the buffers that were.
    """

    __slots__ = ("body", "head", "missing", "parts")

    def __init__(self, head: FrameHead, data: memoryview, apart: list[int]) -> None:
        self.head = head
        self.missing = apart
        at = head.size + head.body_bytes
        self.body = data[head.size : at]
        self.parts: list[Buffer] = []
        for place, size in enumerate(head.buffer_bytes):
            if place in apart:
                self.parts.append(b"")
            else:
                self.parts.append(data[at : at + size])
                at += size

    @property
    def frame(self) -> Frame:
        """The frame, once no buffer is missing."""
        return Frame(self.head.kind, self.head.dest, self.head.reply, self.body, self.parts)


class UcxLane:
    """One peer through UCX; see `transport.api.Lane`.

    Args:
        probe: detects shared memory that no longer delivers.
        peer: the peer, for errors.

    Attributes:
        shared: whether it is connected through shared memory.
    """

    def __init__(
        self,
        engine: Engine,
        worker: _ucx.Worker,
        max_frame_bytes: int,
        probe: Probe,
        listener: LaneListener,
        peer: str,
        send_queue_bytes: int,
    ) -> None:
        from monarch_hpc.transport.ucx import _ucx

        self._engine = engine
        self._max_frame_bytes = max_frame_bytes
        self._probe = probe
        self._listener = listener
        self.peer = peer
        self._send_queue_bytes = send_queue_bytes
        self._record_bytes = _ucx.RECORD_BYTES
        self._small_bytes = _ucx.RECORD_BYTES - HEAD_BYTES
        self._failed: type[Exception] = _ucx.UcxError
        self._text: Callable[[int], str] = _ucx.status_text
        self._lane = worker.open(self)
        self._span = _ucx.Span
        self._remotes: dict[bytes, _ucx.RemoteKey] = {}
        self._moving: set[Transfer] = set()
        self._error: TransportError | None = None
        self.shared = False
        self._puts = True  # one-sided, and not slower than frames
        self.heard_s = 0.0
        """When frames last arrived, on the engine's clock."""
        # in
        self._next = 0  # sequence number of the next message
        self._opened = False  # SWITCH came
        self._early: dict[int, bytes | tuple[_ucx.Landing, _ucx.Operation | None]] = {}
        self._front: _Front | None = None

    @property
    def token(self) -> bytes:
        """The token that the peer must put into each message."""
        return self._lane.token

    @property
    def pending_bytes(self) -> int:
        """Bytes that were sent and that no transport has taken yet."""
        return self._lane.pending_bytes

    @property
    def transports(self) -> tuple[str, ...]:
        """Names of UCX's transports in use, as far as UCX reports them."""
        return self._lane.transports

    @property
    def usable(self) -> bool:
        """Whether the peer's frames arrive on it."""
        return self._opened and self._error is None

    def ask(self, asked_us: int) -> None:
        """Ask the peer for a sign on the lane; see `transport.ucx.hole_probe`."""
        self._listener.probe_lane(asked_us)

    def answered(self, asked_us: int) -> None:
        """Handle an answer to `ask`, which came on the socket."""
        self._probe.answered(asked_us, self)

    def fail(self, error: TransportError) -> None:
        """Fail the lane with *error*."""
        self._fail(error)

    def connect(self, kind: FabricKind, address: bytes, token: bytes) -> None:
        """Connect the lane to the peer's.

        Raises:
            PeerLost: UCX has no transport to the peer.
        """
        try:
            self._lane.connect(address, token)
        except self._failed as error:
            raise PeerLost(self.peer, f"UCX: {error}") from error
        self.shared = kind is FabricKind.UCX_SHM
        # UCX puts over tcp as small messages, at 24 MB/s in 1.13: frames are faster, and take the same route.
        self._puts = kind is not FabricKind.UCX_TCP

    # ---- sending ----

    def send(self, frame: Frame) -> None:
        """Send *frame*; see `transport.api.FrameChannel.send`."""
        head = pack_head(frame)
        engine, body = self._engine, frame.body
        driving = engine.driving
        try:
            if not frame.buffers and len(body) <= self._small_bytes:
                self._lane.send(head, body, driving)
            else:
                self._send_with_buffers(head, frame, driving)
        except self._failed as error:
            raise self._lost(error) from error
        if not driving and self._lane.pending_bytes > self._send_queue_bytes:
            engine.wait(self._has_room, None)

    def _send_with_buffers(self, head: bytes, frame: Frame, driving: bool) -> None:
        sizes = [memoryview(buffer).nbytes for buffer in frame.buffers]
        total = len(head) + len(frame.body) + sum(sizes)
        if total <= self._record_bytes:
            self._lane.send(head, b"".join((frame.body, *frame.buffers)), driving)
            return
        if total > self._max_frame_bytes:
            raise FrameError(f"{total} bytes, at most {self._max_frame_bytes} (config key 'transport.max_frame_bytes')")
        near = [buffer for buffer, size in zip(frame.buffers, sizes, strict=True) if size < APART_BYTES]
        apart = [buffer for buffer, size in zip(frame.buffers, sizes, strict=True) if size >= APART_BYTES]
        with self._engine.undisturbed():  # else the peer might wait for a sequence number that is never sent
            first = self._lane.reserve(1 + len(apart))
            self._lane.send_bulk(b"".join((head, frame.body, *near)), first)
            operations = [self._lane.send_bulk(buffer, first + number) for number, buffer in enumerate(apart, 1)]
        if operations and not driving:
            # The buffers are the caller's again when UCX has read the last byte.
            self._engine.wait(lambda: self._error is not None or all(op.status != 1 for op in operations), None)

    def _has_room(self) -> bool:
        return self._error is not None or self._lane.has_room(self._send_queue_bytes)

    # ---- memory of the peer ----

    def move(self, key: bytes, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        """Get or put memory of the peer; None where UCX does not reach it, or is slower than frames. From any thread.

        Raises:
            TypeError: *buffer* has no buffer protocol.
            BufferError: it is not contiguous, or is read-only.
        """
        if write and not self._puts:
            return None
        try:
            parts = Key.parse(key)
        except MemoryAccessError:
            return None
        if not parts.rkey:
            return None
        span = self._span(buffer, not write)
        what = f"{'put' if write else 'get'} of {span.num_bytes} bytes at {offset}, {self.peer}"
        transfer = Transfer(self._engine, what)
        try:
            parts.check(self.peer, offset, span.num_bytes, write=write)
            if not span.num_bytes:
                transfer.finish()
                return transfer
            remote = self._remote(parts)
            start = self._lane.put if write else self._lane.get
            operation = start(span, parts.address + offset, remote)
            # A put has arrived when a later flush is done.
            operations = [operation, self._lane.flush()] if write else [operation]
        except MemoryAccessError as error:
            transfer.finish(error)
            return transfer
        except self._failed as error:
            transfer.finish(self._lost(error))
            return transfer
        self._moving.add(transfer)

        def ended() -> None:
            if any(operation.status == 1 for operation in operations):
                return
            self._moving.discard(transfer)
            failed = next((operation.status for operation in operations if operation.status < 0), 0)
            transfer.finish(self._error or PeerLost(self.peer, f"UCX: {self._text(failed)}") if failed else None)

        for operation in operations:
            operation.on_done = ended
        ended()  # the operations may be done already
        return transfer

    def _remote(self, parts: Key) -> _ucx.RemoteKey:
        remote = self._remotes.get(parts.id)
        if remote is None:
            if len(self._remotes) >= _MAX_REMOTES:
                self._remotes.pop(next(iter(self._remotes)), None)
            remote = self._remotes[parts.id] = self._lane.unpack(parts.rkey)
        return remote

    # ---- receiving ----

    def open(self) -> None:
        """Accept the peer's frames on this lane: SWITCH has arrived."""
        self._opened = True
        self._take_early()

    def on_records(self, sequence: int, data: bytes | None) -> None:
        """Handle a message of small frames."""
        if data is None:
            self._fail(FrameError("a UCX message over config key 'transport.max_frame_bytes'"))
        elif sequence == self._next and self._opened and not self._early:
            self._next += 1
            self._take_records(data)
        else:
            self._keep(sequence, data)

    def on_bulk(self, sequence: int, landing: _ucx.Landing, operation: _ucx.Operation | None) -> None:
        """Handle a separate message, which is still arriving while *operation* is in flight."""
        if operation is not None and operation.status == 1:
            operation.on_done = self._take_early
        self._keep(sequence, (landing, operation))

    def on_error(self, status: int) -> None:
        """Fail the lane: UCX has lost the peer."""
        self._fail(PeerLost(self.peer, f"UCX: {self._text(status)}"))

    def _keep(self, sequence: int, item: bytes | tuple[_ucx.Landing, _ucx.Operation | None]) -> None:
        self.heard_s = self._engine.clock()  # even if the message must wait for earlier ones
        if sequence < self._next or sequence in self._early or len(self._early) >= _MAX_EARLY:
            self._fail(FrameError(f"UCX message {sequence} where {self._next} is due, with {len(self._early)} waiting"))
            return
        self._early[sequence] = item
        self._take_early()

    def _take_early(self) -> None:
        while self._opened and self._error is None:
            item = self._early.get(self._next)
            if item is None:
                return
            if isinstance(item, tuple) and item[1] is not None:
                if item[1].status == 1:
                    return
                if item[1].status < 0:
                    self.on_error(item[1].status)
                    return
            del self._early[self._next]
            self._next += 1
            if isinstance(item, tuple):
                self._take_message(memoryview(item[0]))
            else:
                self._take_records(item)

    def _take_records(self, data: bytes) -> None:
        self.heard_s = self._engine.clock()
        alone = parse_alone(data)
        if alone is not None:
            self._listener.on_lane_frame(alone)
            return
        at = 0
        try:
            while at < len(data):
                parsed = parse_frame(data, at)
                if parsed is None:
                    raise FrameError(f"{len(data) - at} bytes of an incomplete frame")
                frame, at = parsed
                self._listener.on_lane_frame(frame)
        except FrameError as error:
            self._fail(error)

    def _take_message(self, data: memoryview) -> None:
        self.heard_s = self._engine.clock()
        try:
            front = self._front
            if front is None:
                head = parse_head(data, self._max_frame_bytes)
                apart = [place for place, size in enumerate(head.buffer_bytes) if size >= APART_BYTES]
                due = head.size + head.body_bytes + sum(size for size in head.buffer_bytes if size < APART_BYTES)
                if len(data) != due:
                    raise FrameError(f"a front of {len(data)} bytes where {due} were due")
                front = _Front(head, data, apart)
            else:
                place = front.missing.pop(0)
                if len(data) != front.head.buffer_bytes[place]:
                    raise FrameError(f"a buffer of {len(data)} bytes where {front.head.buffer_bytes[place]} were due")
                front.parts[place] = data
            self._front = front if front.missing else None
            if not front.missing:
                self._listener.on_lane_frame(front.frame)
        except FrameError as error:
            self._fail(error)

    # ---- the end ----

    def _lost(self, error: Exception) -> TransportError:
        return self._error or PeerLost(self.peer, str(error))

    def _fail(self, error: TransportError) -> None:
        if self._error is None:
            self._error = error
            self._listener.on_lane_error(error)

    def close(self, error: TransportError, *, peer_died: bool) -> None:
        """Disconnect from the peer; *error* is the reason that later calls raise."""
        if self._error is None:
            self._error = error
        self._early.clear()
        self._front = None
        self._remotes.clear()
        self._lane.close()
        if self.shared and peer_died:
            self._probe.suspect()

    def abandon(self) -> None:
        """Fail the transfers in flight: UCX has been closed, and nothing else will end them."""
        for transfer in self._moving:
            transfer.finish(self._error)
