"""Texts between an engine and the process that asks it: they survive the way, and anything else is refused."""

from __future__ import annotations

import math

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.telemetry.sql.given import FinishedAnswer, GivenRows, TakenQuestion, parse, render
from monarch_hpc.telemetry.sql.plan import QueryPlan
from monarch_hpc.wire.tables.pieces import QueryPiece

PLAN = QueryPlan("partial", [QueryPiece(["handled"], "SELECT count(*) AS a0 FROM handled", "SELECT 1")], "SELECT 2")


def test_they_survive() -> None:
    taken = TakenQuestion(["handled"], PLAN, QueryPlan("pull", [], "SELECT 3"), "plan")
    given = GivenRows(PLAN, {"procs": [["run", 1, None]]}, ["part"], ["/a b"], {"/a b": {"0": "n1"}}, 1.5)
    answer = FinishedAnswer(1, ["x"], ["a", "b"], [[1, "é\n"]], "")
    assert parse(TakenQuestion, render(taken)) == taken
    assert parse(GivenRows, render(given)) == given
    assert parse(FinishedAnswer, render(answer)) == answer
    (row,) = parse(FinishedAnswer, render(FinishedAnswer(1, [], ["a"], [[math.inf]]))).rows
    assert row == [math.inf]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"plan": 1}', "\0", "[" * 100_000])
def test_anything_else_is_refused(text: str) -> None:
    for cls in (TakenQuestion, GivenRows, FinishedAnswer):
        with pytest.raises(FrameError):
            parse(cls, text)
