"""The rows of a host's records for texts in SQL: those that are read already, and those of files of tables.

With `context` the door to DataFusion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import datafusion
import pyarrow as pa

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.kept.arrow import least_time, schema_of, table_of_rows
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, SENDS
from monarch_hpc.telemetry.kept.decoded import PartIndex
from monarch_hpc.telemetry.kept.records import RecordSource, numbers_of_rows
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.sql.context import (
    KEYS,
    KeptRows,
    RowSet,
    columns_named,
    columns_needed,
    context_of,
    open_context,
    register,
    rows_of,
    rows_since,
    run,
    union,
)
from monarch_hpc.wire.tables.pieces import QueryPiece, sql_tables

__all__ = ["RecordRows", "index_of_file", "results_of_records"]

_OPEN = {"handled": "running", "sends": "open", "spans": "open"}
"""Status of rows that were kept as such, because their calls and spans had not ended."""


@dataclass(frozen=True, slots=True)
class RecordRows:
    """The rows of a table of records on one host, as Arrow's tables with the columns that are needed, or more.

    Args:
        rows: each row once.
        files: those that have others, each once, too; rows that were kept as such are left out of them.
        older: rows that were kept as such: of them, those count that are not among *live* by now.
        live: all rows that are in memory, with the columns that tell them from each other.
        place: where the files are.
    """

    rows: Sequence[Any]
    files: Sequence[Path] = ()
    older: Sequence[Any] = ()
    live: Any = None
    place: KeptRows | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not (self.older or self.files or any(len(one) for one in self.rows))


def results_of_records(pieces: Sequence[QueryPiece], rows: RowSet, records: Mapping[str, RecordRows]) -> list[Any]:
    """Return the results of the pieces over the rows of one host.

    Args:
        rows: those of tables that are not records.
    """
    columns, named = columns_needed(pieces), columns_named(pieces)
    context = context_of(rows, [name for name in columns if name not in records], [], columns=columns)
    for name, some in records.items():
        _register_records(context, name, some, named[name], rows.since_s)
    return [rows_of(run(context, piece.host)) for piece in pieces]


def _register_records(context: Any, name: str, records: RecordRows, columns: Collection[str], since_s: float) -> None:
    table = sql_tables()[name]
    chosen = [one.name for one in table.columns if one.name in columns]
    empty = table_of_rows(table, []).select(chosen)
    rows = rows_since(table, pa.concat_tables([empty, *(one.select(chosen) for one in records.rows)]), since_s)
    frames = [_closed(_of_host(context, path, records.place), name) for path in records.files]
    if records.older:
        older = context.from_arrow(pa.concat_tables(records.older))
        live = context.from_arrow(records.live.select(KEYS))
        frames.append(older.join(live, on=[*KEYS], how="anti"))
    if not frames:
        register(context, name, rows)
        return
    if since_s:
        frames = [frame.filter(datafusion.col("t") >= datafusion.lit(least_time(since_s))) for frame in frames]
    context.register_view(name, union([*(frame.select(*chosen) for frame in frames), context.from_arrow(rows)]))


def index_of_file(path: Path, name: str, place: KeptRows, least: Mapping[RecordSource, int]) -> PartIndex:
    """Return what must be known of a table's file to tell its rows from those in memory, see `DecodedParts.index`.

    Args:
        least: where processes have records in memory, and the least number that one has.
    """
    frame = _of_host(open_context(), path, place)
    index = PartIndex()
    if name in _OPEN:
        schema = schema_of(sql_tables()[name])
        rows = rows_of(frame.filter(datafusion.col("status") == datafusion.lit(_OPEN[name])).select(*schema.names))
        index.rows.extend([rows.cast(schema)] if len(rows) else [])
    wanted = {source: _is_of(source, name, number) for source, number in least.items()}
    if wanted:
        columns = ["run", "mesh", "rank", "pid", "record", *(["call"] if name == "sends" else [])]
        chosen = _closed(frame, name).filter(reduce(lambda one, other: one | other, wanted.values())).select(*columns)
        rows = rows_of(chosen)
        for source in wanted if len(rows) else ():
            numbers = numbers_of_rows(rows, source)
            if len(numbers):
                index.numbers[source] = [numbers]
    return index


def _is_of(source: RecordSource, name: str, least: int) -> Any:
    """Whether a row is a record of some process and place, with that number or a larger one."""
    record = datafusion.col("record")
    found = (datafusion.col("pid") == datafusion.lit(source.pid)) & (record >= datafusion.lit(least))
    if name == "sends" and source.what in (EVENTS, SENDS):
        found &= record < datafusion.lit(CAST)
    elif name == "sends" and source.what == CASTS:
        found &= record > datafusion.lit(CAST)
    return found


def _of_host(context: Any, path: Path, place: KeptRows | None) -> Any:
    frame = context.read_parquet(str(path))
    return frame if place is None else place.chosen(frame)


def _closed(frame: Any, name: str) -> Any:
    """The rows that records are."""
    return frame.filter(datafusion.col("status") != datafusion.lit(_OPEN[name])) if name in _OPEN else frame
