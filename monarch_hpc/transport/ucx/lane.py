"""The `ucx` lane of a channel: frames as UCX active messages.

A frame of at most `RECORD_BYTES` is one record; UCX sends several together. A larger one is a front (its header, body
and small buffers) followed by each large buffer as a separate message, which UCX moves straight into the memory that
the receiver gets. All messages carry sequence numbers: a large one may still be in flight when the next one arrives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_hpc.core.errors import FrameError, PeerLost, TransportError
from monarch_hpc.transport.api import FabricKind, LaneListener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.ucx.front import APART_BYTES, FRONT, Arrived, Front
from monarch_hpc.transport.ucx.gap_watch import GapWatch
from monarch_hpc.transport.ucx.hole_probe import Probe
from monarch_hpc.transport.ucx.one_sided import OneSided
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    Frame,
    Kind,
    container_of,
    pack_head,
    parse_alone,
    parse_frame,
    parse_head,
    sizes_of,
)

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["UcxLane"]

_MAX_FRONTS = 64
"""Fronts that are kept until the message behind them comes, which is soon; those of transfers have some dozen bytes."""

_MAX_EARLY = 2**16
"""Messages that may wait for an earlier one: more than a sender has in flight while a large one is received."""


def _look() -> None:
    """Make the driver look for events: one that sleeps is not woken by an ERROR event of a sender."""


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

        self._target = _ucx.Target
        self._engine = engine
        self._max_frame_bytes = max_frame_bytes
        self._probe = probe
        self._listener = listener
        self.peer = peer
        self._send_queue_bytes = send_queue_bytes
        self._record_bytes = _ucx.RECORD_BYTES
        self._small_bytes = _ucx.RECORD_BYTES - HEAD_BYTES
        self._container_shift = _ucx.CONTAINER_SHIFT
        self._failed: type[Exception] = _ucx.UcxError
        self._text: Callable[[int], str] = _ucx.status_text
        self._lane = worker.open(self)
        self._on_connected: Callable[[], None] | None = None
        self._one_sided = OneSided(engine, self._lane, peer, lambda: self._error)
        self._error: TransportError | None = None
        self.shared = False
        self._moves = True
        self.received_s = 0.0
        """When frames last arrived, on the engine's clock."""
        # in
        self._next = 0  # sequence number of the next message
        self._opened = False  # SWITCH came
        self._early: dict[int, bytes | tuple[Arrived | list[memoryview], _ucx.Operation | None]] = {}
        self._front: Front | None = None
        self._fronts: dict[int, Arrived] = {}  # by sequence number
        self._gaps = GapWatch(self, engine.clock, engine.call_later)

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
        self._listener.probe(asked_us)

    def answered(self, asked_us: int) -> None:
        """Handle an answer to `ask`, which came on the socket."""
        self._probe.answered(asked_us, self)
        self._gaps.answered(asked_us)

    @property
    def missing(self) -> int:
        """Number of the message that later ones wait for; -1 if none waits."""
        lacks = self._early and self._error is None and self._opened and self._next not in self._early
        return self._next if lacks else -1

    def send_mark(self) -> None:
        """Send a record that says nothing; see `transport.ucx.gap_watch`."""
        if self._error is None:
            with contextlib.suppress(TransportError):  # its end is reported
                self.send(Frame(Kind.PROBE, 1))

    def lose(self, number: int) -> None:
        """Fail: message *number* is lost."""
        self._fail(PeerLost(self.peer, f"UCX has lost message {number}, as it does where a process has no memory left"))

    def fail(self, error: TransportError) -> None:
        """Fail the lane with *error*."""
        self._fail(error)

    def connect(self, kind: FabricKind, address: bytes, token: bytes, connected: Callable[[], None]) -> None:
        """Connect the lane to the peer's; see `transport.api.Lane.connect`.

        Raises:
            PeerLost: UCX has no transport to the peer.
        """
        try:
            self._lane.connect(address, token, over_sockets=kind is FabricKind.UCX_TCP)
        except self._failed as error:
            raise PeerLost(self.peer, f"UCX: {error}") from error
        self.shared = kind is FabricKind.UCX_SHM
        # Elsewhere UCX copies straight into memory that is known beforehand, which could not be taken back.
        self._lane.lands = kind is FabricKind.UCX_TCP
        # Elsewhere UCX emulates them by messages, and may end the owner's process when it gives up the peer while its
        # answers wait: it takes them for sends, and reads a field that was never set, in all versions up to 1.22.
        self._moves = kind is FabricKind.UCX_RDMA
        if kind is FabricKind.UCX_RDMA:
            # Whether this network reaches the peer is known only then: UCX keeps what is sent before, and waits.
            self._on_connected = connected
        else:
            connected()

    def on_wired(self) -> None:
        """Tell the owner that UCX has connected both sides, if it waits for that."""
        connected, self._on_connected = self._on_connected, None
        if connected is not None and self._error is None:
            connected()

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
            engine.call_soon(_look)
            raise self._lost(error) from error
        if not driving and self._lane.pending_bytes > self._send_queue_bytes:
            engine.wait(self._has_room, None)

    def _send_with_buffers(self, head: bytes, frame: Frame, driving: bool) -> None:
        sizes = sizes_of(frame.buffers)
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
            try:
                self._lane.send_bulk(b"".join((head, frame.body, *near)), first | FRONT << self._container_shift)
                operations = [
                    self._lane.send_bulk(buffer, first + number | container_of(buffer) << self._container_shift)
                    for number, buffer in enumerate(apart, 1)
                ]
                self._gaps.sent()
            except BaseException:
                self._lane.fail()
                self._engine.call_soon(_look)
                raise
        if operations and not driving:
            # The buffers are the caller's again when UCX has read the last byte.
            self._engine.wait(lambda: self._error is not None or all(op.status != 1 for op in operations), None)

    def _has_room(self) -> bool:
        return self._error is not None or self._lane.has_room(self._send_queue_bytes)

    # ---- memory of the peer ----

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        """Get or put memory of the peer; see `transport.ucx.one_sided`."""
        return self._one_sided.move(key, offset, buffer, write=write) if self._moves else None

    def move_all(self, moves: Moves, keys: Sequence[Key]) -> Transfer | None:
        """Begin a list in one call of the extension; otherwise as `move`. *keys* are of `Moves.identifiers`."""
        return self._one_sided.move_all(moves, keys) if self._moves else None

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

    def on_whole(self, sequence: int, container: int, data: Arrived | list[memoryview]) -> None:
        """Keep a front, which says where the message behind it belongs; see `_ucx.Lane`."""
        if container == FRONT and not isinstance(data, MemoryError | list) and len(data) <= self._record_bytes:
            if len(self._fronts) >= _MAX_FRONTS:
                del self._fronts[next(iter(self._fronts))]
            self._fronts[sequence] = data

    def land(self, sequence: int, num_bytes: int) -> tuple[list[memoryview], _ucx.Target] | None:
        """The memory of the transfer that a separate message answers; None for fresh memory. See `_ucx.Lane`."""
        front = self._fronts.pop(sequence - 1, None)
        if front is None or isinstance(front, MemoryError):
            return None
        try:
            head = parse_head(front, self._max_frame_bytes)
        except FrameError:  # raised again when its turn comes
            return None
        if head.kind is not Kind.DATA or head.buffer_bytes != (num_bytes,):
            return None
        target = self._target(num_bytes)
        views = self._listener.memory.land(head, target.withdraw)
        if not views:
            return None
        target.set(views[0])
        return views, target

    def on_bulk(self, sequence: int, arrived: Arrived | list[memoryview], operation: _ucx.Operation | None) -> None:
        """Handle a separate message, which is still arriving while *operation* is in flight."""
        if operation is not None and operation.status == 1:
            operation.on_done = self._take_early
        self._keep(sequence, (arrived, operation))

    def on_error(self, status: int) -> None:
        """Fail the lane: UCX has lost the peer."""
        self._fail(PeerLost(self.peer, f"UCX: {self._text(status)}"))

    def _keep(self, sequence: int, item: bytes | tuple[Arrived | list[memoryview], _ucx.Operation | None]) -> None:
        self.received_s = self._engine.clock()  # even if the message must wait for earlier ones
        if sequence < self._next or sequence in self._early or len(self._early) >= _MAX_EARLY:
            self._fail(FrameError(f"UCX message {sequence} where {self._next} is due, with {len(self._early)} waiting"))
            return
        self._early[sequence] = item
        self._take_early()

    def _take_early(self) -> None:
        while self._opened and self._error is None:
            item = self._early.get(self._next)
            if item is None:
                if self._early:
                    self._gaps.seen(self._next)
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
                self._take_message(item[0][0] if isinstance(item[0], list) else item[0])
            else:
                self._take_records(item)

    def _take_records(self, data: bytes) -> None:
        self.received_s = self._engine.clock()
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

    def _take_message(self, data: Arrived) -> None:
        self.received_s = self._engine.clock()
        try:
            front = self._front
            if front is not None:
                front.add(data)
            elif isinstance(data, MemoryError):
                raise FrameError(f"the beginning of a message could not be held: {data}")
            else:
                head = parse_head(data, self._max_frame_bytes)
                apart = [place for place, size in enumerate(head.buffer_bytes) if size >= APART_BYTES]
                due = head.size + head.body_bytes + sum(size for size in head.buffer_bytes if size < APART_BYTES)
                if len(data) != due:
                    raise FrameError(f"a front of {len(data)} bytes where {due} were due")
                front = Front(head, memoryview(data), apart)
            self._front = front if front.missing else None
            if not front.missing:
                self._listener.on_lane_frame(front.frame)
        except FrameError as error:
            self._fail(error)

    # ---- the end ----

    def _lost(self, error: Exception) -> TransportError:
        ended = self._error
        return PeerLost(self.peer, str(error)) if ended is None else ended.for_later_calls(self.peer)

    def _fail(self, error: TransportError) -> None:
        if self._error is None:
            self._error = error
            self._listener.on_lane_error(error)

    def close(self, error: TransportError, *, peer_died: bool) -> None:
        """Disconnect from the peer; *error* is the reason that later calls raise."""
        if self._error is None:
            self._error = error
        self._early.clear()
        self._fronts.clear()
        self._front = None
        self._one_sided.forget()
        self._lane.close()
        if self.shared and peer_died:
            self._probe.suspect()

    def abandon(self) -> None:
        """Fail the transfers in flight: UCX has been closed, and nothing else will end them."""
        self._one_sided.abandon()
