"""The rows of a host that are in the memory of its processes, as Arrow's tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import read_open
from monarch_hpc.telemetry.kept.arrow import schema_of, table_of_rows
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.kept.columns import COLUMNS, columns_of, split_calls
from monarch_hpc.telemetry.kept.reading import ALL_COLUMNS, Columns, process_of
from monarch_hpc.telemetry.reading import memory_of, read_header
from monarch_hpc.telemetry.scribe.drain import Drain
from monarch_hpc.telemetry.scribe.procs import ProcPlace
from monarch_hpc.wire.tables.pieces import sql_tables
from monarch_hpc.wire.tables.procs import RunProcess

__all__ = ["live_rows"]

_OF = {METRICS: "metrics", SPANS: "spans", TRANSFERS: "transfers", SENDS: "sends", CASTS: "sends"}
_PLACES = {
    "handled": {EVENTS},
    "sends": {EVENTS, SENDS, CASTS},
    "metrics": {METRICS},
    "spans": {SPANS},
    "transfers": {TRANSFERS},
}
"""The memory that has the records of a table."""


def live_rows(
    names: Collection[str],
    rows: Mapping[str, list[Any]],
    procs: Iterable[tuple[ProcPlace, int]],
    host: str,
    correction: Correction,
    columns: Columns = ALL_COLUMNS,
) -> tuple[dict[str, Any], int]:
    """Return the rows of some tables, and how many records of them later ones have overwritten.

    Args:
        rows: those of tables that are not records, by table.
        procs: the processes of the host, with the descriptor of their memory.
        columns: those of tables of records that are needed.
    """
    found: dict[str, list[Any]] = {name: [] for name in names}
    for name in names:
        if name not in COLUMNS:
            found[name].append(_chosen(table_of_rows(sql_tables()[name], rows.get(name, [])), name, columns))
    asked = [name for name in names if name in COLUMNS]
    num_lost = 0
    for place, fd in procs if asked else ():
        num_lost += _read(asked, place, fd, host, correction, columns, found)
    empty = {name: _chosen(schema_of(sql_tables()[name]).empty_table(), name, columns) for name in names}
    return {name: pa.concat_tables([empty[name], *some]) for name, some in found.items()}, num_lost


def _read(
    names: list[str],
    place: ProcPlace,
    fd: int,
    host: str,
    correction: Correction,
    columns: Columns,
    found: dict[str, list[Any]],
) -> int:
    memory = memory_of(fd)
    if read_header(memory)[0]:
        return 0
    wanted = set().union(*(_PLACES[name] for name in names))
    process = RunProcess(place.run, place.mesh, place.rank, host, place.pid, "ready", "")
    known = process_of(memory, place.run, place.mesh, place.rank, place.pid, host, correction)
    num_lost = 0
    for taken in Drain(memory, {}).take(last=True, only=wanted):
        num_lost += taken.num_lost
        by_table = split_calls(taken.records, names) if taken.what == EVENTS else [(_OF[taken.what], taken.records)]
        for name, records in by_table:
            if name in names and records:
                found[name].append(columns_of(name, known, records, columns.get(name)))
    for name in names:
        table = sql_tables()[name]
        began = read_open(name, memory, process, correction)
        rows = [[getattr(row, one.name) for one in table.columns] for row in began]
        found[name].append(_chosen(table_of_rows(table, rows), name, columns))
    return num_lost


def _chosen(rows: Any, name: str, columns: Columns) -> Any:
    wanted = columns.get(name)
    return rows if wanted is None else rows.select([one for one in rows.column_names if one in wanted])
