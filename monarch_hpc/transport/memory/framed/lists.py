"""Lists of pieces of memory that one frame reads or writes, and the data of all of them, joined. Pure.

A list names each memory once: u32 number of memories, u32 number of pieces, the identifiers, then for each piece u32
place of its memory, u64 offset and u64 number of bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.memory.key import ID_BYTES, host_view
from monarch_hpc.transport.memory.moves import Move
from monarch_hpc.wire.frames import Buffer

__all__ = [
    "LIST_BYTES",
    "MAX_PIECES",
    "Batch",
    "ListProblem",
    "ListedPiece",
    "pack_list",
    "pack_problem",
    "parse_list",
    "parse_problem",
    "plan_batches",
    "scatter",
]

LIST_BYTES = 4 * 2**20
"""Upper bound on the data of one list: it is copied, at its owner and here, within about a millisecond."""

MAX_PIECES = 65_536
"""Upper bound on the pieces of one list: their table has 1.3 MB."""

_HEAD = struct.Struct("<II")
_PIECE_BYTES = 4 + 8 + 8
_PROBLEM = struct.Struct("<I")
_NO_PIECE = 2**32 - 1


class ListedPiece(NamedTuple):
    """A piece of a registered memory."""

    identifier: bytes
    offset: int
    num_bytes: int


def pack_list(pieces: Sequence[ListedPiece]) -> bytes:
    """Render *pieces* for a frame."""
    memories = {identifier: place for place, identifier in enumerate(dict.fromkeys(piece[0] for piece in pieces))}
    return b"".join(
        (
            _HEAD.pack(len(memories), len(pieces)),
            *memories,
            array("I", [memories[piece[0]] for piece in pieces]).tobytes(),
            array("Q", [piece[1] for piece in pieces]).tobytes(),
            array("Q", [piece[2] for piece in pieces]).tobytes(),
        )
    )


def parse_list(body: Buffer) -> list[ListedPiece]:
    """Read what `pack_list` rendered.

    Raises:
        FrameError: *body* is something else, or a list over the limits.
    """
    num_memories, num = _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (0, 0)
    if not 0 < num_memories <= num <= MAX_PIECES:
        raise FrameError(f"a list of {num} pieces of {num_memories} memories; at most {MAX_PIECES} pieces")
    places_at = _HEAD.size + ID_BYTES * num_memories
    if len(body) != places_at + _PIECE_BYTES * num:
        raise FrameError(f"a list of {num} pieces of {num_memories} memories in {len(body)} bytes")
    identifiers = [bytes(body[at : at + ID_BYTES]) for at in range(_HEAD.size, places_at, ID_BYTES)]
    offsets_at, sizes_at = places_at + 4 * num, places_at + 12 * num
    places = array("I", bytes(body[places_at:offsets_at]))
    offsets, sizes = array("Q", bytes(body[offsets_at:sizes_at])), array("Q", bytes(body[sizes_at:]))
    if max(places) >= num_memories:
        raise FrameError(f"a piece of memory {max(places)} in a list of {num_memories} memories")
    if sum(sizes) > LIST_BYTES:
        raise FrameError(f"a list of pieces of {sum(sizes)} bytes, at most {LIST_BYTES}")
    return list(map(ListedPiece, map(identifiers.__getitem__, places), offsets, sizes))


class ListProblem(NamedTuple):
    """Why a list was refused: *piece* is the place in it of the piece at fault; None if all of it is."""

    piece: int | None
    why: str


def pack_problem(problem: ListProblem) -> bytes:
    """Render *problem* for an answer."""
    return _PROBLEM.pack(_NO_PIECE if problem.piece is None else problem.piece) + problem.why.encode()


def parse_problem(body: Buffer) -> ListProblem:
    """Read what `pack_problem` rendered; total, since an answer of any bytes ends its request."""
    data = bytes(body)
    piece = _PROBLEM.unpack_from(data)[0] if len(data) >= _PROBLEM.size else _NO_PIECE
    return ListProblem(None if piece == _NO_PIECE else piece, data[_PROBLEM.size :].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces that travel in one frame.

    Attributes:
        numbers: the place of each in the list that the user made.
        views: local memory of each.
        num_bytes: of all of them.
        body: the list, for the frame.
    """

    write: bool
    numbers: Sequence[int]
    views: Sequence[memoryview]
    num_bytes: int
    body: bytes

    def gather(self) -> bytes:
        """The data of all pieces."""
        return b"".join(self.views)

    def scatter(self, data: Buffer) -> bool:
        """Copy data that has arrived to its pieces; False if it has another size, and nothing was copied."""
        if len(data) != self.num_bytes:
            return False
        scatter(data, self.views)
        return True


def scatter(data: Buffer, targets: Iterable[memoryview]) -> None:
    """Copy *data* to *targets*, one after the other, which have as many bytes together."""
    view, at = memoryview(data), 0
    for target in targets:
        end = at + len(target)
        target[:] = view[at:end]
        at = end


def plan_batches(moves: Iterable[tuple[int, Move]], max_pieces: int, max_bytes: int) -> Iterator[Batch]:
    """Distribute transfers over as few frames as possible; reads and writes apart, each in order.

    Args:
        moves: each with its place in the user's list; none has more than *max_bytes*.
        max_pieces: of a frame.
        max_bytes: of a frame, with its list.

    Raises:
        ValueError: local memory is not contiguous, or is read-only although a piece is to be read into it.
    """
    filling: dict[bool, _Filling] = {}
    for number, move in moves:
        one = filling.get(move.write)
        if one is not None and not one.has_room(move, max_pieces, max_bytes):
            yield one.batch(write=move.write)
            one = None
        if one is None:
            one = filling[move.write] = _Filling()
        one.add(number, move)
    for write, one in filling.items():
        yield one.batch(write=write)


class _Filling:
    """A batch that is being filled."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._views: list[memoryview] = []
        self._pieces: list[ListedPiece] = []
        self._num_bytes = 0

    def has_room(self, move: Move, max_pieces: int, max_bytes: int) -> bool:
        num = len(self._pieces) + 1
        return num <= max_pieces and self._num_bytes + move.buffer.nbytes + num * (_PIECE_BYTES + ID_BYTES) <= max_bytes

    def add(self, number: int, move: Move) -> None:
        view = host_view(move.buffer, writable=not move.write)
        self._numbers.append(number)
        self._views.append(view)
        self._pieces.append(ListedPiece(move.identifier, move.offset, view.nbytes))
        self._num_bytes += view.nbytes

    def batch(self, *, write: bool) -> Batch:
        return Batch(write, tuple(self._numbers), tuple(self._views), self._num_bytes, pack_list(self._pieces))
