"""Runs one question in SQL in a process of its own, because it may run for ever, or out of memory.

Messages on stdin and stdout begin with their length, see `write_message`: the question; the tables that it names and
how it is split, or an error; `EngineRows`; the answer in Arrow's format, or an error.
"""

from __future__ import annotations

import dataclasses
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
from monarch_hpc.wire.tables.pieces import SQL_TABLES

__all__ = ["ERROR", "MAX_MEMORY_BYTES", "UNREADABLE", "EngineRows", "check", "explain", "main", "write_message"]

ERROR = b"E"
"""First byte of a message that is an error in words."""

MAX_MEMORY_BYTES = 8 << 30
"""Limit on the address space of this process, for what the engine does not count; a library reserves some of it."""

UNREADABLE = b"unreadable"
"""Key in the metadata of an answer: files of kept rows that cannot be read, as JSON."""

_NAMES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MISSING_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_MISSING_COLUMN = re.compile(r"No field named \"?(?:\w+\.)?(\w+)")


@dataclass(frozen=True, slots=True)
class EngineRows:
    """What a question is about.

    Args:
        rows: rows of live processes by table, each a list of the values of its columns.
        parts: the results of hosts, see `results.pack`.
        pulled: whether these are what was pulled of the tables, although the question can be split.
        kept: directories of allocations whose kept rows are joined to the rows.
        known: for each of them, the hosts whose parts have their kept rows, with their names by rank.
        since_s: Unix time of the oldest row of the past that is of interest; 0 for all.
    """

    rows: Mapping[str, list[Any]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    pulled: bool = False
    kept: list[str] = field(default_factory=list)
    known: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    since_s: float = 0.0


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
        write_message(1, _answer(sql, EngineRows(**json.loads(_read_message()))))
    except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
        write_message(1, ERROR + explain(error, sql).encode(errors="replace"))


def check(sql: str) -> dict[str, object]:
    """Return the tables that a question may be about, how it is split, and the plan of its answer.

    Any exception says that it is wrong, see `explain`.
    """
    from monarch_hpc.telemetry.sql.context import make_plan, tables_of

    plan, pulled, text = make_plan(sql)
    return {
        "tables": tables_of(sql),
        "split": dataclasses.asdict(plan),
        "pulled": dataclasses.asdict(pulled),
        "plan": text,
    }


def _answer(sql: str, given: EngineRows) -> bytes:
    from monarch_hpc.telemetry.kept.arrow import table_of_rows
    from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, finish, make_plan, results_of
    from monarch_hpc.telemetry.sql.results import unpack, write_stream

    plan, pulled, _ = make_plan(sql)
    plan = pulled if given.pulled else plan
    unreadable: list[str] = []
    live = {name: table_of_rows(SQL_TABLES[name], rows) for name, rows in given.rows.items()}
    kept = []
    for directory in given.kept:
        hosts = {int(rank): name for rank, name in given.known.get(directory, {}).items()}
        kept.append(KeptRows(Path(directory), without=hosts.keys(), hosts=hosts))
    own = results_of(plan.pieces, RowSet(live, kept, given.since_s), unreadable)
    parts = [own, *map(unpack, given.parts)]
    by_piece = [[part[place] for part in parts] for place in range(len(plan.pieces))]
    every = [KeptRows(Path(directory)) for directory in given.kept]
    answer = finish(plan, by_piece, RowSet(live, every, given.since_s), unreadable)
    found = json.dumps(sorted(set(unreadable)))
    return b"T" + write_stream(answer.replace_schema_metadata({UNREADABLE: found}))


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
