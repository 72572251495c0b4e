"""Serializes user values: pickle protocol 5, with large buffers beside the body.

cloudpickle pickles classes and functions of `__main__` and notebooks by value; everything importable is pickled by
name. Two kinds of buffers travel beside the body, not copied here:

- buffers that a type gives to pickle, such as those of NumPy arrays; the value that is read shares the memory in which
  they arrive;
- long pieces of the pickle itself, such as `bytes`, `bytearray`, `str` and the storage of torch tensors. They are the
  last buffers; the end of the body then says where they belong. A pickle ends with a dot, a body with pieces does not.
"""

from __future__ import annotations

import io
import itertools
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import cloudpickle

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer

__all__ = ["MIN_BUFFER_BYTES", "MIN_PIECE_BYTES", "dumps", "loads"]

MIN_BUFFER_BYTES = 4096
"""Smaller buffers stay in the body: a copy is cheaper than an entry in the frame's table."""

MIN_PIECE_BYTES = 256 << 10
"""Pieces of a pickle of at least this size travel beside the body. The pickler hands over objects from 64 KiB on as
they are, and all else in pieces of up to 128 KiB, which are not worth an entry in the frame's table."""

_MAX_SMALL_BYTES = 4 << 20
"""Smaller pieces that add up to this are a piece beside the body, too, as a body has a limit."""

_MAX_PIECES = MAX_BUFFERS // 2

_PLAIN = frozenset({int, float, bool, type(None)})
_TEXT = frozenset({str, bytes})

_CUTS_END = b"\xff"
_NUM_CUTS = struct.Struct("<I")


class _Pieces:
    """What a pickler writes."""

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._small = io.BytesIO()
        self._num_long = 0

    def write(self, data: Buffer) -> None:
        """Take the next piece."""
        if len(data) >= MIN_PIECE_BYTES and self._num_long < _MAX_PIECES:
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
        for piece in self._pieces:
            if len(piece) < MIN_PIECE_BYTES or len(long) == _MAX_PIECES:
                short.append(piece)
            else:
                cuts.append(sum(map(len, short)))
                long.append(memoryview(piece))
        if not cuts:
            return b"".join(short), []
        tail = struct.pack(f"<{len(cuts)}Q", *cuts) + _NUM_CUTS.pack(len(cuts)) + _CUTS_END
        return b"".join([*short, tail]), long


class _Reader:
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


def dumps(value: Any) -> tuple[bytes, list[Buffer]]:
    """Serialize *value*; return the body and the buffers that travel beside it, not copied.

    Raises:
        Exception: whatever the value's own pickling raises.
    """
    if _is_plain((value,)):
        return pickle.dumps(value, 5), []
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Tell pickle whether to copy the buffer into the body."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < MIN_BUFFER_BYTES or len(buffers) == MAX_BUFFERS - _MAX_PIECES:
            return True
        buffers.append(raw)
        return False

    pieces = _Pieces()
    cloudpickle.Pickler(pieces, protocol=5, buffer_callback=keep).dump(value)
    body, beside = pieces.take()
    return body, buffers + beside


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> object:
    """Rebuild what `dumps` serialized; arrays share the memory of *buffers*.

    Only for data of a peer that proved the allocation's key: loading runs code that the peer chooses.
    """
    if body[-1:] == b"." or not buffers:
        return pickle.loads(body, buffers=buffers)
    reader = _Reader(memoryview(body), buffers)
    return pickle.Unpickler(reader, buffers=buffers[: len(buffers) - reader.num_long]).load()


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether plain pickle gives the same result as cloudpickle, at a tenth of its cost, and no long piece."""
    for value in values:  # a generator costs three times as much
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind in _TEXT:
            if len(value) >= MIN_PIECE_BYTES:
                return False
        elif kind is not tuple or not _is_plain(value):
            return False
    return True
