"""Questions in SQL about rows of tables, without hosts: answers, and what is refused in which words."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from monarch_hpc.attach import sql as questions
from monarch_hpc.attach.sql import Collected, QueryResult, open_engine, query_allocations
from monarch_hpc.core.errors import QueryError
from monarch_hpc.telemetry.shipped import question, shipped_questions
from monarch_hpc.telemetry.sql.engine import check, explain
from monarch_hpc.wire.control.questions import Portion, Rows
from monarch_hpc.wire.tables.history import METRICS, MetricRow
from monarch_hpc.wire.tables.pieces import SQL_TABLES, AnswerPart, parse_question
from tests.guards.tree import ROOT

pytest.importorskip("datafusion")
parquet = pytest.importorskip("pyarrow.parquet")

_PATIENCE_S = 60.0
_T = 1_800_000_000.25
ROWS = [
    MetricRow("run", 1, rank, "n1", 7, _T + step, 0.0, step, "trainer", rank, "loss", rank + step / 10, step, "")
    for rank in (0, 1)
    for step in range(3)
]


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """The engine keeps threads and descriptors of its own, also here, where its refusals are tested."""
    check("SELECT 1")


def ask(sql: str, rows: Sequence[MetricRow] = ROWS) -> list[tuple[object, ...]]:
    with open_engine(sql) as engine:
        table = engine.run(Collected({"metrics": json.loads(METRICS.render(rows, {}))}), _PATIENCE_S)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_rows_are_grouped_joined_and_compared_in_time() -> None:
    assert ask("SELECT step, max(value) - min(value) FROM metrics GROUP BY step ORDER BY step") == [
        (0, 1.0),
        (1, 1.0),
        (2, 1.0),
    ]
    assert ask(
        "SELECT min(t), count(*) FROM metrics WHERE t >= (SELECT max(t) FROM metrics) - INTERVAL '1 second'"
    ) == [(datetime.fromtimestamp(_T + 1, UTC), 4)]
    assert ask("SELECT count(*) FROM metrics m LEFT JOIN spans s ON m.pid = s.pid WHERE s.pid IS NULL") == [(6,)]
    everything = " UNION ALL ".join(f"SELECT count(*) AS num FROM {name}" for name in SQL_TABLES)
    assert ask(f"SELECT sum(num) FROM ({everything})") == [(len(ROWS),)]


@pytest.mark.parametrize("name", shipped_questions())
def test_questions_that_ship_are_answered_and_explained(name: str) -> None:
    ask(question(name))
    assert f"| `{name}` |" in (ROOT / "docs" / "seeing.md").read_text()


def test_an_answer_is_explained_and_becomes_other_formats() -> None:
    sql = "SELECT rank, max(value) AS most FROM metrics WHERE step > 0 GROUP BY rank ORDER BY rank"
    with open_engine(sql) as engine:
        assert engine.tables == ["metrics"]
        assert "TableScan: metrics projection=[rank, value, step]" in engine.plan and "Aggregate" in engine.plan
        table = engine.run(Collected({"metrics": json.loads(METRICS.render(ROWS, {}))}), _PATIENCE_S)
    answer = QueryResult(table, Collected(missing=["host <b>"]))
    assert answer.rows == [(0, 0.2), (1, 1.2)]
    assert parquet.read_table(io.BytesIO(answer.to_parquet())).to_pylist() == answer.to_arrow().to_pylist()
    html = answer._repr_html_()
    assert "<td>1.2</td>" in html and "2 rows, without host &lt;b&gt;" in html


def test_names_of_programs_that_are_not_unicode_are_rows() -> None:
    odd = [replace(ROWS[0], name="a\ud800b", value=float("nan"))]
    assert ask("SELECT name FROM metrics WHERE value <> 1", odd) == [("a?b",)]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM metricss", "there is no table 'metricss': did you mean metrics?"),
        ("SELECT * FROM x", "there is no table 'x': there are: actors, channels, clocks"),
        ("SELECT valu FROM metrics", "there is no column 'valu': did you mean value?"),
        ("SELECT m.valu FROM metrics m", "there is no column 'valu': did you mean value?"),
        ("SELEC 1", "Line: 1, Column: 1"),
        ("SELECT frobnicate(1)", "Invalid function 'frobnicate'"),
        ("", "No SQL statements"),
        ("SELECT 1; SELECT 2", "single SQL statement"),
        ("CREATE TABLE x AS SELECT 1", "only questions (SELECT) are answered"),
        ("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'", "only questions (SELECT) are answered"),
        ("COPY metrics TO '/tmp/x.csv'", "only questions (SELECT) are answered"),
        ("INSERT INTO metrics SELECT * FROM metrics", "only questions (SELECT) are answered"),
        ("DELETE FROM metrics", "only questions (SELECT) are answered"),
        ("SET datafusion.execution.batch_size = 1", "only questions (SELECT) are answered"),
        ("DROP TABLE metrics", "only questions (SELECT) are answered"),
        ("SELECT * FROM '/etc/passwd'", "there is no table '/etc/passwd'"),
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' not found"),
    ],
)
def test_what_is_no_question_is_refused_before_anybody_is_asked(sql: str, words: str) -> None:
    with pytest.raises(Exception) as caught:
        check(sql)
    assert words in explain(caught.value, sql)


def test_a_query_without_end_ends_at_its_limits() -> None:
    many = "generate_series(1, 100000)"
    endless = f"SELECT sum(a.value + b.value) FROM {many} a, {many} b WHERE a.value <> b.value"
    with pytest.raises(QueryError, match=r"is not answered within 0\.05 s"), open_engine(endless) as engine:
        engine.run(Collected(), 0.05)
    with open_engine("SELECT 1") as engine:
        engine._process.kill()  # as an allocation that fails does
        with pytest.raises(QueryError, match=r"ended its engine \(status -9\)"):
            engine.run(Collected(), _PATIENCE_S)


def test_hosts_answer_their_part_and_the_tables_that_the_question_names_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str, list[str]]] = []

    def answers(
        directory: Path, table: str, timeout_s: float, where: dict[str, object], pieces: str = ""
    ) -> Rows | None:
        on_hosts = [piece.host for piece in parse_question(pieces).pieces] if pieces else []
        asked.append((directory.name, table, on_hosts))
        if directory.name == "dead":
            return None
        if not pieces:
            return Rows(1, [Portion("host n9", "[]")], ["host n7"], [])
        part = AnswerPart(rows={"metrics": METRICS.render(ROWS, {})}, ranks=[[0, 1]], cut=["host n9"], dropped=7)
        return Rows(1, [Portion("host n9", part.render())], ["host n7"], ["host n8"])

    monkeypatch.setattr(questions, "query_portions", answers)
    sql = "SELECT count(*) FROM metrics LEFT JOIN procs USING (pid)"
    result = query_allocations([Path("/a/live"), Path("/a/dead")], sql, _PATIENCE_S, 60.0)
    pulled = ["SELECT pid FROM metrics ORDER BY t DESC"]
    assert sorted(asked) == [
        ("dead", "metrics", pulled),
        ("dead", "procs", []),
        *sorted([("live", "metrics", pulled), ("live", "procs", [])]),
    ]
    assert result.rows == [(0,)] and result.columns == ["count(*)"]  # all of them are older
    assert result.missing_hosts == ["host n7", "the head of dead", "host n8"]
    assert result.cut == ["host n9"] and result.dropped == 7
    assert query_allocations([Path("/a/live")], sql, _PATIENCE_S).rows == [(len(ROWS),)]
    assert query_allocations([Path("/a/live")], "SELECT max(rank) FROM metrics", _PATIENCE_S).rows == [(1,)]
