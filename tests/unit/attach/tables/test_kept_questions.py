"""A program keeps one channel for each allocation between questions, and plans that hold for later."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.tables.kept_questions import KeptQuestions
from monarch_hpc.telemetry.sql.given import TakenQuestion
from monarch_hpc.telemetry.sql.plan import QueryPlan

_ONE, _OTHER = Path("/a/one"), Path("/a/other")
_TAKEN = TakenQuestion(["procs"], QueryPlan("pull", [], ""), QueryPlan("pull", [], ""), "")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[HeadClient]:
    """The channels that are closed, in order."""
    closed: list[HeadClient] = []
    monkeypatch.setattr(HeadClient, "close", lambda client: closed.append(client))
    return closed


def test_a_channel_is_lent_to_one_question_after_the_other(closed: list[HeadClient]) -> None:
    kept = KeptQuestions()
    with kept.head(_ONE) as first, kept.head(_OTHER) as other:
        assert first is not other
    with kept.head(_ONE) as again:
        assert again is first
    assert closed == []
    kept.close()
    assert closed == [first, other] or closed == [other, first]


def test_of_two_at_a_time_the_older_one_stays(closed: list[HeadClient]) -> None:
    for is_first in (True, False):
        kept, stack, later = KeptQuestions(), ExitStack(), ExitStack()
        first, second = stack.enter_context(kept.head(_ONE)), later.enter_context(kept.head(_ONE))
        for one in (stack, later) if is_first else (later, stack):
            one.close()
        assert closed == [second]
        closed.clear()
        with kept.head(_ONE) as again:
            assert again is first


def test_a_channel_that_comes_back_after_the_end_is_closed(closed: list[HeadClient]) -> None:
    kept = KeptQuestions()
    with kept.head(_ONE) as lent:
        kept.close()
        assert closed == []
    assert closed == [lent]


def test_one_that_is_lost_is_closed_by_the_next_question(
    closed: list[HeadClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptQuestions()
    with kept.head(_ONE) as lost:
        pass
    monkeypatch.setattr(HeadClient, "is_lost", property(lambda client: client is lost))
    with kept.head(_OTHER):
        assert closed == [lost]


def test_plans_are_kept_unless_they_are_about_the_moment() -> None:
    kept = KeptQuestions()
    for sql in ("SELECT 1", "SELECT count(*) FROM handled WHERE t > now() - INTERVAL '5 s'"):
        assert kept.plan(sql) is None
        kept.keep_plan(sql, _TAKEN)
    assert kept.plan("SELECT 1") is _TAKEN
    assert kept.plan("SELECT count(*) FROM handled WHERE t > now() - INTERVAL '5 s'") is None
