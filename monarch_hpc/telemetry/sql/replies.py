"""The answers of an engine to the messages that it is sent. It loads DataFusion and pyarrow."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from monarch_hpc.core.errors import FrameError
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.kept.arrow import table_of_rows
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, combine, finish, has_rows, results_of
from monarch_hpc.telemetry.sql.given import FinishedAnswer, GivenRows, parse, render
from monarch_hpc.telemetry.sql.host_part import HostPart
from monarch_hpc.telemetry.sql.plan import MAX_ROWS
from monarch_hpc.telemetry.sql.planning import Planner
from monarch_hpc.telemetry.sql.problems import explain
from monarch_hpc.telemetry.sql.results import fit, unpack, write_stream
from monarch_hpc.wire.control.questions import AskSql, SqlAnswer
from monarch_hpc.wire.control.scribe import AskEngine, BeginLeaf, MergeParts
from monarch_hpc.wire.tables.pieces import (
    AnswerPart,
    HostQuestion,
    name_cut,
    parse_part,
    parse_question,
    ranks_of,
    spans_of,
    sql_tables,
)

__all__ = ["answer_part", "answer_question", "finish_question", "merge_parts"]


_host = HostPart()
"""Keeps of its host what the next question of this process may need."""


def answer_part(asked: AskEngine, begin: BeginLeaf, procs: list[tuple[ProcPlace, int]]) -> AnswerPart:
    """Answer the part of a question that is about this host.

    Args:
        procs: its processes, with the descriptor of their records.
    """
    question = parse_question(asked.pieces)
    rows = {name: json.loads(text) for name, text in asked.rows.items() if name in sql_tables()}
    correction = Correction(asked.offset_ns, asked.error_us)
    live = {name: table_of_rows(sql_tables()[name], some) for name, some in rows.items()}
    results, num_lost = _host.answer(question, live, procs, begin, correction)
    num_lost = asked.dropped if begin.directory else num_lost
    text, places = fit(results, asked.max_bytes, MAX_ROWS)
    cut = _cut(asked.source, question, places)
    return AnswerPart(text, {}, spans_of([begin.rank]), cut, num_lost)


def _cut(source: str, question: HostQuestion, places: Sequence[int]) -> list[str]:
    return name_cut(source, (name for place in places for name in question.pieces[place].tables))


def merge_parts(asked: MergeParts) -> AnswerPart:
    """Combine the parts of an answer."""
    question, parts = parse_question(asked.pieces), [parse_part(text) for text in asked.parts]
    results = [unpack(part.results) for part in parts]
    merged = [combine(piece, [one[place] for one in results]) for place, piece in enumerate(question.pieces)]
    text, places = fit(merged, asked.max_bytes, MAX_ROWS)
    ranks = ranks_of(parts)
    cut = [source for part in parts for source in part.cut] + _cut(asked.source, question, places)
    return AnswerPart(text, {}, spans_of(ranks), cut, sum(part.dropped for part in parts))


def answer_question(asked: AskSql, planner: Planner) -> SqlAnswer:
    """Plan a question, or answer it with what hosts have sent; a wrong one is answered with what is wrong."""
    try:
        if not asked.given:
            return SqlAnswer(asked.ticket, body=render(planner.plan(asked.sql)))
        return SqlAnswer(asked.ticket, body=render(finish_question(asked)))
    except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
        return SqlAnswer(asked.ticket, problem=explain(error, asked.sql))


def finish_question(asked: AskSql) -> FinishedAnswer:
    """Run the last text of a question."""
    given = parse(GivenRows, asked.given)
    unreadable: list[str] = []
    on_hosts = {name for piece in given.plan.pieces for name in piece.tables}
    live = {name: table_of_rows(sql_tables()[name], _lists(rows)) for name, rows in given.rows.items()}
    kept = []
    for directory in given.kept:
        hosts = {int(rank): name for rank, name in given.known.get(directory, {}).items()}
        kept.append(KeptRows(Path(directory), without=hosts.keys(), hosts=hosts))
    parts = [unpack(text) for text in given.parts]
    if not parts or any(len(live[name]) for name in on_hosts.intersection(live)) or any(map(has_rows, kept)):
        parts.append(results_of(given.plan.pieces, RowSet(live, kept, given.since_s), unreadable))
    by_piece = [[part[place] for part in parts] for place in range(len(given.plan.pieces))]
    every = [KeptRows(Path(directory)) for directory in given.kept]
    rows = RowSet(live, every, given.since_s)
    table = finish(given.plan, by_piece, rows, unreadable, asked.max_bytes)
    columns, found = list(table.column_names), sorted(set(unreadable))
    return _FORMS[asked.form](table, found, columns)


def _lists(rows: list[object]) -> list[list[Any]]:
    if not all(isinstance(row, list) for row in rows):
        raise FrameError("rows of a table are lists of values")
    return rows  # type: ignore[return-value]  # as has been checked


def _as_json(table: Any, unreadable: list[str], columns: list[str]) -> FinishedAnswer:
    values = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    rows: list[object] = [list(row) for row in zip(*values, strict=True)] if values else []
    return FinishedAnswer(table.num_rows, unreadable, columns, rows)


def _as_stream(table: Any, unreadable: list[str], columns: list[str]) -> FinishedAnswer:
    return FinishedAnswer(
        table.num_rows, unreadable, columns, data=base64.b64encode(write_stream(table)).decode("ascii")
    )


def _as_parquet(table: Any, unreadable: list[str], columns: list[str]) -> FinishedAnswer:
    import pyarrow.parquet as pq  # late: few ask for one, and it takes long to load

    written = pa.BufferOutputStream()
    pq.write_table(table, written, compression="zstd")
    data = base64.b64encode(written.getvalue()).decode("ascii")
    return FinishedAnswer(table.num_rows, unreadable, columns, data=data)


_FORMS: Mapping[str, Callable[[Any, list[str], list[str]], FinishedAnswer]] = {
    "json": _as_json,
    "arrow": _as_stream,
    "parquet": _as_parquet,
}


def _plain(value: object) -> object:
    """The value as messages have it, which know NaN and infinity, too."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="microseconds")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
