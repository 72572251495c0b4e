"""Orders to a proc to combine the answers to a cast on their way up, and the notes that hold the results.

An order holds the caller's functions and the answers to combine, both opaque to the agent that sends it. The parser is
total: any bytes give an `Order` or a `FrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.casts import Note, NoteKind, pack_notes, parse_notes
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["Order", "content_of", "pack_order", "pack_span", "parse_order", "span_of"]

_SIZE = struct.Struct("<I")
_SPANNING = frozenset({NoteKind.PARTIAL, NoteKind.VOID})


@dataclass(frozen=True, slots=True)
class Order:
    """Answers that a proc is to combine.

    Attributes:
        functions: identity, combine and merge, see `actor.casts.reduction.Folding`.
        parts: RESULT and PARTIAL notes, in the order of their places, without gaps.
    """

    origin: int
    number: int
    functions: Buffer
    parts: Sequence[Note]


def pack_span(
    tag: NoteKind, key: tuple[int, int], span: tuple[int, int], body: Buffer = b"", buffers: Sequence[Buffer] = ()
) -> Note:
    """Make a note about the places of *span*, a half-open interval.

    Args:
        key: sender and number of the cast.
    """
    return Note(tag, *key, span[0], b"".join((_SIZE.pack(span[1]), body)), buffers)


def span_of(note: Note) -> tuple[int, int]:
    """Return the places that a note is about, as a half-open interval.

    Raises:
        FrameError: the note is malformed.
    """
    if note.tag not in _SPANNING:
        return note.place, note.place + 1
    end = _SIZE.unpack_from(note.body)[0] if len(note.body) >= _SIZE.size else 0
    if end <= note.place:
        raise FrameError(f"a note about the places from {note.place} up to {end}")
    return note.place, end


def content_of(note: Note) -> Buffer:
    """Return the body of a note without the prefix of `pack_span`."""
    return memoryview(note.body)[_SIZE.size :] if note.tag in _SPANNING else note.body


def pack_order(order: Order) -> Frame:
    """Render *order*; bodies are copied, buffers are not."""
    notes = pack_notes(order.parts)
    body = b"".join((_SIZE.pack(len(order.functions)), order.functions, notes.body))
    return Frame(Kind.REDUCE, order.origin, order.number, body, notes.buffers)


def parse_order(frame: Frame) -> Order:
    """Read what `pack_order` rendered.

    Raises:
        FrameError: *frame* is not an order.
    """
    view = memoryview(frame.body)
    size = _SIZE.unpack_from(view)[0] if len(view) >= _SIZE.size else len(view)
    begin = _SIZE.size + size
    if begin > len(view):
        raise FrameError(f"an order to combine answers ends early: {len(view)} bytes")
    parts = parse_notes(Frame(Kind.NOTES, 0, 0, view[begin:], frame.buffers))
    for part in parts:
        span_of(part)
    if not parts or any(part.tag not in (NoteKind.RESULT, NoteKind.PARTIAL) for part in parts):
        raise FrameError("an order to combine notes other than answers")
    return Order(frame.dest, frame.reply, view[_SIZE.size : begin], parts)
