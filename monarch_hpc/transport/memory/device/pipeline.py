"""Pieces of a transfer that pass through two stages: a copy by a GPU, and a transfer of host memory."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from typing import NamedTuple

from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, TransportError
from monarch_hpc.core.machine.cuda import Cuda, PinnedMemory
from monarch_hpc.transport.engine.copiers import Copiers
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.device.copies import GpuCopy
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["PieceWork", "Pipeline", "StagedTransfer"]

_PIECE_BYTES = 4 << 20
"""Size of a piece that is staged: copied in a fraction of a millisecond, and moved in about one."""

_NUM_SLOTS = 3
"""Pieces under way: one is copied while one is moved, and one waits for either."""


class PieceWork(NamedTuple):
    """The work on one piece.

    Attributes:
        copy: copies it, on a thread for that; raises OSError.
        move: starts its transfer, before the copy if `reads`; None if there is none.
    """

    copy: Callable[[], None]
    move: Callable[[], Transfer] | None
    reads: bool = False


class Pipeline:
    """Runs the stages of all pieces of *transfer*, and ends it, with the first error, when nothing is under way.

    Args:
        where: the peer, for errors.
        piece_bytes: size of each piece but the last.
        stage: the work on the piece at a place, of a size; asked for when the piece begins, at most *num_slots* at a
            time.
        held: what must live until then.
    """

    def __init__(
        self,
        engine: Engine,
        copiers: Copiers,
        transfer: Transfer,
        where: str,
        num_bytes: int,
        piece_bytes: int,
        stage: Callable[[int, int], PieceWork],
        held: object,
        num_slots: int = 1,
    ) -> None:
        self._engine = engine
        self._copiers = copiers
        self._transfer = transfer
        self._where = where
        self._num_bytes = num_bytes
        self._piece_bytes = piece_bytes
        self._stage = stage
        self._held = held
        self._num_slots = num_slots
        self._lock = allocate_lock()
        self._begun = 0
        self._num_under_way = 0
        self._moving: set[Transfer] = set()
        self._error: TransportError | None = None
        transfer.stop_by(self._stop)

    def begin(self) -> None:
        """Begin the first pieces; from any thread, once."""
        for _ in range(self._num_slots):
            self._next()

    def _next(self) -> None:
        with self._lock:
            at = self._begun
            begins = at < self._num_bytes and self._error is None
            over = not begins and not self._num_under_way
            if begins:
                self._begun += self._piece_bytes
                self._num_under_way += 1
        if over:
            self._finish()
        if begins:
            stage = self._stage(at, min(self._piece_bytes, self._num_bytes - at))
            if stage.reads:
                self._move(stage, lambda: self._copy(stage, self._ended))
            else:
                self._copy(stage, lambda: self._move(stage, self._ended))

    def _move(self, stage: PieceWork, then: Callable[[], None]) -> None:
        if stage.move is None or self._error is not None:  # to stop it ends it between the stages, too
            self._ended()
            return
        try:
            inner = stage.move()
        except TransportError as error:
            self._fail(error)
            return
        self._moving.add(inner)

        def ended(_inner: Transfer) -> None:
            self._moving.discard(inner)
            if inner.error is not None:
                self._fail(inner.error)
            else:
                then()

        inner.on_done(ended)

    def _copy(self, stage: PieceWork, then: Callable[[], None]) -> None:
        def done(error: OSError | None) -> None:  # on the thread that copied
            if error is None:
                self._engine.call_soon(then)
            else:
                problem = MemoryAccessError(self._where, f"the copy of memory of a GPU failed: {error}")
                self._engine.call_soon(lambda: self._fail(problem))

        if not self._copiers.add(GpuCopy(stage.copy, done), 1):
            self._fail(ChannelClosed("this process", "it is closing"))

    def _ended(self) -> None:
        with self._lock:
            self._num_under_way -= 1
        self._next()

    def _fail(self, error: TransportError) -> None:
        with self._lock:
            self._error = self._error or error
        self._ended()

    def _finish(self) -> None:
        self._held = None  # what was opened for it is closed before its owner hears that it has ended
        self._transfer.finish(self._error)

    def _stop(self, error: TransportError) -> None:
        with self._lock:
            self._error = self._error or error
            over = not self._num_under_way
        for inner in list(self._moving):
            inner.stop(error)
        if over:
            self._finish()


class StagedTransfer:
    """A transfer of a GPU's memory at *address* through pinned pieces of host memory.

    Args:
        move: transfers host memory from or to a place in the memory of the peer.
    """

    def __init__(
        self,
        cuda: Cuda,
        device: int,
        address: int,
        num_bytes: int,
        move: Callable[[int, memoryview], Transfer],
        *,
        write: bool,
    ) -> None:
        self._cuda = cuda
        self._device = device
        self._address = address
        self._num_bytes = num_bytes
        self._move = move
        self._write = write
        num_slots = min(_NUM_SLOTS, -(-num_bytes // _PIECE_BYTES))
        self._pinned = [cuda.pin(min(_PIECE_BYTES, num_bytes), device) for _ in range(num_slots)]

    def begin(self, engine: Engine, copiers: Copiers, transfer: Transfer, where: str, held: object) -> None:
        """Run it; *transfer* ends with it."""
        free, num_slots = self._pinned, len(self._pinned)

        def stage(at: int, size: int) -> PieceWork:
            pinned = free.pop()
            return self._stage(pinned, at, size, lambda: free.append(pinned))

        Pipeline(
            engine, copiers, transfer, where, self._num_bytes, _PIECE_BYTES, stage, (self, held), num_slots
        ).begin()

    def _stage(self, pinned: PinnedMemory, at: int, size: int, free: Callable[[], None]) -> PieceWork:
        here = self._address + at
        view = pinned.view[:size]

        def copy_out() -> None:
            self._cuda.copy(pinned.address, here, size, self._device)

        def copy_in() -> None:
            self._cuda.copy(here, pinned.address, size, self._device)
            free()

        def move() -> Transfer:
            inner = self._move(at, view)
            if self._write:
                inner.on_done(lambda _inner: free())
            return inner

        return PieceWork(copy_out if self._write else copy_in, move, reads=not self._write)
