"""Writes the rings of spans and of transfers of memory."""

from __future__ import annotations

import itertools
import mmap
from _thread import allocate_lock, get_native_id

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import FAILED, OPEN, RECORD, RECORD_BYTES, RecordKind

__all__ = ["Rings", "SpanRecord"]

_SPAN = int(RecordKind.SPAN)  # an enum member costs ten times a global
_FLAGS_AT = 10  # in bytes
_DUR, _SEQ = 5, 7  # in words of 8 bytes

_pack = RECORD.pack_into
_now = monotonic_ns


class Rings:
    """Writes records of spans and transfers; for any thread."""

    def __init__(self, memory: mmap.mmap, words: memoryview[int]) -> None:
        self._memory = memory
        self._words = words
        self._ending = allocate_lock()
        self._next_span, self._next_transfer = (itertools.count(1).__next__ for _ in range(2))

    def span(self, mark: int, name: int, tags: int, parent: int) -> SpanRecord:
        """Record the start of a span; *parent* is the number of the span around it, 0 for none."""
        number = self._next_span()
        record = SpanRecord(self, (_now(), _SPAN, 0, mark, name, tags, number, parent, OPEN, get_native_id()))
        self._put_span(number, record.fields)
        return record

    def end_span(self, record: SpanRecord, *, failed: bool) -> None:
        """Record the end of a span: in its place, or as a new record if so many have begun since that it is gone."""
        number, flags = record.number, FAILED if failed else 0
        duration_ns = _now() - record.fields[0]
        at = layout.SPANS.at + (number & (layout.SPANS.num - 1)) * RECORD_BYTES
        word = at >> 3
        with self._ending:
            if self._words[word + _SEQ] == number:
                self._memory[at + _FLAGS_AT] = flags
                self._words[word + _DUR] = duration_ns
                return
        t, kind, _, *some, _, thread = record.fields
        self._put_span(self._next_span(), (t, kind, flags, *some, duration_ns, thread))

    def _put_span(self, index: int, fields: tuple[int, ...]) -> None:
        ring = layout.SPANS
        _pack(self._memory, ring.at + (index & (ring.num - 1)) * RECORD_BYTES, *fields, index)
        self._words[ring.cursor_at >> 3] = index

    def transfer(
        self, flags: int, path: int, peer: int, num: int, num_bytes: int, duration_ns: int, *, write: bool
    ) -> None:
        """Record a transfer of memory that has ended; see `layout` for the meaning of the numbers."""
        ring = layout.TRANSFERS
        index = self._next_transfer()
        at = ring.at + (index & (ring.num - 1)) * RECORD_BYTES
        fields = _now() - duration_ns, RecordKind.MOVED, flags, 0, path, peer, num, num_bytes, duration_ns, int(write)
        _pack(self._memory, at, *fields, index)
        self._words[ring.cursor_at >> 3] = index


class SpanRecord:
    """The record of a span that has begun.

    Attributes:
        fields: those of the record, without its last.
    """

    __slots__ = ("_rings", "fields")

    def __init__(self, rings: Rings, fields: tuple[int, ...]) -> None:
        self._rings = rings
        self.fields = fields

    @property
    def number(self) -> int:
        """The number of the span in its process."""
        return self.fields[6]

    def end(self, *, failed: bool) -> None:
        """Record that it has ended, and whether by an exception."""
        self._rings.end_span(self, failed=failed)
