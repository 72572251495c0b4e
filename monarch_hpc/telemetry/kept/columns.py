"""The rows of records as columns: what `telemetry.history` makes of single records, for millions at a time.

With `records` the door to numpy, which only they need: the columns of rows are made in `arrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.arrow import TIME, schema_of
from monarch_hpc.telemetry.names import Name
from monarch_hpc.wire.tables.history import HANDLED, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.wire.tables.schema import Table

__all__ = ["COLUMNS", "KeptProcess", "columns_of", "round_durations"]

_MOST = (1 << 63) - 1

_MOST_ACTORS = 1 << 16
"""Marks of actors that are looked up: places in their table, which is smaller."""

_DROPPED_BITS = 42
"""Of the 52 bits of a duration's fraction."""

_Columns = dict[str, Callable[[], Any]]
"""The functions that make columns, by name; a question needs a few of them."""


@dataclass(frozen=True, slots=True)
class KeptProcess:
    """The process that has written records.

    Args:
        offset_ns, error_us: see `telemetry.clock.Correction`.
        names: its names, by number; the first is none.
        actors: name and rank of actors, by their place in the table plus 1.
        numbers: numbers of actors, likewise.
    """

    run: str
    mesh: int
    rank: int
    host: str
    pid: int
    incarnation: str
    offset_ns: int
    error_us: float
    names: Sequence[Name]
    actors: Mapping[int, tuple[str, int]]
    numbers: Mapping[int, int]


def columns_of(table: str, process: KeptProcess, records: Any, wanted: Collection[str] | None = None) -> pa.Table:
    """The rows of one of the tables of `COLUMNS` that records of a process are.

    Args:
        records: an array, see `records.as_records`.
        wanted: names of the columns that are made; None for all.
    """
    source = _Source(process, records)
    values = {**source.first(), **COLUMNS[table][1](source)}
    schema = schema_of(COLUMNS[table][0])
    if wanted is not None:
        schema = pa.schema([field for field in schema if field.name in wanted])
    arrays = [_cast(values[field.name](), field.type, len(records)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def round_durations(column: pa.ChunkedArray) -> pa.Array:
    """Return durations with an error of at most a 2000th: the other bits would take most of their space in files."""
    bits = column.to_numpy().view(np.int64)
    return pa.array(((bits + (1 << (_DROPPED_BITS - 1))) & -(1 << _DROPPED_BITS)).view(np.float64))


def _cast(values: Any, kind: pa.DataType, num: int) -> Any:
    if isinstance(values, str | int | float | bool):
        return pa.repeat(pa.scalar(values, kind), num)
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)


class _Source:
    """Records of one process, and what their numbers stand for."""

    def __init__(self, process: KeptProcess, records: Any) -> None:
        self.process = process
        self.records = records

    def first(self) -> _Columns:
        one = self.process
        return {
            "run": lambda: one.run,
            "mesh": lambda: one.mesh,
            "rank": lambda: one.rank,
            "host": lambda: one.host,
            "pid": lambda: one.pid,
            "t": lambda: pa.array((self.records["t"].astype(np.int64) + one.offset_ns) // 1000).cast(TIME),
            "error_us": lambda: float(round(one.error_us, 1)),
            "record": lambda: self.number("seq"),
        }

    def number(self, column: str) -> Any:
        return (self.records[column] & np.uint64(_MOST)).astype(np.int64)

    def part(self, numbers: Any, kind: str, index: int) -> Any:
        """A part of the names with some numbers, empty for those of another kind."""
        names = self.process.names
        parts = [name[index] if name and name[0] == kind and index < len(name) else "" for name in names] or [""]
        return pa.array(parts, pa.string()).take(pa.array(np.where(numbers < len(parts), numbers, 0)))

    def actor(self, what: Callable[[int], Any], unknown: Any, kind: pa.DataType) -> Any:
        """Something of the acting actors; the last value is for those that are not known."""
        known = [mark for mark in self.process.actors if mark < _MOST_ACTORS]
        values = [unknown] * (max(known, default=-1) + 2)
        for mark in known:
            values[mark] = what(mark)
        places = np.minimum(self.records["actor"], len(values) - 1)
        return pa.array(values, kind).take(pa.array(places))

    def actors(self) -> _Columns:
        actors = self.process.actors
        return {
            "actor": lambda: self.actor(lambda mark: actors[mark][0], "", pa.string()),
            "actor_rank": lambda: self.actor(lambda mark: actors[mark][1], -1, pa.int64()),
        }

    def actor_id(self) -> Any:
        return self.actor(lambda mark: f"{self.process.numbers.get(mark, 0):x}", "0", pa.string())

    def took_us(self) -> Any:
        return np.maximum(self.records["dur"], 0) / 1000

    def status(self, running: str = "open", *, sent: bool = False) -> Any:
        """How they ended; calls that are *sent* may want no answer."""
        failed = (self.records["flags"] & layout.FAILED) != 0
        chosen = np.where(self.records["dur"] == layout.OPEN, 1, np.where(failed, 2, 0))
        chosen = np.where(self.records["msg"] == 0, 3, chosen) if sent else chosen
        return pa.array(["ok", running, "failed", "sent"]).take(pa.array(chosen.astype(np.int8)))


def _call(records: Any) -> _Columns:
    return {
        "call": lambda: (records["msg"] & np.uint64(_MOST & ~layout.CAST)).astype(np.int64),
        "through_tree": lambda: (records["msg"] & np.uint64(layout.CAST)) != 0,
    }


def _handled(source: _Source) -> _Columns:
    records = source.records
    failed = (records["flags"] & layout.FAILED) != 0
    high = (records["value"] >> np.uint64(32)).astype(np.int64)
    errors = np.where(failed, high, 0)
    return {
        **source.actors(),
        **_call(records),
        "actor": lambda: source.part(records["name"], "endpoint", 1),
        "incarnation": lambda: source.process.incarnation,
        "actor_id": lambda: source.actor_id(),
        "endpoint": lambda: source.part(records["name"], "endpoint", 2),
        "caller": lambda: source.part(records["peer"], "proc", 1),
        "caller_host": lambda: source.part(records["peer"], "proc", 2),
        "bytes": lambda: source.number("bytes"),
        "answer_bytes": lambda: np.where(failed, 0, high),
        "queued_us": lambda: (records["value"] & np.uint64(layout.HALF)).astype(np.int64),
        "ran_us": lambda: source.took_us(),
        "status": lambda: source.status(running="running"),
        "error": lambda: source.part(errors, "error", 1),
        "line": lambda: source.part(errors, "error", 2),
    }


def _sends(source: _Source) -> _Columns:
    records = source.records
    is_cast = (records["msg"] & np.uint64(layout.CAST)) != 0
    targets = np.where(is_cast, 0, records["peer"])
    return {
        **source.actors(),
        **_call(records),
        "incarnation": lambda: source.process.incarnation,
        "actor_id": lambda: source.actor_id(),
        "endpoint": lambda: source.part(records["name"], "endpoint", 2),
        "target": lambda: source.part(targets, "proc", 1),
        "target_host": lambda: source.part(targets, "proc", 2),
        "target_actor": lambda: source.part(records["name"], "endpoint", 1),
        "target_id": lambda: [f"{int(value):x}" for value in records["value"]],
        "num_receivers": lambda: np.where(is_cast, records["peer"], 1).astype(np.int64),
        "bytes": lambda: source.number("bytes"),
        "took_us": lambda: source.took_us(),
        "awaited": lambda: np.zeros(len(records), bool),
        "status": lambda: source.status(sent=True),
    }


def _metrics(source: _Source) -> _Columns:
    records = source.records
    return {
        **source.actors(),
        "name": lambda: source.part(records["name"], "metric", 1),
        "value": lambda: records["value"].view(np.float64),
        "step": lambda: np.where(records["dur"] == layout.NO_STEP, -1, records["dur"]),
        "tags": lambda: source.part(records["peer"], "tags", 1),
    }


def _spans(source: _Source) -> _Columns:
    records = source.records
    return {
        **source.actors(),
        "name": lambda: source.part(records["name"], "span", 1),
        "span": lambda: source.number("msg"),
        "parent": lambda: source.number("bytes"),
        "thread": lambda: source.number("value"),
        "took_us": lambda: source.took_us(),
        "status": lambda: source.status(),
        "tags": lambda: source.part(records["peer"], "tags", 1),
    }


def _transfers(source: _Source) -> _Columns:
    records = source.records
    return {
        "peer": lambda: source.part(records["peer"], "proc", 1),
        "peer_host": lambda: source.part(records["peer"], "proc", 2),
        "path": lambda: source.part(records["name"], "text", 1),
        "write": lambda: records["value"] == 1,
        "bytes": lambda: source.number("bytes"),
        "took_us": lambda: source.took_us(),
        "status": lambda: source.status(),
    }


COLUMNS: Mapping[str, tuple[Table[Any], Callable[[_Source], _Columns]]] = {
    HANDLED.name: (HANDLED, _handled),
    SENDS.name: (SENDS, _sends),
    METRICS.name: (METRICS, _metrics),
    SPANS.name: (SPANS, _spans),
    TRANSFERS.name: (TRANSFERS, _transfers),
}
"""The tables of records, and what makes their columns."""
