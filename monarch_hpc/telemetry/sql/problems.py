"""The engine's errors in words of ours: the place in the question, and the nearest names."""

from __future__ import annotations

import difflib
import re

from monarch_hpc.telemetry.sql.context import AnswerTooLong
from monarch_hpc.telemetry.sql.plan import tables_of
from monarch_hpc.wire.tables.pieces import sql_tables

__all__ = ["explain"]

_MISSING_TABLE = re.compile(r"table '(?:datafusion\.public\.)?([^']*)' not found")
_MISSING_COLUMN = re.compile(r"No field named \"?(?:\w+\.)?\"?(\w+)")
_MISSING_FUNCTION = re.compile(r"Invalid function '([^']*)'\.?(?: Did you mean '([^']*)')?")
_PLACE = re.compile(r"Line: (\d+), Column: (\d+)")
_SHOWN_CHARS = 60


def explain(error: Exception, sql: str) -> str:
    """Return why a question cannot be answered."""
    if isinstance(error, AnswerTooLong):
        return (
            f"the answer takes more than {error.max_bytes >> 20} MiB after {error.num_rows} rows, its limit "
            "(telemetry.max_answer_bytes): choose fewer rows or columns, e.g. by LIMIT or GROUP BY"
        )
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "Resources exhausted" in text or "Failed to allocate" in text:
        return "the query takes more memory than its engine has (1 GiB): ask for fewer rows, or group them by less"
    if (table := _MISSING_TABLE.search(text)) is not None:
        return f"there is no table {table[1]!r}{_at(sql, table[1])}: {_nearest(table[1], [*sql_tables()])}"
    if (column := _MISSING_COLUMN.search(text)) is not None:
        known = {one.name for name in tables_of(sql) for one in sql_tables()[name].columns}
        return f"there is no column {column[1]!r}{_at(sql, column[1])}: {_nearest(column[1], sorted(known))}"
    if (function := _MISSING_FUNCTION.search(text)) is not None:
        near = f": did you mean {function[2]}?" if function[2] else ""
        return f"there is no function {function[1]!r}{_at(sql, function[1])}{near}"
    if " not supported: " in text:
        return f"only questions (SELECT) are answered: {text}"
    if (place := _PLACE.search(text)) is not None:
        return f"the query cannot be answered: {text[:1000]}{_marked(sql, int(place[1]), int(place[2]))}"
    return f"the query cannot be answered: {text[:1000]}"


def _at(sql: str, name: str) -> str:
    """The place of a name that stands in a question, if it stands there once more or less as the engine names it."""
    found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql, re.IGNORECASE)
    if found is None:
        return ""
    line = sql.count("\n", 0, found.start()) + 1
    column = found.start() - (sql.rfind("\n", 0, found.start()) + 1) + 1
    return f" (line {line}, column {column})"


def _marked(sql: str, line: int, column: int) -> str:
    """The line of the question with a mark below the place; empty if the place is not in it."""
    lines = sql.split("\n")
    if not 1 <= line <= len(lines) or not 1 <= column <= len(lines[line - 1]) + 1:
        return ""
    begin = max(column - 1 - _SHOWN_CHARS // 2, 0)
    return f"\n    {lines[line - 1][begin : begin + _SHOWN_CHARS]}\n    {' ' * (column - 1 - begin)}^"


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known) or 'none'}"
