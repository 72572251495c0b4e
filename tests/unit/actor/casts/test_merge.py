"""The order of one sender's direct messages and casts, whichever arrives first. Laws are in `tests/property`."""

from __future__ import annotations

import pytest

from monarch_hpc.actor.casts.merge import Merge
from monarch_hpc.wire.casts import Mark


@pytest.fixture
def merge() -> Merge[str]:
    return Merge()


def test_without_casts_direct_messages_pass(merge: Merge[str]) -> None:
    assert [merge.direct(item) for item in "ab"] == [["a"], ["b"]]
    assert merge.num_held == 0


def test_a_cast_waits_for_the_direct_messages_before_it(merge: Merge[str]) -> None:
    assert merge.cast(1, "cast", waits=True) == []
    assert merge.direct("before") == ["before"]
    assert merge.mark(Mark.BEFORE, 1) == ["cast"]
    assert merge.num_held == 0


def test_direct_messages_after_a_cast_wait_for_it(merge: Merge[str]) -> None:
    assert merge.mark(Mark.AFTER, 1) == []
    assert merge.direct("after") == []
    assert merge.num_held == 2
    assert merge.cast(1, "cast", waits=False) == ["cast", "after"]
    assert merge.num_held == 0


def test_a_cast_without_direct_messages_before_it_does_not_wait(merge: Merge[str]) -> None:
    assert merge.cast(1, "cast", waits=False) == ["cast"]


def test_casts_keep_their_order_behind_one_that_waits(merge: Merge[str]) -> None:
    assert merge.cast(1, "first", waits=True) == []
    assert merge.cast(2, "second", waits=False) == []
    assert merge.mark(Mark.BEFORE, 1) == ["first", "second"]


def test_a_cast_that_will_never_arrive_is_skipped_and_refused_if_it_does(merge: Merge[str]) -> None:
    merge.mark(Mark.AFTER, 1)
    merge.direct("after")
    assert merge.mark(Mark.SKIP, 1) == ["after"]
    assert merge.cast(1, "cast", waits=False) is None


def test_a_repeated_cast_is_refused(merge: Merge[str]) -> None:
    merge.cast(2, "held", waits=True)
    assert merge.cast(2, "again", waits=True) is None
    merge.mark(Mark.BEFORE, 2)
    assert merge.cast(2, "again", waits=False) is None
    assert merge.cast(1, "late", waits=False) is None


def test_the_end_of_the_channel_frees_casts_and_drops_direct_messages_held_back(merge: Merge[str]) -> None:
    merge.cast(1, "cast", waits=True)
    merge.mark(Mark.AFTER, 2)
    merge.direct("lost")
    assert merge.cut() == ["cast"]
    assert (merge.num_held, merge.cast(3, "next", waits=True)) == (0, ["next"])
