"""Questions in SQL about the processes of allocations: has hosts answer their part, and an engine run the last text."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from monarch_hpc.allocation.settings import name_of
from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.attach.tables.kept_questions import KeptQuestions
from monarch_hpc.attach.tables.overview import read_overview
from monarch_hpc.attach.tables.rows import query_portions
from monarch_hpc.attach.tables.sql_engine import SqlEngine, open_engine
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import QueryError
from monarch_hpc.telemetry.kept.parts import KEPT, names_of_hosts
from monarch_hpc.telemetry.sql.given import FinishedAnswer, GivenRows, parse, render
from monarch_hpc.telemetry.sql.plan import MAX_ROWS, QueryPlan
from monarch_hpc.wire.control.questions import LastText, Rows
from monarch_hpc.wire.tables.overview import OVERVIEW
from monarch_hpc.wire.tables.pieces import HostQuestion, parse_part, sql_tables

__all__ = ["Collected", "QueryResult", "SqlQuestion", "open_question", "query_allocations"]


@dataclass(slots=True)
class Collected:
    """The rows that a question is about, and the results of hosts for it.

    Attributes:
        plan: the plan by which hosts were asked.
        since_s: Unix time of the oldest row of the past that is of interest; 0 for all.
        rows: by table, as lists of the values of its columns.
        parts: results of hosts, see `telemetry.sql.results`.
        known: for each allocation's directory, the hosts that have answered with their kept rows: names by rank.
        missing: processes that did not answer in time, in words.
        left_out: processes whose rows did not fit into the answer.
        cut: processes of whose records only some are there, because more did not fit: the latest, if they have a time;
            and the tables of these records.
        cut_inputs: those of them whose rows are joined, grouped or counted: an answer would be wrong, not only shorter.
        dropped: records that were overwritten in the memory of processes, and are not in files.
        finished: the answer, if the head has had it made.
    """

    plan: QueryPlan
    since_s: float = 0.0
    rows: dict[str, list[object]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    cut_inputs: list[str] = field(default_factory=list)
    dropped: int = 0
    finished: FinishedAnswer | None = None

    def check_inputs(self) -> None:
        """Raise `QueryError` if the answer would be wrong, because only some of the rows fit that it is made of."""
        if self.cut_inputs:
            joined = ", or join tables on host or incarnation, which hosts do" if len(self.plan.pieces) > 1 else ""
            raise QueryError(
                f"only the latest records of {', '.join(self.cut_inputs)} fit into telemetry.max_answer_bytes and "
                f"{MAX_ROWS} rows, and an answer made of them would be wrong: ask for fewer by WHERE, GROUP BY or the "
                f"time{joined}; or ask for a partial answer, about those that fit"
            )


class QueryResult:
    """The answer to a question in SQL, about the records of live processes, and about those that are in files.

    Args:
        answer: the answer, as a stream of Arrow's.
        collected: the rows of which it was made.

    Attributes:
        missing_hosts: hosts and programs whose rows are not there, in words: without them the answer is incomplete.
        cut: hosts and programs of whose records only some are there, with the tables of these records.
        dropped: number of records that were overwritten in the memory of processes, and are not in files.
        unreadable: files of kept records that cannot be read.
    """

    def __init__(self, answer: FinishedAnswer, collected: Collected) -> None:
        self._answer = answer
        self.unreadable = answer.unreadable
        self.missing_hosts = [*collected.missing, *collected.left_out]
        self.cut = collected.cut
        self.dropped = collected.dropped

    @functools.cached_property
    def _table(self) -> Any:
        import pyarrow  # late: whoever only asks whether hosts are missing needs no libraries

        return pyarrow.ipc.open_stream(base64.b64decode(self._answer.data)).read_all()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._answer.columns)

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """The rows, of plain values; times are `datetime`."""
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def _repr_html_(self) -> str:
        """The first rows as a table, for notebooks."""
        from monarch_hpc.core.text.html import SHOWN_ROWS, html_table  # late: a command shows plain text

        first = list(zip(*(column.to_pylist() for column in self._table.slice(0, SHOWN_ROWS).columns), strict=True))
        missing = f", without {', '.join(self.missing_hosts)}" if self.missing_hosts else ""
        return html_table(f"{self._answer.num_rows} rows{missing}", self.columns, first, self._answer.num_rows)

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
    directories: Sequence[Path],
    sql: str,
    timeout_s: float,
    since_s: float | None = None,
    *,
    partial: bool = False,
    kept: KeptQuestions | None = None,
) -> QueryResult:
    """Ask all processes of allocations, and answer a question in SQL; what they have kept in files is part of it.

    Args:
        timeout_s: limit on the time that an engine takes to check the query; then on that of hosts to answer; and then
            on that of the query itself.
        since_s: only records of the last so many seconds are of interest; None for all that there are.
        partial: answer also if only some of the rows fit that are joined or grouped.
        kept: what is kept for the next question.

    Raises:
        QueryError: the SQL is wrong, or would change something; the query took longer, or too much memory; the rows
            that it is made of do not fit; or the extra is not installed where it would be answered.
    """
    with open_question(sql, directories, timeout_s, kept=kept) as question:
        found = question.collect(timeout_s, since_s, "arrow")
        if not partial:
            found.check_inputs()
        return QueryResult(question.finish(found, "arrow", timeout_s), found)


@dataclass(frozen=True, slots=True)
class SqlQuestion:
    """A question that an engine has taken, and the allocations that it is about.

    Args:
        heads: channels to the heads of those that live.
        ended: directories of those that have ended.
    """

    engine: SqlEngine
    heads: Sequence[HeadClient]
    ended: Sequence[Path] = ()

    def collect(self, timeout_s: float, since_s: float | None = None, form: str = "") -> Collected:
        """Have all hosts answer their part, and ask for the rows that they do not have.

        Args:
            since_s: only records of the last so many seconds are of interest.
            form: format in which `finish` will return the answer, if that is known.

        Raises:
            QueryError: the query takes longer, or too much memory.
        """
        found = Collected(plan=self.engine.plan())
        for pulled in (False, True):
            least_s = 0.0 if since_s is None else time.time() - since_s
            found = Collected(plan=self.engine.plan(pulled=pulled), since_s=least_s)
            if self._collect(found, timeout_s, form):
                break
        return found

    def _collect(self, found: Collected, timeout_s: float, form: str) -> bool:
        tables, pieces = self.engine.taken.tables, found.plan.pieces
        on_hosts = {name for piece in pieces for name in piece.tables}
        names = [name for name in tables if name not in on_hosts]
        found.rows.update({name: [] for name in tables})
        for directory, head in [*((head.directory, head) for head in self.heads), *((one, None) for one in self.ended)]:
            overview = read_overview(directory, names, timeout_s, head)
            for name, text in overview.rows.items():
                found.rows[name] += json.loads(text)
            found.missing.extend(overview.missing)
        is_whole = True
        for head in self.heads:
            is_whole &= not pieces or _ask_hosts(head, timeout_s, found, self._last(found, names, form))
            for name in (name for name in names if name not in OVERVIEW):
                where = {"t": [">=", found.since_s]} if found.since_s and sql_tables()[name].history else {}
                answer = query_portions(head, name, timeout_s, where)
                if answer is None:
                    _add(found.missing, [f"the head of {name_of(head.directory)}"])
                    break
                for portion in answer.portions:
                    found.rows[name] += json.loads(portion.rows)
                _note(found, answer)
        return is_whole

    def _last(self, found: Collected, names: Sequence[str], form: str) -> LastText | None:
        """The last text, for a head that has all that it is about if all of its hosts answer; None if none has."""
        kept = self._kept()
        if not form or names or self.ended or len(self.heads) != 1 or (found.plan.by_host and kept):
            return None
        given = GivenRows(found.plan, found.rows, kept=kept, since_s=found.since_s)
        return LastText(self.engine.sql, render(given), form)

    def _kept(self) -> list[str]:
        directories = [*(head.directory for head in self.heads), *self.ended]
        return [str(directory) for directory in directories if (directory / KEPT).is_dir()]

    def finish(self, found: Collected, form: str, timeout_s: float) -> FinishedAnswer:
        """Return the answer, see `SqlEngine.finish`."""
        if found.finished is not None:
            return found.finished
        given = GivenRows(found.plan, found.rows, found.parts, self._kept(), found.known, found.since_s)
        return self.engine.finish(given, form, timeout_s)


@contextlib.contextmanager
def open_question(
    sql: str,
    directories: Iterable[Path],
    timeout_s: float,
    ended: Sequence[Path] = (),
    kept: KeptQuestions | None = None,
) -> Iterator[SqlQuestion]:
    """Have an engine take a question about allocations, before any host is asked; the block is to ask them.

    Args:
        timeout_s: how long the engine may take for that.
        kept: what is kept for the next question; None for nothing.

    Raises:
        QueryError: as for `open_engine`.
    """
    with contextlib.ExitStack() as stack:
        if kept is None:
            heads = [stack.enter_context(contextlib.closing(HeadClient(directory))) for directory in directories]
        else:
            heads = [stack.enter_context(kept.head(directory)) for directory in directories]
        yield SqlQuestion(stack.enter_context(open_engine(sql, timeout_s, heads, kept)), heads, ended)


def _ask_hosts(head: HeadClient, timeout_s: float, found: Collected, last: LastText | None) -> bool:
    """Ask the hosts of an allocation; False if rows that are grouped or joined on one host are in several places."""
    directory, pieces, by_host = head.directory, found.plan.pieces, found.plan.by_host
    question = HostQuestion(pieces, found.since_s).render()
    answer = query_portions(head, pieces[0].tables[0], timeout_s, {}, question, last=last)
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
            place = [column.name for column in sql_tables()[name].columns].index("host")
            hosts.update(row[place] for row in rows)
        for span in part.ranks:
            ranks.update(range(*span))
        _add(found.cut, part.cut)
        if found.plan.rule != "rows":
            _add(found.cut_inputs, part.cut)
        found.dropped += part.dropped
    _note(found, answer)
    if answer.problem:
        raise QueryError(answer.problem)
    if answer.finished:
        found.finished = parse(FinishedAnswer, answer.finished)
        return True
    if not (hosts and by_host) and not (directory / KEPT).is_dir():
        return True
    status = query_status(head, timeout_s)
    names = {} if status is None else {int(str(one["rank"])): str(one["name"]) for one in status["hosts"]}
    known = found.known[str(directory)] = {str(rank): names.get(rank, "") for rank in sorted(ranks)}
    if by_host:
        # A host that came back has a new rank, and does not know its earlier parts.
        hosts |= names_of_hosts(directory, ranks)
    return not hosts.intersection(("", *known.values()) if by_host else ())


def _note(found: Collected, answer: Rows) -> None:
    cut = [portion.source for portion in answer.portions if portion.cut and not portion.rows.startswith("{")]
    for into, some in ((found.missing, answer.missing), (found.left_out, answer.left_out), (found.cut, cut)):
        _add(into, some)


def _add(into: list[str], some: Iterable[str]) -> None:
    into += [one for one in some if one not in into]
