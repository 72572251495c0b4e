"""Questions in SQL about rows of tables, without hosts: answers, and what is refused in which words."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.head.status import HeadStatus
from monarch_hpc.attach.tables import sql as questions
from monarch_hpc.attach.tables.sql import Collected, QueryResult, query_allocations
from monarch_hpc.attach.tables.sql_engine import SqlEngine, _HeadEngine, _OwnEngine
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.errors import QueryError
from monarch_hpc.telemetry.kept.chunks import EVENTS, NO_PROCESS, Heading
from monarch_hpc.telemetry.kept.chunks import ROWS as ROWS_CHUNK
from monarch_hpc.telemetry.kept.chunks import render as render_chunk
from monarch_hpc.telemetry.kept.parts import write_part
from monarch_hpc.telemetry.shipped import question, shipped_questions
from monarch_hpc.telemetry.sql.given import GivenRows, render
from monarch_hpc.wire.control.questions import AskSql, LastText, Portion, Rows, SqlAnswer
from monarch_hpc.wire.tables.history import METRICS, MetricRow
from monarch_hpc.wire.tables.pieces import AnswerPart, parse_question, sql_tables
from tests.guards.tree import ROOT

pytest.importorskip("datafusion")
parquet = pytest.importorskip("pyarrow.parquet")

from monarch_hpc.telemetry.kept.arrow import table_of_rows  # noqa: E402
from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, results_of  # noqa: E402
from monarch_hpc.telemetry.sql.planning import Planner  # noqa: E402
from monarch_hpc.telemetry.sql.problems import explain  # noqa: E402
from monarch_hpc.telemetry.sql.results import pack  # noqa: E402

_PATIENCE_S = 60.0
Ask = Callable[..., list[tuple[object, ...]]]
_T = 1_800_000_000.25
ROWS = [
    MetricRow("run", 1, rank, "n1", 7, _T + step, 0.0, step, "trainer", rank, "loss", rank + step / 10, step, "")
    for rank in (0, 1)
    for step in range(3)
]


@pytest.fixture(scope="module")
def planner() -> Planner:
    """The engine keeps threads and descriptors of its own, also here, where its refusals are tested."""
    planner = Planner()
    planner.plan("SELECT 1")
    return planner


@pytest.fixture(scope="module")
def engines() -> Iterator[_OwnEngine]:
    """One engine for all questions, as hosts have one."""
    with contextlib.closing(_OwnEngine()) as engine:
        SqlEngine(
            [engine], "SELECT 1", _PATIENCE_S
        )  # it starts before the first test, which it would seem to be left by
        yield engine


@contextlib.contextmanager
def _shared(
    engines: _OwnEngine, sql: str, timeout_s: float, heads: Sequence[HeadClient] = (), kept: object = None
) -> Iterator[SqlEngine]:
    """As `open_engine`, for heads that cannot be reached; the engine in a child, a second of a processor, is kept."""
    yield SqlEngine([*map(_HeadEngine, heads), engines], sql, timeout_s)


@pytest.fixture
def ask(engines: _OwnEngine) -> Ask:
    def ask(sql: str, rows: Sequence[MetricRow] = ROWS) -> list[tuple[object, ...]]:
        engine = SqlEngine([engines], sql, _PATIENCE_S)
        given = GivenRows(engine.plan(), {"metrics": json.loads(METRICS.render(rows, {}))})
        return QueryResult(engine.finish(given, "arrow", _PATIENCE_S), Collected(given.plan)).rows

    return ask


def test_rows_are_grouped_joined_and_compared_in_time(ask: Ask) -> None:
    assert ask("SELECT step, max(value) - min(value) FROM metrics GROUP BY step ORDER BY step") == [
        (0, 1.0),
        (1, 1.0),
        (2, 1.0),
    ]
    assert ask(
        "SELECT min(t), count(*) FROM metrics WHERE t >= (SELECT max(t) FROM metrics) - INTERVAL '1 second'"
    ) == [(datetime.fromtimestamp(_T + 1, UTC), 4)]
    assert ask("SELECT count(*) FROM metrics m LEFT JOIN spans s ON m.pid = s.pid WHERE s.pid IS NULL") == [(6,)]
    everything = " UNION ALL ".join(f"SELECT count(*) AS num FROM {name}" for name in sql_tables())
    assert ask(f"SELECT sum(num) FROM ({everything})") == [(len(ROWS),)]


@pytest.mark.parametrize("name", shipped_questions())
def test_questions_that_ship_are_answered_and_explained(ask: Ask, name: str) -> None:
    ask(question(name))
    assert f"| `{name}` |" in (ROOT / "docs" / "seeing.md").read_text()


def test_an_answer_is_explained_and_has_other_forms(engines: _OwnEngine) -> None:
    sql = "SELECT rank, max(value) AS most, max(t) AS t FROM metrics WHERE step > 0 GROUP BY rank ORDER BY rank"
    engine = SqlEngine([engines], sql, _PATIENCE_S)
    assert engine.taken.tables == ["metrics"]
    assert "projection=[rank, t, value, step]" in engine.taken.plan and "Aggregate" in engine.taken.plan
    given = GivenRows(engine.plan(), {"metrics": json.loads(METRICS.render(ROWS, {}))})
    finished = engine.finish(given, "arrow", _PATIENCE_S)
    answer = QueryResult(finished, Collected(given.plan, missing=["host <b>"]))
    moment = datetime.fromtimestamp(_T + 2, UTC)
    assert answer.rows == [(0, 0.2, moment), (1, 1.2, moment)] and answer.columns == ["rank", "most", "t"]
    html = answer._repr_html_()
    assert "<td>1.2</td>" in html and "2 rows, without host &lt;b&gt;" in html
    in_file = base64.b64decode(engine.finish(given, "parquet", _PATIENCE_S).data)
    for data in (in_file, answer.to_parquet()):
        assert parquet.read_table(io.BytesIO(data)).to_pylist() == answer.to_arrow().to_pylist()
    plain = engine.finish(given, "json", _PATIENCE_S)
    assert (plain.num_rows, plain.columns) == (2, answer.columns)
    assert plain.rows[0] == [0, 0.2, "2027-01-15 08:00:02.250000+00:00"]


def test_names_of_programs_that_are_not_unicode_are_rows(ask: Ask) -> None:
    odd = [replace(ROWS[0], name="a\ud800b", value=float("nan"))]
    assert ask("SELECT name FROM metrics WHERE value <> 1", odd) == [("a?b",)]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM metricss", "there is no table 'metricss' (line 1, column 15): did you mean metrics?"),
        ("SELECT * FROM x", "there is no table 'x' (line 1, column 15): there are: actors, channels, clocks"),
        ("SELECT rank,\n  valu FROM metrics", "there is no column 'valu' (line 2, column 3): did you mean value?"),
        ("SELECT m.valu FROM metrics m", "there is no column 'valu' (line 1, column 10): did you mean value?"),
        ("SELEC 1", 'Line: 1, Column: 1")\n    SELEC 1\n    ^'),
        ("SELECT frobnicate(1)", "there is no function 'frobnicate' (line 1, column 8)"),
        ("", "No SQL statements"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
        ("CREATE TABLE x AS SELECT 1", "only questions (SELECT) are answered"),
        ("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'", "only questions (SELECT) are answered"),
        ("COPY metrics TO '/tmp/x.csv'", "only questions (SELECT) are answered"),
        ("INSERT INTO metrics SELECT * FROM metrics", "only questions (SELECT) are answered"),
        ("DELETE FROM metrics", "only questions (SELECT) are answered"),
        ("SET datafusion.execution.batch_size = 1", "only questions (SELECT) are answered"),
        ("DROP TABLE metrics", "only questions (SELECT) are answered"),
        ("SELECT * FROM '/etc/passwd'", "there is no table '/etc/passwd' (line 1, column 16)"),
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' not found"),
    ],
)
def test_what_is_no_question_is_refused_before_anybody_is_asked(planner: Planner, sql: str, words: str) -> None:
    with pytest.raises(Exception) as caught:
        planner.plan(sql)
    assert words in explain(caught.value, sql)


def test_a_join_of_ten_to_the_ninth_rows_ends_at_its_limits_and_harms_only_itself(
    engines: _OwnEngine, ask: Ask
) -> None:
    many = "generate_series(1, 100000)"
    endless = f"SELECT sum(a.value + b.value) FROM {many} a, {many} b WHERE a.value <> b.value"
    engine = SqlEngine([engines], endless, _PATIENCE_S)
    with pytest.raises(QueryError, match=r"is not answered within 0\.5 s"):
        engine.finish(GivenRows(engine.plan()), "json", 0.5)
    long = f"SELECT a.value, b.value FROM {many} a, {many} b"
    engine = SqlEngine([engines], long, _PATIENCE_S)
    with pytest.raises(QueryError, match=r"the answer takes more than 256 MiB after \d+ rows"):
        engine.finish(GivenRows(engine.plan()), "json", _PATIENCE_S)
    wide = f"SELECT count(*) FROM (SELECT DISTINCT a.value * 100000 + b.value FROM {many} a, {many} b)"
    engine = SqlEngine([engines], wide, _PATIENCE_S)
    with pytest.raises(QueryError, match=r"takes more memory|is not answered"):
        engine.finish(GivenRows(engine.plan()), "json", _PATIENCE_S)
    assert ask("SELECT count(*) FROM metrics") == [(len(ROWS),)]


def test_questions_do_not_wait_for_one_without_end(engines: _OwnEngine) -> None:
    many = "generate_series(1, 100000)"
    endless = f"SELECT sum(a.value + b.value) FROM {many} a, {many} b WHERE a.value <> b.value"
    engine, quick = SqlEngine([engines], endless, _PATIENCE_S), SqlEngine([engines], "SELECT 1 AS one", _PATIENCE_S)
    assert engines._messages is not None
    given = GivenRows(engine.plan())
    engines._messages.send(AskSql(77, endless, render(given), "json", _PATIENCE_S, 1 << 20))
    assert quick.finish(GivenRows(quick.plan()), "json", _PATIENCE_S).rows == [[1]]


def test_an_engine_that_is_ended_is_named_and_one_that_is_absent_is_passed_over(planner: Planner) -> None:
    class Absent:
        def ask(self, question: AskSql, patience_s: float) -> SqlAnswer:
            return SqlAnswer(0, absent="host n1 lacks datafusion")

    with contextlib.closing(_OwnEngine()) as own:
        engine = SqlEngine([Absent(), own], "SELECT 1 AS one", _PATIENCE_S)
        assert own._process is not None
        assert engine.finish(GivenRows(engine.plan()), "json", _PATIENCE_S).rows == [[1]]
        own._process.kill()  # as an allocation that fails does
        with pytest.raises(QueryError, match="the engine of queries has ended"):
            engine.finish(GivenRows(engine.plan()), "json", _PATIENCE_S)
    with pytest.raises(QueryError, match="host n1 lacks datafusion"):
        SqlEngine([Absent()], "SELECT 1", _PATIENCE_S)


def test_an_engine_that_does_not_take_a_question_is_waited_for_no_longer_than_the_question_says() -> None:
    class Unasked:
        def ask(self, question: AskSql, patience_s: float) -> SqlAnswer:
            raise AssertionError(f"asked {question.sql} when its time was over")

    with contextlib.closing(_OwnEngine()) as own:
        SqlEngine([own], "SELECT 1", _PATIENCE_S)
        assert own._process is not None
        os.kill(own._process.pid, signal.SIGSTOP)
        started_s = monotonic()
        with pytest.raises(QueryError, match=r"the engine of queries does not answer within 0\.1 s: ask again"):
            SqlEngine([own, Unasked()], "SELECT 1", 0.1)
        assert monotonic() - started_s < _PATIENCE_S / 2


def test_hosts_answer_their_part_and_the_tables_that_the_question_names_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, engines: _OwnEngine
) -> None:
    asked: list[tuple[str, str, list[str]]] = []

    def answers(
        head: HeadClient,
        table: str,
        timeout_s: float,
        where: dict[str, object],
        pieces: str = "",
        last: LastText | None = None,
    ) -> Rows | None:
        directory = head.directory
        on_hosts = [piece.host for piece in parse_question(pieces).pieces] if pieces else []
        asked.append((directory.name, table, on_hosts))
        if directory.name == "dead":
            return None
        if not pieces:
            return Rows(1, [Portion("host n9", "[]")], ["host n7"], [])
        part = AnswerPart(rows={"metrics": METRICS.render(ROWS, {})}, ranks=[[0, 1]], cut=["host n9"], dropped=7)
        return Rows(1, [Portion("host n9", part.render())], ["host n7"], ["host n8"])

    monkeypatch.setattr(questions, "query_portions", answers)
    monkeypatch.setattr(questions, "open_engine", partial(_shared, engines))
    sql = "SELECT count(*) FROM metrics FULL JOIN procs USING (pid)"
    result = query_allocations([Path("/a/live"), Path("/a/dead")], sql, _PATIENCE_S, 60.0, partial=True)
    pulled = ["SELECT pid FROM metrics ORDER BY t DESC LIMIT 1000001"]
    assert sorted(asked) == [
        ("dead", "metrics", pulled),
        ("dead", "procs", []),
        *sorted([("live", "metrics", pulled), ("live", "procs", [])]),
    ]
    assert result.rows == [(0,)] and result.columns == ["count(*)"]  # all of them are older
    assert result.missing_hosts == ["host n7", "the head of dead", "host n8"]
    assert result.cut == ["host n9"] and result.dropped == 7
    for one, answer in ((sql, len(ROWS)), ("SELECT max(rank) FROM metrics", 1)):
        assert query_allocations([Path("/a/live")], one, _PATIENCE_S, partial=True).rows == [(answer,)]
        with pytest.raises(
            QueryError, match=r"only the latest records of host n9 fit .* would be wrong: ask for fewer"
        ):
            query_allocations([Path("/a/live")], one, _PATIENCE_S)
    shorter = query_allocations([Path("/a/live")], "SELECT step FROM metrics", _PATIENCE_S)
    assert len(shorter.rows) == len(ROWS) and shorter.cut == ["host n9"]


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize(("rank", "known"), [(3, True), (5, True), (5, False)])
def test_a_host_that_came_back_with_another_rank_is_one_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engines: _OwnEngine, rank: int, *, known: bool
) -> None:
    """Its earlier part is read beside the head, and is not among the rows that it groups by itself."""
    rows = METRICS.render(ROWS[:3], {}).encode()
    chunks = render_chunk(Heading(ROWS_CHUNK, len(rows), *NO_PROCESS, "metrics", 3), rows)
    if known:
        chunks += render_chunk(Heading(EVENTS, 0, "n1", "run", 1, 0, 7, 0, 0.0, "", 0), b"")
    write_part(tmp_path, 3, 1, chunks)
    live = {"metrics": table_of_rows(METRICS, json.loads(METRICS.render(ROWS[3:], {})))}

    def answers(
        head: HeadClient,
        table: str,
        timeout_s: float,
        where: dict[str, object],
        pieces: str = "",
        last: LastText | None = None,
    ) -> Rows | None:
        kept = [KeptRows(tmp_path, ranks=[rank], hosts={rank: "n1"})]
        results = results_of(parse_question(pieces).pieces, RowSet(live, kept), [])
        return Rows(1, [Portion("host n1", AnswerPart(pack(results), ranks=[[rank, rank + 1]]).render())], [], [])

    status = HeadStatus(hosts=[{"rank": rank, "name": "n1"}], runs=[], kept=[], idle_left_s=0.0, link="", link_why="")
    monkeypatch.setattr(questions, "query_portions", answers)
    monkeypatch.setattr(questions, "open_engine", partial(_shared, engines))
    monkeypatch.setattr(questions, "query_status", lambda head, timeout_s: status)
    sql = "SELECT a.host, median(b.value), count(*) FROM metrics a JOIN metrics b ON a.host = b.host GROUP BY a.host"
    assert query_allocations([tmp_path], sql, _PATIENCE_S).rows == [("n1", 0.6, len(ROWS) ** 2)]
