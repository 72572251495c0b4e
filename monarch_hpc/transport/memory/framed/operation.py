"""Transfers as sequences of frames: a span of bytes in pieces, or a list, of which each frame carries many pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_hpc.transport.memory.framed.lists import Batch, parse_problem
from monarch_hpc.transport.memory.key import Key, pack_span
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, RefusedBuffers

__all__ = ["ArrivingPiece", "FramedOperation", "ListOperation", "SpanOperation"]

_DIRECT_BYTES = 32 * 1024
"""Up to this size a channel copies what it sends, so that any thread may write it without waiting for the socket."""


class ArrivingPiece:
    """The memory of a piece that is arriving there.

    Args:
        targets, withdraw: of `Operations.land`.
    """

    __slots__ = ("_withdraw", "targets")

    def __init__(self, targets: list[memoryview], withdraw: Callable[[], object] | None) -> None:
        self.targets = targets
        self._withdraw = withdraw

    def take_back(self) -> None:
        """Make the memory the caller's again: data that still arrives is discarded."""
        if self._withdraw is not None:
            self._withdraw()
        self.targets[0] = memoryview(bytearray(len(self.targets[0])))


class FramedOperation:
    """A transfer as a sequence of pieces, each a frame and its answer.

    Attributes:
        in_flight: numbers of bytes of the pieces in flight, by what stands in `dest` of their frames.
        all_begun: whether no piece is left to be sent.
        landings: the pieces that are arriving in memory of theirs, by name.
        direct: whether any thread may send its pieces; others are left to the driver, which never waits for the socket.
    """

    __slots__ = ("all_begun", "direct", "in_flight", "landings", "number", "transfer")

    def __init__(self, number: int, transfer: Transfer, *, direct: bool) -> None:
        self.number = number
        self.transfer = transfer
        self.direct = direct
        self.all_begun = False
        self.in_flight: dict[int, int] = {}
        self.landings: dict[int, ArrivingPiece] = {}

    def begin_piece(self, most_bytes: int) -> tuple[int, int]:
        """Begin the next piece, of *most_bytes* at most; return its name and the bytes that it has in flight."""
        raise NotImplementedError

    def frame(self, name: int, num_bytes: int) -> Frame:
        """The request for a piece."""
        raise NotImplementedError

    def land(self, name: int, head: FrameHead) -> list[memoryview]:
        """Targets for the data of a piece; empty if it is to arrive in fresh memory."""
        raise NotImplementedError

    def place(self, frame: Frame, num_bytes: int) -> bool:
        """Copy a piece to its target, unless it arrived there; False if it does not belong to this operation."""
        raise NotImplementedError

    def problem(self, frame: Frame) -> str:
        """Why the owner has refused a piece."""
        return bytes(frame.body).decode(errors="replace")


class SpanOperation(FramedOperation):
    """A transfer of one span of bytes; a piece is named by its place in it."""

    __slots__ = ("_begun", "_key", "_kind", "_offset", "_view")

    def __init__(self, kind: Kind, number: int, key: Key, offset: int, view: memoryview, transfer: Transfer) -> None:
        super().__init__(number, transfer, direct=kind is Kind.GET or view.nbytes <= _DIRECT_BYTES)
        self._kind = kind
        self._key = key
        self._offset = offset
        self._view = view
        self._begun = 0  # bytes whose pieces are in flight or done

    def begin_piece(self, most_bytes: int) -> tuple[int, int]:
        at = self._begun
        num_bytes = min(most_bytes, self._view.nbytes - at)
        self._begun += num_bytes
        self.all_begun = self._begun == self._view.nbytes
        return at, num_bytes

    def frame(self, name: int, num_bytes: int) -> Frame:
        span = pack_span(self._key.id, self._offset + name, num_bytes)
        buffers = () if self._kind is Kind.GET else (self._view[name : name + num_bytes],)
        return Frame(self._kind, name, self.number, span, buffers)

    def land(self, name: int, head: FrameHead) -> list[memoryview]:
        num_bytes = self.in_flight.get(name)
        if self._kind is not Kind.GET or num_bytes is None or head.buffer_bytes != (num_bytes,):
            return []
        if name in self.landings:  # answered twice, which `place` refuses
            return []
        return [self._view[name : name + num_bytes]]

    def place(self, frame: Frame, num_bytes: int) -> bool:
        if self._kind is not Kind.GET:
            return True
        landing = self.landings.pop(frame.reply, None)
        if len(frame.buffers) != 1 or isinstance(frame.buffers, RefusedBuffers):
            return False
        data: Buffer = frame.buffers[0]
        if landing is not None and data is landing.targets[0]:
            return True
        if len(data) != num_bytes:
            return False
        self._view[frame.reply : frame.reply + num_bytes] = data
        return True


class ListOperation(FramedOperation):
    """A list of transfers, of which each frame carries many; a frame is named by its place among them.

    Args:
        name: as `Moves.name`.
    """

    __slots__ = ("_batches", "_begun", "_name")

    def __init__(
        self, number: int, batches: Sequence[Batch], name: Callable[[int, str], str], transfer: Transfer
    ) -> None:
        written = sum(batch.num_bytes for batch in batches if batch.write)
        super().__init__(number, transfer, direct=written <= _DIRECT_BYTES)
        self._batches = batches
        self._name = name
        self._begun = 0

    def begin_piece(self, most_bytes: int) -> tuple[int, int]:
        name = self._begun
        self._begun += 1
        self.all_begun = self._begun == len(self._batches)
        batch = self._batches[name]
        return name, batch.num_bytes + len(batch.body)

    def frame(self, name: int, num_bytes: int) -> Frame:
        batch = self._batches[name]
        kind, buffers = (Kind.PUT_LIST, (batch.gather(),)) if batch.write else (Kind.GET_LIST, ())
        return Frame(kind, name, self.number, batch.body, buffers)

    def land(self, name: int, head: FrameHead) -> list[memoryview]:
        return []

    def place(self, frame: Frame, num_bytes: int) -> bool:
        batch = self._batches[frame.reply]
        if batch.write:
            return True
        if len(frame.buffers) != 1 or isinstance(frame.buffers, RefusedBuffers):
            return False
        return batch.scatter(frame.buffers[0])

    def problem(self, frame: Frame) -> str:
        problem = parse_problem(frame.body)
        batch = self._batches[frame.reply] if frame.reply < len(self._batches) else None
        if batch is None or problem.piece is None or problem.piece >= len(batch.numbers):
            return problem.why
        return self._name(batch.numbers[problem.piece], problem.why)
