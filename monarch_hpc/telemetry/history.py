"""Reads the rows of the tables of `wire.tables.history` from the records of a process, the latest first."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.layout import CAST, FAILED, NO_STEP, NUMBER, OPEN, RecordKind
from monarch_hpc.telemetry.names import Name, parse_names
from monarch_hpc.telemetry.reading import (
    DecodedRecord,
    Memory,
    read_header,
    read_names,
    read_places,
    read_ring,
    read_table,
    read_u64,
    read_waits,
)
from monarch_hpc.wire.tables.history import (
    HANDLED,
    METRICS,
    SENDS,
    SPANS,
    TRANSFERS,
    HandledCall,
    HistoryRow,
    MetricRow,
    RecorderState,
    SendRow,
    SpanRow,
    TransferRow,
)
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import MAX_ROWS

__all__ = ["HISTORY", "ReadHistory", "incarnation_of", "latest_first", "read_open", "read_recorder", "rows_of"]

MAX_RECORDS = MAX_ROWS
"""Upper bound on the records of one table that are looked at in each process, the latest ones."""


_SENT = layout.Ring(layout.SENT_AT, layout.NUM_SENT, 0)
"""The table of sent calls: as in a ring, the number of a call says its place; but it has no cursor."""


class _Source(NamedTuple):
    """The records of one process while they are read."""

    process: RunProcess
    correction: Correction
    look: Callable[[int], Name]
    incarnation: str
    actors: Mapping[int, tuple[str, int]]
    numbers: Mapping[int, int]
    now_ns: int

    def first(self, record: DecodedRecord) -> tuple[str, int, int, str, int, float, float, int]:
        """The columns that all tables have."""
        one, t = self.process, (record.t + self.correction.offset_ns) * 1e-9
        # A call gets its number in the ring when it ends; no two calls that run have begun in the same nanosecond.
        number = -record.t if record.kind == RecordKind.HANDLED and record.dur == OPEN else record.seq & NUMBER
        return one.run, one.mesh, one.rank, one.host, one.pid, t, round(self.correction.error_us, 1), number

    def part(self, number: int, kind: str, index: int) -> str:
        name = self.look(number)
        return name[index] if name and name[0] == kind and index < len(name) else ""

    def took_us(self, record: DecodedRecord) -> float:
        return max(self.now_ns - record.t if record.dur == OPEN else record.dur, 0) / 1000


def _source(memory: Memory, process: RunProcess, correction: Correction) -> _Source:
    look = parse_names(read_names(memory))
    actors, numbers = {}, {}
    for record in read_table(memory, layout.ACTORS_AT, layout.NUM_ACTORS):
        name = look(record.name)
        actors[record.actor] = (name[1] if len(name) > 1 else "", record.num_bytes)
        numbers[record.actor] = record.msg
    return _Source(process, correction, look, read_header(memory)[1], actors, numbers, monotonic_ns())


ReadHistory = Callable[[Memory, RunProcess, Correction], Iterator[HistoryRow]]
"""Takes the memory of a process, the process, and the correction of its host's clock."""


def _reader(ring: layout.Ring, kind: RecordKind, row: Callable[[_Source, DecodedRecord], HistoryRow]) -> ReadHistory:
    def read(memory: Memory, process: RunProcess, correction: Correction) -> Iterator[HistoryRow]:
        if read_header(memory)[0]:
            return
        records = [record for record in read_ring(memory, ring, MAX_RECORDS) if record.kind == kind]
        if kind is RecordKind.HANDLED:
            running = read_table(memory, layout.RUNNING_AT, layout.NUM_RUNNING)
            records += [record for record in running if record.kind == kind and record.dur == OPEN]
        source = _source(memory, process, correction)
        for record in sorted(records, key=lambda record: -record.t):
            yield row(source, record)

    return read


def _handled(source: _Source, record: DecodedRecord) -> HandledCall:
    status = "running" if record.dur == OPEN else "failed" if record.flags & FAILED else "ok"
    return HandledCall(
        *source.first(record),
        actor=source.part(record.name, "endpoint", 1),
        actor_rank=source.actors.get(record.actor, ("", -1))[1],
        incarnation=source.incarnation,
        actor_id=f"{source.numbers.get(record.actor, 0):x}",
        endpoint=source.part(record.name, "endpoint", 2),
        caller=source.part(record.peer, "proc", 1),
        caller_host=source.part(record.peer, "proc", 2),
        call=record.msg & ~CAST,
        through_tree=bool(record.msg & CAST),
        bytes=record.num_bytes,
        answer_bytes=record.answer_bytes,
        queued_us=record.queued_us,
        ran_us=source.took_us(record),
        status=status,
        error=source.part(record.error, "error", 1),
        line=source.part(record.error, "error", 2),
    )


def _read_sends(memory: Memory, process: RunProcess, correction: Correction) -> Iterator[HistoryRow]:
    if read_header(memory)[0]:
        return
    records = {record.msg: record for record in read_places(memory, _SENT, 0, _SENT.num)}
    records |= {record.msg: record for record in read_table(memory, layout.OLD_AT, layout.NUM_OLD)}
    sent = [record for number, record in records.items() if record.kind == RecordKind.SENT and number == record.seq]
    open_calls = sorted((record for record in sent if record.dur == OPEN), key=lambda record: record.msg)
    awaited = _awaited(read_waits(memory), open_calls)
    sent += [one for one in read_ring(memory, layout.EVENTS, MAX_RECORDS) if one.kind == RecordKind.SENT]
    source = _source(memory, process, correction)
    for record in sorted(sent, key=lambda record: -record.t):
        yield _send(source, record, awaited)


def _awaited(waits: Iterable[tuple[int, int]], open_calls: Sequence[DecodedRecord]) -> Set[int]:
    """Numbers of the calls that are waited for; those of one call of a mesh have the actor and name of the first."""
    numbers = [record.msg for record in open_calls]
    found: set[int] = set()
    for first, last in waits:
        calls = open_calls[bisect_left(numbers, first) : bisect_right(numbers, last)] if first > 0 else ()
        found.update(one.msg for one in calls if (one.actor, one.name) == (calls[0].actor, calls[0].name))
    return found


def _send(source: _Source, record: DecodedRecord, awaited: Set[int]) -> SendRow:
    target = 0 if record.msg & CAST else record.peer
    status = "open" if record.dur == OPEN else "failed" if record.flags & FAILED else "ok"
    return SendRow(
        *source.first(record),
        *source.actors.get(record.actor, ("", -1)),
        incarnation=source.incarnation,
        actor_id=f"{source.numbers.get(record.actor, 0):x}",
        endpoint=source.part(record.name, "endpoint", 2),
        target=source.part(target, "proc", 1),
        target_host=source.part(target, "proc", 2),
        target_actor=source.part(record.name, "endpoint", 1),
        target_id=f"{record.value:x}",
        call=record.msg & ~CAST,
        through_tree=bool(record.msg & CAST),
        num_receivers=record.num_receivers,
        bytes=record.num_bytes,
        took_us=source.took_us(record),
        awaited=record.msg in awaited,
        status=status if record.msg else "sent",
    )


def _metric(source: _Source, record: DecodedRecord) -> MetricRow:
    return MetricRow(
        *source.first(record),
        *source.actors.get(record.actor, ("", -1)),
        source.part(record.name, "metric", 1),
        record.number,
        -1 if record.dur == NO_STEP else record.dur,
        source.part(record.peer, "tags", 1),
    )


def _span(source: _Source, record: DecodedRecord) -> SpanRow:
    status = "open" if record.dur == OPEN else "failed" if record.flags & FAILED else "ok"
    return SpanRow(
        *source.first(record),
        *source.actors.get(record.actor, ("", -1)),
        source.part(record.name, "span", 1),
        record.msg,
        record.num_bytes,
        record.value,
        source.took_us(record),
        status,
        source.part(record.peer, "tags", 1),
    )


def _transfer(source: _Source, record: DecodedRecord) -> TransferRow:
    return TransferRow(
        *source.first(record),
        peer=source.part(record.peer, "proc", 1),
        peer_host=source.part(record.peer, "proc", 2),
        path=source.part(record.name, "text", 1),
        write=record.value == 1,
        bytes=record.num_bytes,
        took_us=source.took_us(record),
        status="failed" if record.flags & FAILED else "ok",
    )


HISTORY: Mapping[str, ReadHistory] = {
    HANDLED.name: _reader(layout.EVENTS, RecordKind.HANDLED, _handled),
    SENDS.name: _read_sends,
    METRICS.name: _reader(layout.METRICS, RecordKind.METRIC, _metric),
    SPANS.name: _reader(layout.SPANS, RecordKind.SPAN, _span),
    TRANSFERS.name: _reader(layout.TRANSFERS, RecordKind.MOVED, _transfer),
}
"""Tables of records, and the function that reads each from the memory of a process."""


def read_open(table: str, memory: Memory, process: RunProcess, correction: Correction) -> Iterator[HistoryRow]:
    """Yield the rows of calls and spans that have not ended, of one of the tables of `HISTORY`."""
    if read_header(memory)[0] or table not in (HANDLED.name, SENDS.name, SPANS.name):
        return
    if table == HANDLED.name:
        running = read_table(memory, layout.RUNNING_AT, layout.NUM_RUNNING)
        found = [record for record in running if record.kind == RecordKind.HANDLED and record.dur == OPEN]
    elif table == SPANS.name:
        found = [*_open_places(memory, layout.SPANS)]
    else:
        records = {record.msg: record for record in _open_places(memory, _SENT)}
        old = read_table(memory, layout.OLD_AT, layout.NUM_OLD)
        records |= {record.msg: record for record in old if record.dur == OPEN}
        found = [record for number, record in sorted(records.items()) if record.kind == RecordKind.SENT]
    if not found:
        return
    source = _source(memory, process, correction)
    if table == SENDS.name:
        awaited = _awaited(read_waits(memory), found)
        yield from (_send(source, record, awaited) for record in found)
    else:
        row = _handled if table == HANDLED.name else _span
        yield from (row(source, record) for record in found)


def rows_of(
    table: str, memory: Memory, process: RunProcess, correction: Correction, records: bytes
) -> Iterator[HistoryRow]:
    """Yield the rows of metrics or spans, in the order of their records.

    Args:
        records: those of a drain of the process.
    """
    row = {METRICS.name: _metric, SPANS.name: _span}[table]
    source = _source(memory, process, correction)
    for record in map(DecodedRecord._make, layout.RECORD.iter_unpack(records)):
        yield row(source, record)


def incarnation_of(memory: Memory) -> str:
    """The incarnation of a process, hexadecimal."""
    return read_header(memory)[1]


def _open_places(memory: Memory, ring: layout.Ring) -> Iterator[DecodedRecord]:
    """Yield the records of a ring that have not ended, which are few."""
    words = memoryview(memory(ring.at, ring.num * layout.RECORD_BYTES)).cast("q")
    durations = words[5::8].tolist()
    place = -1
    for _ in range(durations.count(OPEN)):
        place = durations.index(OPEN, place + 1)
        yield from (one for one in read_places(memory, ring, place, place + 1) if one.dur == OPEN)


def latest_first(parts: Iterable[Iterable[HistoryRow]]) -> Iterator[HistoryRow]:
    """Merge the rows of several processes, each the latest first."""
    return heapq.merge(*parts, key=lambda row: -row.t)


def read_recorder(memory: Memory, process: RunProcess) -> RecorderState:
    """Return the state of a recorder."""
    problem, incarnation = read_header(memory)
    counts: list[int] = []
    for ring in (layout.EVENTS, layout.METRICS, layout.SPANS, layout.TRANSFERS):
        written = 0 if problem else read_u64(memory, ring.cursor_at)
        counts += (written, max(written - ring.num, 0))
    counts.append(0 if problem else read_u64(memory, layout.UNNAMED_AT))
    return RecorderState(*process.first_columns, incarnation, problem, *counts)
