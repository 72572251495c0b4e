"""Long pieces of a pickle, beside its body: `bytes`, `bytearray`, `str`, and all else that a pickler writes at length.

Each `bytes` and `bytearray` becomes a buffer of its own, which can be received into such an object, and is not copied
then. Other pieces are the last buffers; the end of the body says where they belong. A pickle ends with a dot, a body
with pieces does not.
"""

from __future__ import annotations

import io
import itertools
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer

__all__ = ["MAX_PIECES", "MIN_PIECE_BYTES", "PieceReader", "PieceWriter", "as_bytearray", "has_pieces", "put_beside"]

MIN_PIECE_BYTES = 256 << 10
"""Pieces of a pickle of at least this size travel beside the body. The pickler hands over objects from 64 KiB on as
they are, and all else in pieces of up to 128 KiB, which are not worth an entry in the frame's table."""

MAX_PIECES = MAX_BUFFERS // 4
"""Limit on the pieces of a pickle; the other buffers of a frame are for types that give buffers to pickle."""

_MAX_LONG = MAX_PIECES // 2
"""Limit on the objects among them; further ones are joined with what is between them."""

_MAX_SMALL_BYTES = 4 << 20
"""Smaller pieces that add up to this are a piece beside the body, too, as a body has a limit."""

_NUM_EQUAL = 16
"""Number of such pieces of one size; then the size doubles. 16 TiB have 272 of them."""

_CUTS_END = b"\xff"
_NUM_CUTS = struct.Struct("<I")


def has_pieces(body: Buffer) -> bool:
    """Tell whether *body* is not a whole pickle."""
    return body[-1:] == _CUTS_END


def as_bytearray(buffer: Buffer) -> bytearray:
    """Return *buffer* itself if it is a `bytearray`, else a copy."""
    return buffer if type(buffer) is bytearray else bytearray(buffer)


def _call_of(module: str, name: str) -> bytes:
    """The opcodes that call a function with the next buffer."""
    names = b"".join(pickle.SHORT_BINUNICODE + bytes([len(word)]) + word.encode() for word in (module, name))
    return names + pickle.STACK_GLOBAL + pickle.NEXT_BUFFER + pickle.TUPLE1 + pickle.REDUCE


_CALLS = {bytes: _call_of("builtins", "bytes"), bytearray: _call_of(__name__, as_bytearray.__name__)}
"""The calls that stand in the pickle for objects in buffers. `bytes` of a `bytes` is that one, not a copy."""


def _opening(kind: type, num_bytes: int) -> bytes:
    """The opcode and the length that a pickler writes before the contents of a long object."""
    if kind is bytearray:
        return pickle.BYTEARRAY8 + struct.pack("<Q", num_bytes)
    if num_bytes >> 32:
        return pickle.BINBYTES8 + struct.pack("<Q", num_bytes)
    return pickle.BINBYTES + struct.pack("<I", num_bytes)


class PieceWriter:
    """Takes what a pickler writes.

    Args:
        keep: puts an object among the buffers that types give to pickle, in their order; False if there is no room.
    """

    def __init__(self, keep: Callable[[bytes | bytearray], bool]) -> None:
        self._keep = keep
        self._pieces: list[Buffer] = []
        self._small = io.BytesIO()
        self._small_bytes = _MAX_SMALL_BYTES
        self._num_long = 0
        self._num_joined = 0

    def write(self, data: Buffer | pickle.PickleBuffer) -> None:
        """Take the next piece; from Python's own pickler a buffer comes as it is where it is not put aside."""
        if type(data) is pickle.PickleBuffer:
            data = data.raw()
            if data.nbytes >= MIN_PIECE_BYTES and self._num_long < _MAX_LONG:
                self._add_long(data)
                return
        if len(data) >= MIN_PIECE_BYTES:
            if type(data) is not memoryview and self._put_beside(data):
                return
            if self._num_long < _MAX_LONG:
                # A memoryview is the pickler's, of a string's memory.
                self._add_long(bytes(data) if type(data) is memoryview else data)
                return
        if self._small.tell() >= self._small_bytes:
            self._flush()
        self._small.write(data)

    def _add_long(self, data: Buffer) -> None:
        self._flush()
        self._num_long += 1
        self._pieces.append(data)

    def _put_beside(self, data: bytes | bytearray) -> bool:
        """Make an object a buffer, and replace its opening, which has been written, by a call."""
        opening = _opening(type(data), len(data))
        begin = self._small.tell() - len(opening)
        if begin < 0 or self._small.getbuffer()[begin:] != opening or not self._keep(data):
            return False
        self._small.seek(begin)
        self._small.truncate()
        self._small.write(_CALLS[type(data)])
        return True

    def _flush(self) -> None:
        size = self._small.tell()
        if size:
            self._pieces.append(self._small.getvalue())
            self._small = io.BytesIO()
            if size >= MIN_PIECE_BYTES:
                self._num_joined += 1
                # Growing, so that there are few of them however long the pickle is.
                if not self._num_joined % _NUM_EQUAL:
                    self._small_bytes *= 2

    def take(self) -> tuple[bytes, list[Buffer]]:
        """Return the body, and the pieces beside it."""
        if not self._pieces and self._small.tell() < _MAX_SMALL_BYTES:
            return self._small.getvalue(), []
        self._flush()
        return _split(self._pieces)


def put_beside(pickled: bytes) -> tuple[bytes, list[Buffer]]:
    """Return a whole pickle as a body and the pieces beside it, if it is too long for a body."""
    return (pickled, []) if len(pickled) < _MAX_SMALL_BYTES else _split([pickled])


def _split(pieces: Sequence[Buffer]) -> tuple[bytes, list[Buffer]]:
    short: list[Buffer] = []
    long: list[Buffer] = []
    cuts: list[int] = []
    body_bytes = 0
    for piece in pieces:
        if len(piece) < MIN_PIECE_BYTES:
            short.append(piece)
            body_bytes += len(piece)
        else:
            cuts.append(body_bytes)
            long.append(piece if type(piece) is bytes else memoryview(piece))
    if not cuts:
        return b"".join(short), []
    tail = struct.pack(f"<{len(cuts)}Q", *cuts) + _NUM_CUTS.pack(len(cuts)) + _CUTS_END
    return b"".join([*short, tail]), long


class PieceReader:
    """A pickle whose long pieces came beside its body, as a file for the unpickler."""

    def __init__(self, body: memoryview, buffers: Sequence[Buffer]) -> None:
        end = len(body) - len(_CUTS_END) - _NUM_CUTS.size
        num = _NUM_CUTS.unpack_from(body, end)[0] if end >= 0 and body[-1:] == _CUTS_END else 0
        if not 0 < num <= len(buffers) or end < 8 * num:
            raise pickle.UnpicklingError("neither a pickle nor a body with pieces of one")
        begin = end - 8 * num
        cuts = [0, *struct.unpack_from(f"<{num}Q", body, begin), begin]
        if sorted(cuts) != cuts:
            raise pickle.UnpicklingError("pieces out of order")
        between = [body[first:last] for first, last in itertools.pairwise(cuts)]
        long = [memoryview(piece).cast("B") for piece in buffers[len(buffers) - num :]]
        pairs = itertools.zip_longest(between, long)
        self._pieces = [piece for pair in pairs for piece in pair if piece is not None]
        self._at = 0
        self.num_long = num

    def readinto(self, target: Any) -> int:
        """Fill *target* as far as possible."""
        view, done = memoryview(target).cast("B"), 0
        while done < len(view) and self._at < len(self._pieces):
            piece = self._pieces[self._at]
            num = min(len(piece), len(view) - done)
            view[done : done + num] = piece[:num]
            self._pieces[self._at] = piece[num:]
            self._at += num == len(piece)
            done += num
        return done

    def read(self, num: int) -> bytes:
        """Read up to *num* bytes."""
        if self._at < len(self._pieces) and len(self._pieces[self._at]) == num:
            piece = self._pieces[self._at]
            self._at += 1
            whole = piece.obj
            return whole if type(whole) is bytes and len(whole) == num else bytes(piece)
        data = bytearray(num)
        return bytes(memoryview(data)[: self.readinto(data)])

    def readline(self) -> bytes:
        """Read a line, which pickles of this protocol hold for a few rare types only."""
        line = bytearray()
        while (byte := self.read(1)) and byte != b"\n":
            line += byte
        return bytes(line + byte)
