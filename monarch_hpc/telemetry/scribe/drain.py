"""Takes the records of a process out of its memory before later ones overwrite them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, RECORDS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.layout import CAST, OPEN, RECORD_BYTES, RecordKind, Ring
from monarch_hpc.telemetry.reading import Memory, read_header, read_u64
from monarch_hpc.telemetry.scribe.spool import Cursors

__all__ = ["Drain", "Taken"]

_RINGS = {EVENTS: layout.EVENTS, METRICS: layout.METRICS, SPANS: layout.SPANS, TRANSFERS: layout.TRANSFERS}
_CALLS = frozenset({RecordKind.HANDLED, RecordKind.SENT})
_SENT = Ring(layout.SENT_AT, layout.NUM_SENT, 0)
_SENT_CALLS = ((SENDS, 0), (CASTS, CAST))
"""Kinds of calls in the table of sent calls, and the bit in their numbers."""
_CHUNK = 512
"""Places of that table that are read at a time: a look at all of it takes as long as thousands of records."""
_FEW = 256
"""Numbers of calls that have not been answered for which the table is read place by place."""
_THOROUGH = 16
"""Rounds after which all of the table is read: where calls have overwritten casts, or casts calls, new ones may be
behind places in which nothing is new."""
_DUR, _SEQ = 5, 7
"""Words of a record."""
_KIND = 4
"""Half-words of a record."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Records that were taken.

    Args:
        what: where they were, see `kept.chunks`.
        num_lost: records that were overwritten before.
        part: the number of new records, as a part of the places that they can have.
    """

    what: str
    records: bytes
    num_lost: int
    part: float


class Drain:
    """The records of one process.

    Args:
        memory: its memory.
        cursors: how far earlier ones have been taken.
    """

    def __init__(self, memory: Memory, cursors: Cursors) -> None:
        self._memory = memory
        self._cursors = cursors
        self._incomplete: dict[str, int] = {}
        self._num_takes = 0
        self._open_spans: set[int] = set()
        self._open_calls: dict[str, set[int]] = {SENDS: set(), CASTS: set()}
        if cursors.get(SPANS):  # an earlier helper has seen these begin
            self._take_ring(SPANS, 0, cursors[SPANS])

    def take(self, *, last: bool = False, only: Collection[str] = RECORDS) -> Iterator[Taken]:
        """Yield the records that have been completed since the last time; *last* is thorough, for the end.

        Args:
            only: where they are, see `kept.chunks`; always the same for one object.
        """
        if read_header(self._memory)[0]:
            return
        for what, ring in ((what, ring) for what, ring in _RINGS.items() if what in only):
            written = read_u64(self._memory, ring.cursor_at)
            before = self._cursors.get(what, 0)
            if written > before or (what == SPANS and self._open_spans):
                closed = self._take_closed() if what == SPANS else b""
                records, num_lost = self._take_ring(what, before, written)
                yield Taken(what, closed + records, num_lost, (written - before) / ring.num)
        self._num_takes += 1
        if SENDS in only:
            yield from self._take_sent(thorough=last or self._num_takes % _THOROUGH == 0)

    def _take_ring(self, what: str, before: int, written: int) -> tuple[bytes, int]:
        ring = _RINGS[what]
        first = max(before, written - ring.num) + 1
        if written < first:
            return b"", 0
        data = self._read_places(ring, first, written)
        # Those that were overwritten meanwhile; the next number may be on its way.
        oldest = read_u64(self._memory, ring.cursor_at) + 2 - ring.num
        if first < oldest:
            data = data[(oldest - first) * RECORD_BYTES :]
            first = min(oldest, written + 1)
        words = memoryview(data).cast("q")
        numbers = words[_SEQ::8].tolist()
        if numbers == list(range(first, written + 1)):
            self._cursors[what] = written
            return self._without_others(what, first, data), first - 1 - before
        records = bytearray()
        num_lost, end = first - 1 - before, written
        for index, number in enumerate(numbers):
            expected = first + index
            if number != expected:
                if number == 0 and self._incomplete.get(what) != expected:
                    # A thread has taken the number and is about to write the record; or it was killed there.
                    self._incomplete[what], end = expected, expected - 1
                    break
                num_lost += 1
                continue
            at = index * RECORD_BYTES
            if what == SPANS and words[index * 8 + _DUR] == OPEN:
                self._open_spans.add(number)
            elif what != EVENTS or int.from_bytes(data[at + 8 : at + 10], "little") in _CALLS:
                records += data[at : at + RECORD_BYTES]
        self._cursors[what] = end
        return bytes(records), num_lost

    def _without_others(self, what: str, first: int, data: bytes) -> bytes:
        """Complete records, the first of which has number *first*: calls that have ended, and spans that have."""
        words = memoryview(data).cast("q")
        others: list[int] = []
        if what == SPANS:
            others = [place for place, dur in enumerate(words[_DUR::8].tolist()) if dur == OPEN]
            self._open_spans.update(first + place for place in others)
        elif what == EVENTS:
            kinds = words.cast("B").cast("H")[_KIND::32].tolist()
            others = [] if _CALLS.issuperset(kinds) else [at for at, kind in enumerate(kinds) if kind not in _CALLS]
        if not others:
            return data
        starts = [0, *((place + 1) * RECORD_BYTES for place in others)]
        ends = [*(place * RECORD_BYTES for place in others), len(data)]
        return b"".join(data[start:end] for start, end in zip(starts, ends, strict=True))

    def _read_places(self, ring: Ring, first: int, last: int) -> bytes:
        start, num = first & (ring.num - 1), last - first + 1
        head = min(num, ring.num - start)
        data = self._memory(ring.at + start * RECORD_BYTES, head * RECORD_BYTES)
        return data + (self._memory(ring.at, (num - head) * RECORD_BYTES) if head < num else b"")

    def _take_closed(self) -> bytes:
        """The spans that have ended since they were seen open, in their place."""
        closed = bytearray()
        for number in sorted(self._open_spans):
            record = self._read_places(layout.SPANS, number, number)
            words = memoryview(record).cast("q")
            if words[_SEQ] != number or words[_DUR] != OPEN:
                self._open_spans.discard(number)
                closed += record if words[_SEQ] == number else b""  # else it is recorded once more at its end
        return bytes(closed)

    def _take_sent(self, *, thorough: bool) -> Iterator[Taken]:
        starts = {bit: max(self._cursors.get(what, 0), bit) for what, bit in _SENT_CALLS}
        old: dict[int, bytes] | None = None
        for what, bit in _SENT_CALLS:
            before, waiting = starts[bit], self._open_calls[what]
            records, end, found = self._read_new(before, starts, thorough=thorough)
            last = max(end, max(found, default=0))
            first = max(end, last - layout.NUM_SENT)
            num_lost = first - end
            earlier = sorted(waiting)
            read = self._read_one_by_one if len(earlier) < _FEW else self._read_all_sent()
            waiting.update(range(first + 1, last + 1))
            for number in (*earlier, *range(first + 1, last + 1)):
                record = found.get(number) or read(number)
                if not record:
                    old = self._read_old() if old is None else old
                    record = old.get(number, b"")
                if not record:
                    waiting.discard(number)
                    num_lost += 1
                elif memoryview(record).cast("q")[_DUR] != OPEN:
                    waiting.discard(number)
                    records += record
            if last > before or records:
                self._cursors[what] = max(before, last)
                yield Taken(what, bytes(records), num_lost, max(last - before, 0) / layout.NUM_SENT)

    def _read_new(
        self, before: int, starts: Mapping[int, int], *, thorough: bool
    ) -> tuple[bytearray, int, dict[int, bytes]]:
        """Read the sent calls behind number *before*.

        Args:
            starts: the last number before, of calls and of casts, which share the table.
            thorough: read all of the table, and not only up to the first places in which nothing is new.

        Returns:
            The records up to the first call that is not answered; the number of the last of these; and other new
            records of this kind, by number.
        """
        records, end = bytearray(), before
        found: dict[int, bytes] = {}
        for first in range(before + 1, before + 1 + layout.NUM_SENT, _CHUNK):
            data = self._read_places(_SENT, first, first + _CHUNK - 1)
            words = memoryview(data).cast("q")
            numbers = words[_SEQ::8].tolist()
            num = 0
            if end == first - 1:
                expected = list(range(first, first + _CHUNK))
                num = bisect_left(expected, True, key=lambda number: numbers[number - first] != number)
                if numbers[:num] != expected[:num]:
                    num = 0
                durations = words[_DUR::8].tolist()
                if OPEN in durations[:num]:
                    num = durations.index(OPEN)
                records += data[: num * RECORD_BYTES]
                end += num
            if num == _CHUNK:
                continue
            new: list[int] = []
            if max(numbers[num:]) > starts[0]:
                new = [at for at in range(num, _CHUNK) if numbers[at] > starts[numbers[at] & CAST]]
            for index in new:
                if numbers[index] & CAST == before & CAST and numbers[index] > end:
                    found[numbers[index]] = data[index * RECORD_BYTES : (index + 1) * RECORD_BYTES]
            if not new and not thorough:
                break
        return records, end, found

    def _read_one_by_one(self, number: int) -> bytes:
        return _numbered(self._read_places(_SENT, number, number), number)

    def _read_all_sent(self) -> Callable[[int], bytes]:
        table = self._memory(layout.SENT_AT, layout.NUM_SENT * RECORD_BYTES)

        def read(number: int) -> bytes:
            at = (number & (layout.NUM_SENT - 1)) * RECORD_BYTES
            return _numbered(table[at : at + RECORD_BYTES], number)

        return read

    def _read_old(self) -> dict[int, bytes]:
        """The unanswered calls whose places in the table of sent calls others have taken, by number."""
        table = self._memory(layout.OLD_AT, layout.NUM_OLD * RECORD_BYTES)
        numbers = memoryview(table).cast("q")[_SEQ::8].tolist()
        return {
            number: table[place * RECORD_BYTES : (place + 1) * RECORD_BYTES]
            for place, number in enumerate(numbers)
            if number
        }


def _numbered(record: bytes, number: int) -> bytes:
    """A record, if it has this number; else nothing."""
    return record if memoryview(record).cast("q")[_SEQ] == number else b""
