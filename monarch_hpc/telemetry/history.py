"""Reads the rows of the tables of `wire.tables.history` from the records of a process, the latest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.layout import CAST, FAILED, NO_STEP, OPEN, RecordKind
from monarch_hpc.telemetry.names import Name, parse_names
from monarch_hpc.telemetry.reading import DecodedRecord, Memory, read_header, read_ring, read_table, read_u64
from monarch_hpc.wire.tables.history import (
    HANDLED,
    METRICS,
    SPANS,
    TRANSFERS,
    HandledCall,
    HistoryRow,
    MetricRow,
    RecorderState,
    SpanRow,
    TransferRow,
)
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import MAX_ROWS

__all__ = ["HISTORY", "ReadHistory", "latest_first", "read_recorder"]

MAX_RECORDS = MAX_ROWS
"""Upper bound on the records of one table that are looked at in each process, the latest ones."""


class _Source(NamedTuple):
    """The records of one process while they are read."""

    process: RunProcess
    correction: Correction
    look: Callable[[int], Name]
    actors: Mapping[int, tuple[str, int]]
    now_ns: int

    def first(self, record: DecodedRecord) -> tuple[str, int, int, str, int, float, float]:
        """The columns that all tables have."""
        one, t = self.process, (record.t + self.correction.offset_ns) * 1e-9
        return one.run, one.mesh, one.rank, one.host, one.pid, t, round(self.correction.error_us, 1)

    def part(self, number: int, kind: str, index: int) -> str:
        name = self.look(number)
        return name[index] if name and name[0] == kind and index < len(name) else ""

    def took_us(self, record: DecodedRecord) -> float:
        return max(self.now_ns - record.t if record.dur == OPEN else record.dur, 0) / 1000


def _source(memory: Memory, process: RunProcess, correction: Correction) -> _Source:
    look = parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))
    actors = {}
    for record in read_table(memory, layout.ACTORS_AT, layout.NUM_ACTORS):
        name = look(record.name)
        actors[record.actor] = (name[1] if len(name) > 1 else "", record.num_bytes)
    return _Source(process, correction, look, actors, monotonic_ns())


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
    METRICS.name: _reader(layout.METRICS, RecordKind.METRIC, _metric),
    SPANS.name: _reader(layout.SPANS, RecordKind.SPAN, _span),
    TRANSFERS.name: _reader(layout.TRANSFERS, RecordKind.MOVED, _transfer),
}
"""Tables of records, and the function that reads each from the memory of a process."""


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
    one = process
    return RecorderState(
        one.run, one.mesh, one.rank, one.host, one.pid, one.state, one.cause, incarnation, problem, *counts
    )
