"""Reads and writes memory of another process by frames, where the fabric has no one-sided operations.

An operation is cut into pieces, each a frame and its answer, a few of them in flight at a time: so a large operation
neither exceeds the largest frame, nor fills a queue, nor delays the channel's other frames.
"""

from __future__ import annotations

import functools
import itertools
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.framed.lists import LIST_BYTES, MAX_PIECES, Batch, plan_batches
from monarch_hpc.transport.memory.framed.operation import ArrivingPiece, FramedOperation, ListOperation, SpanOperation
from monarch_hpc.transport.memory.key import Key, host_view
from monarch_hpc.transport.memory.moves import Move, Moves, join_transfers
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, FrameHead, Kind

__all__ = ["PIECE_BYTES", "WINDOW_BYTES", "Operations"]

PIECE_BYTES = 4 * 2**20
"""Large enough that the round trip per piece is negligible, small enough that a call behind one waits a millisecond."""

WINDOW_BYTES = 4 * PIECE_BYTES
"""Bytes in flight on one channel: enough for 10 GB/s at a round trip of 1.6 ms."""

_ALONE_BYTES = 2**20
"""Pieces of a list from this size on travel by themselves: their frames cost less than the copies of a joint one."""

_FRAME_BYTES = 4096  # upper bound on the header of a piece


class _Plan(NamedTuple):
    """The frames of a list, and the transfers that travel by themselves."""

    batches: list[Batch]
    alone: list[tuple[Key, Move]]


class Operations:
    """The transfers of one channel that this side started.

    Args:
        send: sends a frame to the peer.
        where: the peer, for errors.
        max_frame_bytes: upper bound on a piece and its header.
        list_pieces: config key `transport.list_pieces`.
    """

    def __init__(
        self,
        engine: Engine,
        send: Callable[[Frame], object],
        where: str,
        max_frame_bytes: int,
        list_pieces: int,
    ) -> None:
        self._engine = engine
        self._send = send
        self._where = where
        self._piece_bytes = max(1, min(PIECE_BYTES, max_frame_bytes - _FRAME_BYTES))
        self._list_pieces = max(1, min(list_pieces, MAX_PIECES))
        # With the keys of their memories, which they were checked against.
        self._plans: WeakKeyDictionary[Moves, tuple[Sequence[Key], _Plan | str]] = WeakKeyDictionary()
        self._lock = allocate_lock()
        self._numbers = itertools.count(1)
        self._running: dict[int, FramedOperation] = {}
        self._waiting: deque[FramedOperation] = deque()  # operations with pieces to send, served in turn
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
        problem = key.error(self._where, offset, view.nbytes, write=kind is Kind.PUT)
        if problem is not None:
            transfer.finish(problem)
            return transfer
        return self._begin(SpanOperation(kind, next(self._numbers), key, offset, view, transfer))

    def move_all(self, moves: Moves, keys: Sequence[Key]) -> Transfer:
        """Begin a list, each frame of which carries many pieces; *keys* are of `Moves.identifiers`. From any thread.

        Raises:
            ValueError: local memory is not contiguous, or is read-only although a piece is to be read into it.
        """
        known, plan = self._plans.get(moves, (None, ""))
        if known != keys:
            plan = self._plan(moves, keys)
            self._plans[moves] = keys, plan
        transfer = Transfer(self._engine, f"{moves}, {self._where}")
        if isinstance(plan, str):
            transfer.finish(MemoryAccessError(self._where, plan))
            return transfer
        transfers = []
        if plan.batches:
            transfers.append(self._begin(ListOperation(next(self._numbers), plan.batches, moves.name, transfer)))
        for key, move in plan.alone:
            transfers.append((self.put if move.write else self.get)(key, move.offset, move.buffer))
        return transfers[0] if len(transfers) == 1 else join_transfers(self._engine, str(moves), transfers)

    def _plan(self, moves: Moves, keys: Sequence[Key]) -> _Plan | str:
        """The frames of a list; or why it is refused."""
        key_of = dict(zip(moves.identifiers, keys, strict=True))
        alone, together = [], []
        limit_bytes = min(_ALONE_BYTES, self._piece_bytes)
        for number, move in enumerate(moves.moves):
            key = key_of[move.identifier]
            problem = key.problem(move.offset, move.buffer.nbytes, write=move.write)
            if problem:
                return moves.name(number, problem)
            if move.buffer.nbytes >= limit_bytes:
                alone.append((key, move))
            else:
                together.append((number, move))
        return _Plan(list(plan_batches(together, self._list_pieces, min(self._piece_bytes, LIST_BYTES))), alone)

    def _begin(self, operation: FramedOperation) -> Transfer:
        transfer = operation.transfer
        with self._engine.undisturbed(), self._lock:
            error = self._error
            if error is None:
                transfer.stop_by(functools.partial(self._end, operation))
                self._running[operation.number] = operation
                self._waiting.append(operation)
        if error is not None:
            transfer.finish(error)
        elif operation.direct:
            try:
                self._send_pieces()
            except BaseException:  # Ctrl-C: the caller gets no transfer, and its buffer is its own again
                self._end(operation, self._interrupted())
                raise
        else:
            self._engine.call_soon(self._send_pieces)
        return transfer

    def _send_pieces(self) -> None:
        """Send pieces until the window is full."""
        driving = self._engine.driving
        begun = None
        try:
            while True:
                with self._engine.undisturbed(), self._lock:
                    begun = self._next(driving)
                if begun is None:
                    return
                operation, name, num_bytes = begun
                self._send(operation.frame(name, num_bytes))
        except TransportError as error:
            self.fail_all(error)
        except BaseException:  # Ctrl-C, or no memory: the piece may not have been sent, and its answer would never come
            if begun is not None:
                self._end(begun[0], self._interrupted())
            raise

    def _interrupted(self) -> TransportError:
        return MemoryAccessError(self._where, "the request for it was interrupted")

    def _next(self, driving: bool) -> tuple[FramedOperation, int, int] | None:
        for _ in range(len(self._waiting)):
            if self._in_flight_bytes >= WINDOW_BYTES:
                return None
            operation = self._waiting[0]
            self._waiting.rotate(-1)
            if not (driving or operation.direct):
                continue
            name, num_bytes = operation.begin_piece(self._piece_bytes)
            operation.in_flight[name] = num_bytes
            if operation.all_begun:
                self._waiting.remove(operation)
            self._in_flight_bytes += num_bytes
            return operation, name, num_bytes
        return None

    # ---- on the driver ----

    def land(self, head: FrameHead, withdraw: Callable[[], object] | None = None) -> list[memoryview] | None:
        """Targets for the buffers of an arriving DATA frame; None for fresh memory.

        Args:
            withdraw: as in `transport.api.LandingMemory`; None for a channel that reads the list again for every part
                that it writes, see `transport.secure.records.Landing`.
        """
        with self._engine.undisturbed(), self._lock:
            operation = self._running.get(head.dest)
            targets = [] if operation is None else operation.land(head.reply, head)
            if operation is not None and targets:
                operation.landings[head.reply] = ArrivingPiece(targets, withdraw)
        return targets or None

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
            self._end(operation, MemoryAccessError(self._where, operation.problem(frame)))
        elif size is None or not operation.place(frame, size):
            self._end(operation, MemoryAccessError(self._where, "its answer does not match the request"))
        elif operation.all_begun and not operation.in_flight:
            self._end(operation, None)
        self._send_pieces()

    def fail_all(self, error: TransportError) -> None:
        """Fail all transfers, and all later ones: the channel has ended."""
        with self._lock:
            self._error = self._error or error
            running = list(self._running.values())
        for operation in running:
            self._end(operation, error)

    def _end(self, operation: FramedOperation, error: TransportError | None) -> None:
        with self._engine.undisturbed(), self._lock:
            self._running.pop(operation.number, None)
            if operation in self._waiting:
                self._waiting.remove(operation)
            self._in_flight_bytes -= sum(operation.in_flight.values())
            operation.in_flight.clear()
            for landing in operation.landings.values():
                landing.take_back()
            operation.landings.clear()
        operation.transfer.finish(error)
