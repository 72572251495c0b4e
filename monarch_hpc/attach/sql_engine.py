"""Runs one question in SQL in a process of its own, because it may run for ever, or out of memory.

The door to DataFusion. Messages on stdin and stdout begin with their length, see `write_message`: the question; the
tables that it names, or an error; their rows; the answer in Arrow's format, or an error.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import resource
from collections.abc import Mapping
from typing import Any

from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.schema import Table

__all__ = ["ERROR", "MAX_MEMORY_BYTES", "SQL_TABLES", "check", "explain", "main", "write_message"]

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

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSING_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_MISSING_COLUMN = re.compile(r"No field named \"?(?:\w+\.)?(\w+)")


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
        write_message(1, json.dumps(check(sql)).encode())
        rows = json.loads(_read_message())
        write_message(1, _pack(_plan(sql, rows).to_arrow_table()))
    except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
        write_message(1, ERROR + explain(error, sql).encode(errors="replace"))


def check(sql: str) -> list[str]:
    """Return the tables that a question may be about. Any exception says that it is wrong, see `explain`."""
    _plan(sql, {})
    words = {word.lower() for word in _NAMES.findall(sql)}
    return [name for name in SQL_TABLES if name in words]


def _plan(sql: str, rows: Mapping[str, list[list[Any]]]) -> Any:
    import datafusion

    limits = datafusion.RuntimeEnvBuilder().with_greedy_memory_pool(_QUERY_BYTES).with_disk_manager_disabled()
    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1), limits)
    for name, table in SQL_TABLES.items():
        context.register_record_batches(name, [[_batch(table, rows.get(name, []))]])
    # Nothing but questions: no CREATE, COPY, INSERT, SET; and it has no functions that read files.
    options = datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    return context.sql_with_options(sql, options)


def _batch(table: Table[Any], rows: list[list[Any]]) -> Any:
    import pyarrow

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(table.columns)
    arrays = []
    for column, values in zip(table.columns, columns, strict=True):
        if column.name == "t":
            moments = pyarrow.array([int(value * 1e6) for value in values], pyarrow.int64())
            arrays.append(moments.cast(pyarrow.timestamp("us", tz="UTC")))
        elif column.kind is str:
            # Programs may give names that are not valid Unicode.
            arrays.append(pyarrow.array([value.encode(errors="replace").decode() for value in values], types[str]))
        else:
            arrays.append(pyarrow.array(values, types[column.kind]))
    return pyarrow.RecordBatch.from_arrays(arrays, names=[column.name for column in table.columns])


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
