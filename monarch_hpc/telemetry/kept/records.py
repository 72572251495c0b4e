"""Records of a process as arrays: out of its memory, all at once, and those of them that files have too.

With `columns` the door to numpy. A helper takes records with `scribe.drain`, which needs no libraries, and only those
that are new; a question wants all that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.layout import CAST, OPEN, RECORD_BYTES, RecordKind
from monarch_hpc.telemetry.reading import Memory, read_header, read_u64
from monarch_hpc.wire.tables import history

__all__ = [
    "RecordSource",
    "TakenRecords",
    "as_records",
    "by_table",
    "drop_empty",
    "numbers_of",
    "split_calls",
    "take_records",
    "unpack_records",
    "without",
]

_RECORD = np.dtype(
    [
        *(("t", "<u8"), ("kind", "<u2"), ("flags", "<u2"), ("actor", "<u4"), ("name", "<u4"), ("peer", "<u4")),
        *(("msg", "<u8"), ("bytes", "<u8"), ("dur", "<i8"), ("value", "<u8"), ("seq", "<u8")),
    ]
)
"""As `layout.RECORD`."""

_RINGS = {EVENTS: layout.EVENTS, METRICS: layout.METRICS, SPANS: layout.SPANS, TRANSFERS: layout.TRANSFERS}
_BITS = {SENDS: 0, CASTS: CAST}
"""Kinds of calls in the table of sent calls, and the bit in their numbers."""

_TABLES = {METRICS: "metrics", SPANS: "spans", TRANSFERS: "transfers", SENDS: "sends", CASTS: "sends"}
"""The tables of records, by where these are; events are of two."""


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Where records were written: there, each has its own number.

    Args:
        what: the ring or table in the memory of the process, see `chunks`.
    """

    run: str
    mesh: int
    rank: int
    pid: int
    what: str


@dataclass(frozen=True, slots=True)
class TakenRecords:
    """Records of one table that are in the memory of a process.

    Args:
        what: where they are, see `chunks`.
        records: an array.
        least: all that were written later have larger numbers.
    """

    table: str
    what: str
    records: Any
    least: int


def as_records(data: bytes) -> Any:
    """Return records of 64 bytes as an array."""
    return np.frombuffer(data, _RECORD)


def split_calls(records: Any, names: Collection[str]) -> list[tuple[str, Any]]:
    """Return the records of the ring of events for some tables: calls that were handled, and calls that were sent."""
    found = []
    for name, kind in ((history.HANDLED.name, RecordKind.HANDLED), (history.SENDS.name, RecordKind.SENT)):
        if name in names:
            chosen = records["kind"] == kind
            found.append((name, records if chosen.all() else records[chosen]))
    return found


def by_table(what: str, records: Any, names: Collection[str]) -> list[tuple[str, Any]]:
    """Return the records of some tables among those of one place."""
    if what == EVENTS:
        return split_calls(records, names)
    return [(_TABLES[what], records)] if _TABLES[what] in names else []


def drop_empty(records: bytes) -> bytes:
    """Return the records of a table that have been written."""
    made = as_records(records)
    written: bytes = made[made["seq"] != 0].tobytes()
    return written


def unpack_records(packed: bytes) -> bytes:
    """Return the records that `packing.pack_records` made *packed* of."""
    return np.frombuffer(packed, np.uint8).reshape(layout.RECORD_BYTES, -1).T.tobytes()


def numbers_of(records: Any) -> Any:
    """The numbers of records, as an array that no longer needs these."""
    return records["seq"].copy()


def without(records: Any, numbers: Sequence[Any]) -> Any:
    """Return the records that have none of some numbers, each an array of `numbers_of`."""
    if not numbers or not len(records):
        return records
    known = np.isin(records["seq"], numbers[0] if len(numbers) == 1 else np.concatenate(numbers))
    return records[~known] if known.any() else records


# ---- in the memory of a process ----


def take_records(memory: Memory, places: Collection[str], names: Collection[str]) -> tuple[list[TakenRecords], int]:
    """Return the complete records of some tables, and the number of those that later ones have overwritten.

    They are those that a `scribe.drain.Drain` takes that has taken none before.

    Args:
        places: where they are, see `chunks`.
        names: the tables.
    """
    if read_header(memory)[0]:
        return [], 0
    found, num_lost = [], 0
    parts = [part for what in _RINGS if what in places for part in _take_ring(memory, what)]
    if SENDS in places or CASTS in places:
        parts += _take_sent(memory)
    for what, records, least, lost in parts:
        num_lost += lost
        found += [TakenRecords(name, what, some, least) for name, some in by_table(what, records, names)]
    return found, num_lost


def _take_ring(memory: Memory, what: str) -> Iterator[tuple[str, Any, int, int]]:
    ring = _RINGS[what]
    written = read_u64(memory, ring.cursor_at)
    if not written:
        return
    first = max(written - ring.num, 0) + 1
    start, num = first & (ring.num - 1), written - first + 1
    head = min(num, ring.num - start)
    data = memory(ring.at + start * RECORD_BYTES, head * RECORD_BYTES)
    if head < num:
        data += memory(ring.at, (num - head) * RECORD_BYTES)
    # Those that were overwritten meanwhile; the next number may be on its way.
    oldest = max(read_u64(memory, ring.cursor_at) + 2 - ring.num, first)
    records = as_records(data)[oldest - first :]
    numbers = records["seq"]
    expected = np.arange(oldest, oldest + len(records), dtype=np.uint64)
    is_whole = numbers == expected
    num_lost = oldest - 1
    if not is_whole.all():
        # A thread has taken a number and is about to write the record; or it was killed there.
        unwritten = np.flatnonzero(~is_whole & (numbers == 0))
        end = int(unwritten[0]) if len(unwritten) else len(records)
        num_lost += end - int(is_whole[:end].sum())
        records, is_whole = records[:end], is_whole[:end]
    if what == SPANS:
        is_whole &= records["dur"] != OPEN
    elif what == EVENTS:
        is_whole &= (records["kind"] == RecordKind.HANDLED) | (records["kind"] == RecordKind.SENT)
    yield what, records if is_whole.all() else records[is_whole], oldest, num_lost


def _take_sent(memory: Memory) -> Iterator[tuple[str, Any, int, int]]:
    num = layout.NUM_SENT
    table = as_records(memory(layout.SENT_AT, num * RECORD_BYTES))
    old = as_records(memory(layout.OLD_AT, layout.NUM_OLD * RECORD_BYTES))
    in_place = (table["seq"] & np.uint64(num - 1)) == np.arange(num, dtype=np.uint64)
    for what, bit in _BITS.items():
        here = in_place & ((table["seq"] & np.uint64(CAST)) == bit) & (table["seq"] > bit)
        if not here.any():
            continue
        last = int(table["seq"][here].max())
        first = max(last - num, bit)
        records = table[here & (table["seq"] > first)]
        # Others have taken the places of some that are not answered.
        moved = old[((old["seq"] & np.uint64(CAST)) == bit) & (old["seq"] > first) & (old["seq"] <= last)]
        if len(moved):
            records = np.concatenate([records, without(moved, [records["seq"]])])
        num_lost = last - bit - len(records)
        yield what, records[records["dur"] != OPEN], first + 1, num_lost
