"""Questions in SQL about the processes of allocations: collects the rows of tables, and has an engine run the query."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from monarch_hpc.allocation.settings import name_of
from monarch_hpc.attach.attach import query_portions, query_status
from monarch_hpc.attach.overview import read_overview
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import QueryError
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.text.html import SHOWN_ROWS, html_table
from monarch_hpc.telemetry.kept.parts import KEPT
from monarch_hpc.telemetry.sql.engine import ERROR, UNREADABLE, EngineRows, write_message
from monarch_hpc.wire.control.questions import Rows
from monarch_hpc.wire.tables.overview import OVERVIEW
from monarch_hpc.wire.tables.pieces import SQL_TABLES, HostQuestion, QueryPiece, parse_part

__all__ = ["Collected", "QueryResult", "SqlEngine", "collect", "having_kept", "open_engine", "query_allocations"]

_START_S = 60.0
"""Time that an engine may take to start: half a second on an idle machine, and long where it is loaded from afar."""


@dataclass(slots=True)
class Collected:
    """The rows that a question is about, and the results of hosts for it.

    Attributes:
        rows: by table, as lists of the values of its columns.
        parts: results of hosts, see `telemetry.sql.results`.
        pulled: whether these are what was pulled of the tables, although the question can be split.
        known: for each allocation's directory, the hosts that have answered with their kept rows: names by rank.
        missing: processes that did not answer in time, in words.
        left_out: processes whose rows did not fit into the answer.
        cut: processes of whose records only some are there, because more did not fit: the latest, if they have a time.
        dropped: records that were overwritten in the memory of processes, and are not in files.
    """

    rows: dict[str, list[object]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    pulled: bool = False
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    dropped: int = 0


class QueryResult:
    """The answer to a question in SQL, about the records of live processes, and about those that are in files.

    Args:
        table: the answer, a `pyarrow.Table`.
        collected: the rows of which it was made.

    Attributes:
        missing_hosts: hosts and programs whose rows are not there, in words: without them the answer is incomplete.
        cut: hosts and programs of whose records only some are there.
        dropped: number of records that were overwritten in the memory of processes, and are not in files.
        unreadable: files of kept records that cannot be read.
    """

    def __init__(self, table: Any, collected: Collected) -> None:
        self._table = table
        self.unreadable: list[str] = json.loads((table.schema.metadata or {}).get(UNREADABLE, b"[]"))
        self.missing_hosts = [*collected.missing, *collected.left_out]
        self.cut = collected.cut
        self.dropped = collected.dropped

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._table.column_names)

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """The rows, of plain values; times are `datetime`."""
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks."""
        first = QueryResult._first(self._table)
        missing = f", without {', '.join(self.missing_hosts)}" if self.missing_hosts else ""
        return html_table(f"{self._table.num_rows} rows{missing}", self.columns, first, self._table.num_rows)

    @staticmethod
    def _first(table: Any) -> list[tuple[object, ...]]:
        return list(zip(*(column.to_pylist() for column in table.slice(0, SHOWN_ROWS).columns), strict=True))

    def to_arrow(self) -> Any:
        """The answer as a `pyarrow.Table`."""
        return self._table

    def to_parquet(self) -> bytes:
        """The answer as the contents of a parquet file."""
        import pyarrow.parquet

        written = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(self._table, written, compression="zstd")
        return bytes(written.getvalue())

    def to_pandas(self) -> Any:
        """The answer as a `pandas.DataFrame`, which needs pandas."""
        return self._table.to_pandas()


def query_allocations(
    directories: Sequence[Path], sql: str, timeout_s: float, since_s: float | None = None
) -> QueryResult:
    """Ask all processes of allocations, and answer a question in SQL; what they have kept in files is part of it.

    Args:
        timeout_s: limit on the time that hosts have to answer; and then on that of the query itself.
        since_s: only records of the last so many seconds are of interest; None for all that there are.

    Raises:
        QueryError: the SQL is wrong, or would change something; the query took longer, or too much memory; or the extra
            is not installed.
    """
    with open_engine(sql) as engine:
        collected = collect(directories, engine, timeout_s, since_s)
        return QueryResult(engine.run(collected, timeout_s, having_kept(directories), since_s), collected)


def having_kept(directories: Iterable[Path]) -> list[Path]:
    """Those of some allocations' directories in which records are kept."""
    return [directory for directory in directories if (directory / KEPT).is_dir()]


def collect(
    directories: Iterable[Path],
    engine: SqlEngine,
    timeout_s: float,
    since_s: float | None = None,
    ended: Iterable[Path] = (),
) -> Collected:
    """Have all hosts of allocations answer their part of a question, and ask for the rows that they do not have.

    Args:
        engine: one that has taken the question.
        ended: directories of allocations that have ended, of which the changes are left.
    """
    directories, gone = [*directories], [*ended]
    for pulled in (False, True):
        found = Collected(pulled=pulled)
        rule, pieces = engine.pieces(pulled=pulled)
        on_hosts = {piece.table for piece in pieces}
        names = [name for name in engine.tables if name not in on_hosts]
        found.rows.update({name: [] for name in engine.tables})
        for directory in [*directories, *gone]:
            overview = read_overview(directory, names, timeout_s, live=directory not in gone)
            for name, text in overview.rows.items():
                found.rows[name] += json.loads(text)
            found.missing.extend(overview.missing)
        least_s = 0.0 if since_s is None else time.time() - since_s
        is_whole = True
        for directory in directories:
            is_whole &= not pieces or _ask_hosts(directory, pieces, timeout_s, least_s, found, rule)
            for name in (name for name in names if name not in OVERVIEW):
                where = {"t": [">=", least_s]} if least_s and SQL_TABLES[name].history else {}
                answer = query_portions(directory, name, timeout_s, where)
                if answer is None:
                    _add(found.missing, [f"the head of {name_of(directory)}"])
                    break
                for portion in answer.portions:
                    found.rows[name] += json.loads(portion.rows)
                _note(found, answer)
        if is_whole:
            break
    return found


def _ask_hosts(
    directory: Path, pieces: Sequence[QueryPiece], timeout_s: float, least_s: float, found: Collected, rule: str
) -> bool:
    """Ask the hosts of an allocation; False if groups that are taken for those of one host are on several."""
    asked = HostQuestion(list(pieces), least_s).render()
    answer = query_portions(directory, pieces[0].table, timeout_s, {}, asked)
    if answer is None:
        _add(found.missing, [f"the head of {name_of(directory)}"])
        return True
    ranks: set[int] = set()
    hosts: set[object] = set()
    for portion in answer.portions:
        part = parse_part(portion.rows)
        if part.results:
            found.parts.append(part.results)
        for name, text in part.rows.items():
            rows = json.loads(text)
            found.rows[name] += rows
            place = [column.name for column in SQL_TABLES[name].columns].index("host")
            hosts.update(row[place] for row in rows)
        for first, last in part.ranks:
            ranks.update(range(first, last))
        _add(found.cut, part.cut)
        found.dropped += part.dropped
    _note(found, answer)
    if not (hosts and rule == "home") and not (directory / KEPT).is_dir():
        return True
    status = query_status(directory, timeout_s)
    names = {} if status is None else {int(str(one["rank"])): str(one["name"]) for one in status["hosts"]}
    known = found.known[str(directory)] = {str(rank): names.get(rank, "") for rank in sorted(ranks)}
    return not (rule == "home" and hosts.intersection(known.values()))


def _note(found: Collected, answer: Rows) -> None:
    cut = [portion.source for portion in answer.portions if portion.cut and not portion.rows.startswith("{")]
    for into, some in ((found.missing, answer.missing), (found.left_out, answer.left_out), (found.cut, cut)):
        _add(into, some)


def _add(into: list[str], some: Iterable[str]) -> None:
    into += [one for one in some if one not in into]


class SqlEngine:
    """An engine that has taken a question.

    Attributes:
        tables: those that the question may be about.
        plan: how the engine will answer it: the columns and rows that it needs, and what it does with them.
    """

    def __init__(self, process: subprocess.Popen[bytes], sql: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input, self._output = process.stdin.fileno(), process.stdout.fileno()
        with contextlib.suppress(BrokenPipeError):  # why is reported below
            write_message(self._input, sql.encode(errors="replace"))
        taken = json.loads(self._read(_START_S, "was not taken"))
        self.tables: list[str] = taken["tables"]
        self.plan: str = taken["plan"]
        self._plans = {pulled: taken["pulled" if pulled else "split"] for pulled in (False, True)}

    def pieces(self, *, pulled: bool = False) -> tuple[str, list[QueryPiece]]:
        """The rule by which the question is split, and what each host answers; or *pulled*, what it sends otherwise."""
        plan = self._plans[pulled]
        return plan["rule"], [QueryPiece(**piece) for piece in plan["pieces"]]

    def run(
        self, collected: Collected, timeout_s: float, kept: Iterable[Path] = (), since_s: float | None = None
    ) -> Any:
        """Return the answer as a `pyarrow.Table`.

        Args:
            collected: the rows and results of hosts.
            kept: directories of allocations whose kept rows are joined to them.
            since_s: only kept rows of the last so many seconds are of interest.

        Raises:
            QueryError: as for `query_allocations`.
        """
        import pyarrow

        with contextlib.suppress(BrokenPipeError):
            least_s = 0.0 if since_s is None else time.time() - since_s
            directories = [str(directory) for directory in kept]
            rows = EngineRows(collected.rows, collected.parts, collected.pulled, directories, collected.known, least_s)
            write_message(self._input, json.dumps(dataclasses.asdict(rows)).encode())
        return pyarrow.ipc.open_stream(self._read(timeout_s, "is not answered")[1:]).read_all()

    def _read(self, timeout_s: float, late: str) -> bytes:
        until_s = monotonic() + timeout_s
        body = bytearray()
        while len(body) < 8 or len(body) < 8 + int.from_bytes(body[:8], "little"):
            if not select.select([self._output], [], [], max(until_s - monotonic(), 0.0))[0]:
                raise QueryError(f"the query {late} within {timeout_s:g} s: ask for fewer rows, or give it more time")
            piece = os.read(self._output, 1 << 20)
            if not piece:
                status = self._process.wait(_START_S)
                raise QueryError(f"the query ended its engine (status {status}): it takes too much memory")
            body += piece
        if body[8:9] == ERROR:
            raise QueryError(body[9:].decode())
        return bytes(body[8:])


@contextlib.contextmanager
def open_engine(sql: str) -> Iterator[SqlEngine]:
    """Start an engine with a question, which it checks before any host is asked; end it with the block.

    Raises:
        QueryError: as for `query_allocations`.
    """
    process = launch(
        [sys.executable, "-P", "-m", "monarch_hpc.telemetry.sql.engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        new_session=True,
    )
    try:
        yield SqlEngine(process, sql)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
