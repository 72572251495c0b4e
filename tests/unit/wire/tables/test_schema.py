"""Tables: what a process renders is read elsewhere as the same rows; anything else is an error, never a wrong row."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.questions import Ask
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.calls import CALLS, ActorSeen, ProcCalls, Scene
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.history import METRICS
from monarch_hpc.wire.tables.history import MetricRow as RecordedMetric
from monarch_hpc.wire.tables.pieces import HostQuestion, QueryPiece, parse_part
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

ROWS = [ProcRow("a", 1, rank, "n\u00e4", 100 + rank, "ready", "", 1 << 40, 0.5) for rank in range(3)]
SCENE = Scene("", "feed", [ActorSeen("1", "trainer", 0, "ready", "", 1.5)], [], [], [], 0, [])


def test_rows_are_read_as_they_were() -> None:
    assert PROCS.read(PROCS.render(ROWS, {})) == ROWS
    calls = [ProcCalls("a", 1, 0, "n1", 7, "ready", "", SCENE)]
    assert CALLS.read(CALLS.render(calls, {})) == calls
    assert PROCS.read(PROCS.render([], {})) == []


def test_rows_are_chosen_by_the_values_of_columns() -> None:
    assert PROCS.read(PROCS.render(ROWS, {"rank": 1, "run": "a"})) == [ROWS[1]]
    assert PROCS.read(PROCS.render(ROWS, {"rank": 1, "run": "b"})) == []
    assert PROCS.problem_of({"rank": 1, "run": "a"}) == PROCS.problem_of({"rank": [0, 2]}) == ""
    assert PROCS.read(PROCS.render(ROWS, {"rank": [0, 2, 7]})) == [ROWS[0], ROWS[2]]


@pytest.mark.parametrize(
    "where", [{"rank": True}, {"rank": 1.0}, {"rank": None}, {"no": 1}, {"rank": []}, {"rank": ["1"]}, {"run": [1]}]
)
def test_what_rows_cannot_be_chosen_by_is_told(where: dict[str, object]) -> None:
    assert "cannot be chosen by" in PROCS.problem_of(where) and "rank (int)" in PROCS.problem_of(where)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a list"),
        ("[1]", "does not have 9 columns"),
        ("[[1, 2]]", "does not have 9 columns"),
        (json.dumps([["a", 1, 0, "n1", "7", "ready", "", 0, 0.5]]), "procs.pid"),
        (json.dumps([["a", 1, 0, "n1", 1 << 70, "ready", "", 0, 0.5]]), "procs.pid"),
    ],
)
def test_what_are_no_rows_is_an_error(text: str, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        PROCS.read(text)


def test_a_process_answers_for_the_tables_that_it_has() -> None:
    sources = {"procs": lambda: ROWS}
    assert PROCS.read(answer(Ask(1, "procs", {"rank": 2}, 1.0), "host n1", sources).rows) == [ROWS[2]]
    assert CALLS.read(answer(Ask(1, "calls", {}, 1.0), "host n1", sources).rows) == []
    assert answer(Ask(1, "memory", {}, 1.0), "host n1", sources).rows == "[]"


def test_the_two_tables_have_the_identity_of_a_process_in_common() -> None:
    assert [one.name for one in CALLS.columns][:7] == [one.name for one in PROCS.columns][:7]
    assert all(one.meaning for table in TABLES.values() for one in table.columns)


def test_the_latest_rows_that_fit_are_taken_and_older_ones_reported_missing() -> None:
    rows = [RecordedMetric("a", 1, 0, "n1", 7, float(t), 0.0, t, "", -1, "loss", 0.5, t, "") for t in (4, 3, 2, 1)]
    whole, cut = METRICS.fit(rows, {}, None)
    assert METRICS.read(whole) == rows and not cut
    some, cut = METRICS.fit(rows, {}, len(whole) // 2 + 5)
    assert METRICS.read(some) == rows[:2] and cut
    question = Ask(1, "metrics", {"t": [">=", 3], "name": "loss"}, 1.0)
    assert METRICS.problem_of(question.where) == ""
    portion = answer(question, "here", {"metrics": lambda: rows})
    assert METRICS.read(portion.rows) == rows[:2] and not portion.cut
    assert answer(question, "here", {"metrics": lambda: rows}, 10).cut
    pieces = HostQuestion([QueryPiece(["metrics", "spans"], "SELECT 1")]).render()
    for max_bytes, left_out in ((20, ["here (metrics)"]), (1 << 20, [])):
        sources = {"metrics": lambda: rows, "spans": list}
        portion = answer(replace(question, where={}, pieces=pieces), "here", sources, max_bytes)
        assert parse_part(portion.rows).cut == left_out and portion.cut == bool(left_out)
    assert "cannot be chosen by" in METRICS.problem_of({"t": ["<", 3]}) and METRICS.problem_of({"name": [">=", 1]})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_program_may_log_a_value_that_is_no_number_but_no_such_time(value: float) -> None:
    row = RecordedMetric("run", 1, 0, "n1", 7, 1.5, 0.0, 1, "a", 0, "loss", value, 3, "")
    (found,) = METRICS.read(METRICS.render([row], {}))
    assert repr(found) == repr(row)
    with pytest.raises(FrameError, match=r"metrics\.t"):
        METRICS.read(METRICS.render([replace(row, t=value)], {}))
