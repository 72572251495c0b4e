"""Records of a process as arrays: out of its memory, all at once, and those of them that files have too.

With `columns` the door to numpy. A helper takes records with `scribe.drain`, which needs no libraries, and only those
that are new; a question wants all that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.layout import CAST, OPEN, RECORD_BYTES, RecordKind
from monarch_hpc.telemetry.reading import Memory, read_header, read_u64
from monarch_hpc.wire.tables import history

__all__ = [
    "NO_NUMBERS",
    "RecordSource",
    "TakenRecords",
    "as_records",
    "by_table",
    "drop_empty",
    "numbers_of",
    "numbers_of_rows",
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
_OF_EVENTS = {"handled", "sends"}


_LASTING = {EVENTS, METRICS, TRANSFERS}
"""Rings whose records are written once: spans end, and calls are answered, where they have begun."""

NO_NUMBERS: Any = np.array([], np.uint64)
"""No numbers of records."""


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
        end: the number behind that of the last record that was looked at.
        damaged: numbers of records that something has overwritten.
    """

    table: str
    what: str
    records: Any
    least: int
    end: int
    damaged: Any

    @property
    def is_lasting(self) -> bool:
        """Whether records stay as they are, so that `take_records` can go on where these end."""
        return self.what in _LASTING


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


def numbers_of_rows(rows: Any, source: RecordSource) -> Any:
    """The numbers of those rows of a table, as Arrow's, that are records of one process and place."""
    columns = {name: rows.column(name).to_numpy() for name in rows.column_names if name != "run"}
    chosen = np.array(rows.column("run").to_pylist(), object) == source.run
    for name in ("mesh", "rank", "pid"):
        chosen &= columns[name] == getattr(source, name)
    if "call" in columns:  # sends of which some want no answer
        is_cast = columns["record"] > CAST
        wants_none = (columns["call"] == 0) & ~is_cast
        chosen &= {CASTS: is_cast, EVENTS: wants_none}.get(source.what, ~is_cast & ~wants_none)
    return columns["record"][chosen.astype(bool)].astype(np.uint64)


def without(records: Any, numbers: Sequence[Any]) -> Any:
    """Return the records that have none of some numbers, each an array of `numbers_of`."""
    if not numbers or not len(records):
        return records
    known = np.isin(records["seq"], numbers[0] if len(numbers) == 1 else np.concatenate(numbers))
    return records[~known] if known.any() else records


# ---- in the memory of a process ----


def take_records(
    memory: Memory,
    places: Collection[str],
    names: Collection[str],
    before: Mapping[tuple[str, str], TakenRecords] | None = None,
) -> tuple[list[TakenRecords], int]:
    """Return the complete records of some tables, and the number of those that later ones have overwritten.

    They are those that a `scribe.drain.Drain` takes that has taken none before.

    Args:
        places: where they are, see `chunks`.
        names: the tables.
        before: by table and place, what was taken earlier and is lasting, maybe without some of its records: only
            later ones are read, and what was left out is left out again.
    """
    if read_header(memory)[0]:
        return [], 0
    found, num_lost = [], 0
    for what in (what for what in _RINGS if what in places):
        tables = [name for name in names if name in (_OF_EVENTS if what == EVENTS else (_TABLES[what],))]
        known = [(before or {}).get((name, what)) for name in tables]
        if not any(known):
            taken = _take_ring(memory, what)
            num_lost += 0 if taken is None else taken.least - 1 + len(taken.damaged)
            some = [] if taken is None else by_table(what, taken.records, tables)
            found += [replace(taken, table=name, records=records) for name, records in some if taken is not None]
            continue
        lost = 0
        for name, one in zip(tables, known, strict=True):
            taken = _take_ring(memory, what, one)
            if taken is not None:
                ((_, records),) = by_table(what, taken.records, [name])
                found.append(replace(taken, table=name, records=records))
                lost = taken.least - 1 + len(taken.damaged)
        num_lost += lost
    for one, lost in _take_sent(memory) if SENDS in places or CASTS in places else ():
        num_lost += lost
        found += [one] if one.table in names else []
    return found, num_lost


def _take_ring(memory: Memory, what: str, before: TakenRecords | None = None) -> TakenRecords | None:
    ring = _RINGS[what]
    written = read_u64(memory, ring.cursor_at)
    if not written:
        return None
    least = max(written - ring.num, 0) + 1
    first = least if before is None else max(least, before.end)
    data = b""
    if first <= written:
        start, num = first & (ring.num - 1), written - first + 1
        head = min(num, ring.num - start)
        data = memory(ring.at + start * RECORD_BYTES, head * RECORD_BYTES)
        if head < num:
            data += memory(ring.at, (num - head) * RECORD_BYTES)
    # Those that were overwritten meanwhile; the next number may be on its way.
    least = max(read_u64(memory, ring.cursor_at) + 2 - ring.num, least)
    begin = max(first, least)
    records = as_records(data)[begin - first :]
    numbers = records["seq"]
    end, damaged = begin + len(records), NO_NUMBERS
    is_whole = numbers == np.arange(begin, end, dtype=np.uint64)
    if not is_whole.all():
        # A thread has taken a number and is about to write the record; or it was killed there.
        unwritten = np.flatnonzero(~is_whole & (numbers == 0))
        end = begin + int(unwritten[0]) if len(unwritten) else end
        records, is_whole = records[: end - begin], is_whole[: end - begin]
        damaged = (np.flatnonzero(~is_whole) + begin).astype(np.uint64)
    if what == SPANS:
        is_whole &= records["dur"] != OPEN
    elif what == EVENTS:
        is_whole &= (records["kind"] == RecordKind.HANDLED) | (records["kind"] == RecordKind.SENT)
    records = records if is_whole.all() else records[is_whole]
    if before is not None:
        kept = before.records[before.records["seq"] >= least]
        records = np.concatenate([kept, records]) if len(kept) else records
        damaged = np.concatenate([before.damaged[before.damaged >= least], damaged])
    return TakenRecords("", what, records, least, end, damaged)


def _take_sent(memory: Memory) -> Iterator[tuple[TakenRecords, int]]:
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
        taken = TakenRecords(_TABLES[what], what, records[records["dur"] != OPEN], first + 1, last + 1, NO_NUMBERS)
        yield taken, last - bit - len(records)
