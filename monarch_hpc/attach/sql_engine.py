"""Runs one question in SQL in a process of its own, because it may run for ever, or out of memory.

The door to DataFusion. Messages on stdin and stdout begin with their length, see `write_message`: the question; the
tables that it names and its plan, or an error; `EngineTables`; the answer in Arrow's format, or an error.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import resource
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "ERROR",
    "MAX_MEMORY_BYTES",
    "SQL_TABLES",
    "UNREADABLE",
    "EngineTables",
    "check",
    "explain",
    "main",
    "write_message",
]

_SCALARS = (bool, int, float, str)

SQL_TABLES: Mapping[str, Table[Any]] = {
    name: table for name, table in TABLES.items() if all(column.kind in _SCALARS for column in table.columns)
}
"""The tables that questions can be about: those whose columns are plain values."""

ERROR = b"E"
"""First byte of a message that is an error in words."""

_QUERY_BYTES = 1 << 30
"""Limit on the memory that the engine gives to sorts and groups; it does not use the disk."""

MAX_MEMORY_BYTES = 8 << 30
"""Limit on the address space of this process, for what the engine does not count; a library reserves some of it."""

UNREADABLE = b"unreadable"
"""Key in the metadata of an answer: files of kept rows that cannot be read, as JSON."""

_KEYS = ("run", "mesh", "rank", "pid", "record")
"""Columns that tell a row of a process from others."""

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSING_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_MISSING_COLUMN = re.compile(r"No field named \"?(?:\w+\.)?(\w+)")


@dataclass(frozen=True, slots=True)
class EngineTables:
    """The rows that a question is about.

    Args:
        rows: rows of live processes by table, each a list of the values of its columns.
        kept: directories of allocations whose kept rows are joined to them.
        since_s: Unix time of the oldest kept row of the past that is of interest; None for all.
    """

    rows: Mapping[str, list[Any]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    since_s: float | None = None


def write_message(descriptor: int, body: bytes) -> None:
    """Write one message."""
    left = memoryview(len(body).to_bytes(8, "little") + body)
    while left:
        left = left[os.write(descriptor, left) :]


def _read_message() -> bytes:
    def read(size: int) -> bytes:
        body = bytearray()
        while len(body) < size:
            piece = os.read(0, min(size - len(body), 1 << 20))
            if not piece:
                os._exit(1)  # the asking process is gone
            body += piece
        return bytes(body)

    return read(int.from_bytes(read(8), "little"))


def main() -> None:
    """Answer the question on stdin."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    sql = _read_message().decode()
    try:
        names, plan = check(sql)
        write_message(1, json.dumps({"tables": names, "plan": plan}).encode())
        tables = EngineTables(**json.loads(_read_message()))
        unreadable: list[str] = []
        answer = _plan(sql, tables, unreadable).to_arrow_table()
        write_message(1, _pack(answer.replace_schema_metadata({UNREADABLE: json.dumps(unreadable)})))
    except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
        write_message(1, ERROR + explain(error, sql).encode(errors="replace"))


def check(sql: str) -> tuple[list[str], str]:
    """Return the tables that a question may be about, and the plan of its answer.

    Any exception says that it is wrong, see `explain`.
    """
    plan = _plan(sql, EngineTables(), []).optimized_logical_plan().display_indent()
    return _tables_of(sql), plan


def _tables_of(sql: str) -> list[str]:
    words = {word.lower() for word in _NAMES.findall(sql)}
    return [name for name in SQL_TABLES if name in words]


def _plan(sql: str, tables: EngineTables, unreadable: list[str]) -> Any:
    import datafusion

    from monarch_hpc.telemetry.kept.arrow import table_of_rows

    limits = datafusion.RuntimeEnvBuilder().with_greedy_memory_pool(_QUERY_BYTES).with_disk_manager_disabled()
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1), limits)
    asked = _tables_of(sql) if tables.kept else []
    kept = _read_kept(context, tables, asked, unreadable) if tables.kept else {}
    for name, table in SQL_TABLES.items():
        live = table_of_rows(table, tables.rows.get(name, []))
        if kept.get(name):
            context.register_view(name, _join(context, table, live, kept[name]))
        else:
            context.register_record_batches(name, [live.to_batches(max_chunksize=max(len(live), 1)) or [_empty(live)]])
    # Nothing but questions: no CREATE, COPY, INSERT, SET; and it has no functions that read files.
    options = datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    return context.sql_with_options(sql, options)


def _empty(table: Any) -> Any:
    import pyarrow

    return pyarrow.RecordBatch.from_pylist([], schema=table.schema)


def _read_kept(context: Any, tables: EngineTables, names: list[str], unreadable: list[str]) -> dict[str, list[Any]]:
    """The kept rows of some tables, each as frames of the engine."""
    from datafusion import col, lit

    from monarch_hpc.telemetry.kept.arrow import least_time
    from monarch_hpc.telemetry.kept.reading import find_kept

    found: dict[str, list[Any]] = {name: [] for name in names}
    for directory in tables.kept:
        kept = find_kept(Path(directory))
        unreadable += map(str, kept.unreadable)
        for name, parts in kept.rows(names).items():
            found[name] += [context.from_arrow(part) for part in parts]
            found[name] += [context.read_parquet(str(path)) for path in kept.files.get(name, {})]
    if tables.since_s is not None:
        least = lit(least_time(tables.since_s))
        for name in names:
            if SQL_TABLES[name].history:
                found[name] = [frame.filter(col("t") >= least) for frame in found[name]]
    return found


def _join(context: Any, table: Table[Any], live: Any, kept: list[Any]) -> Any:
    """The live rows of a table, and those kept rows that are not among them."""
    columns = [column.name for column in table.columns]
    every = kept[0].select(*columns)
    for frame in kept[1:]:
        every = every.union(frame.select(*columns))
    keys = [name for name in _KEYS if name in columns]
    if "record" not in keys and "state" not in keys:
        return every.union(context.from_arrow(live)).distinct() if len(live) else every.distinct()
    if not len(live):
        return every
    own = context.from_arrow(live)
    return every.join(own.select(*keys), on=keys, how="anti").select(*columns).union(own)


def _pack(table: Any) -> bytes:
    import pyarrow

    written = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(written, table.schema) as stream:
        stream.write_table(table)
    return b"T" + bytes(written.getvalue())


def explain(error: Exception, sql: str) -> str:
    """The error of the engine in words of ours, with the nearest names."""
    if isinstance(error, ModuleNotFoundError):
        return f"questions in SQL need {error.name}, which is not installed: pip install 'monarch-hpc[telemetry]'"
    text = " ".join(str(error).split())
    if (table := _MISSING_TABLE.search(text)) is not None:
        return f"there is no table {table[1]!r}: {_nearest(table[1], [*SQL_TABLES])}"
    if (column := _MISSING_COLUMN.search(text)) is not None:
        words = {word.lower() for word in _NAMES.findall(sql)}
        known = {one.name for name, table in SQL_TABLES.items() if name in words for one in table.columns}
        return f"there is no column {column[1]!r}: {_nearest(column[1], sorted(known))}"
    if " not supported: " in text:
        return f"only questions (SELECT) are answered: {text}"
    return f"the query cannot be answered: {text[:1000]}"


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"


if __name__ == "__main__":
    main()
