"""Long pieces of a pickle, beside its body: `bytes`, `bytearray`, `str`, and all else that a pickler writes at length.

The pieces are the last buffers; the end of the body says where they belong. A pickle ends with a dot, a body with
pieces does not.
"""

from __future__ import annotations

import io
import itertools
import pickle
import struct
from collections.abc import Sequence
from typing import Any

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer

__all__ = ["MAX_PIECES", "MIN_PIECE_BYTES", "PieceReader", "PieceWriter", "has_pieces"]

MIN_PIECE_BYTES = 256 << 10
"""Pieces of a pickle of at least this size travel beside the body. The pickler hands over objects from 64 KiB on as
they are, and all else in pieces of up to 128 KiB, which are not worth an entry in the frame's table."""

MAX_PIECES = MAX_BUFFERS // 2
"""Limit on the pieces of a pickle; the other buffers of a frame are for types that give buffers to pickle."""

_MAX_SMALL_BYTES = 4 << 20
"""Smaller pieces that add up to this are a piece beside the body, too, as a body has a limit."""

_CUTS_END = b"\xff"
_NUM_CUTS = struct.Struct("<I")


def has_pieces(body: Buffer) -> bool:
    """Tell whether *body* is not a whole pickle."""
    return body[-1:] == _CUTS_END


class PieceWriter:
    """Takes what a pickler writes."""

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._small = io.BytesIO()
        self._num_long = 0

    def write(self, data: Buffer) -> None:
        """Take the next piece."""
        if len(data) >= MIN_PIECE_BYTES and self._num_long < MAX_PIECES:
            self._flush()
            # A memoryview is the pickler's, of a string's memory.
            self._add(bytes(data) if type(data) is memoryview else data)
        elif self._small.write(data) and self._small.tell() >= _MAX_SMALL_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._small.tell():
            self._add(self._small.getvalue())
            self._small = io.BytesIO()

    def _add(self, piece: Buffer) -> None:
        self._pieces.append(piece)
        self._num_long += len(piece) >= MIN_PIECE_BYTES

    def take(self) -> tuple[bytes, list[Buffer]]:
        """Return the body, and the pieces beside it."""
        if not self._pieces:
            return self._small.getvalue(), []
        self._flush()
        short: list[Buffer] = []
        long: list[Buffer] = []
        cuts: list[int] = []
        body_bytes = 0
        for piece in self._pieces:
            if len(piece) < MIN_PIECE_BYTES or len(long) == MAX_PIECES:
                short.append(piece)
                body_bytes += len(piece)
            else:
                cuts.append(body_bytes)
                long.append(memoryview(piece))
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
        data = bytearray(num)
        return bytes(memoryview(data)[: self.readinto(data)])

    def readline(self) -> bytes:
        """Read a line, which pickles of this protocol hold for a few rare types only."""
        line = bytearray()
        while (byte := self.read(1)) and byte != b"\n":
            line += byte
        return bytes(line + byte)
