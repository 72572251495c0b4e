"""The order of one sender's direct messages and casts, whichever arrives first. Laws are in `tests/property`."""

from __future__ import annotations

import pytest

from monarch_hpc.actor.casts.send_order import SendOrder
from monarch_hpc.wire.casts import Mark


@pytest.fixture
def send_order() -> SendOrder[str]:
    return SendOrder()


def test_without_casts_direct_messages_pass(send_order: SendOrder[str]) -> None:
    assert [send_order.direct(item) for item in "ab"] == [["a"], ["b"]]
    assert send_order.num_held == 0


def test_a_cast_waits_for_the_direct_messages_before_it(send_order: SendOrder[str]) -> None:
    assert send_order.cast(1, "cast", waits=True) == []
    assert send_order.direct("before") == ["before"]
    assert send_order.mark(Mark.BEFORE, 1) == ["cast"]
    assert send_order.num_held == 0


def test_direct_messages_after_a_cast_wait_for_it(send_order: SendOrder[str]) -> None:
    assert send_order.mark(Mark.AFTER, 1) == []
    assert send_order.direct("after") == []
    assert send_order.num_held == 2
    assert send_order.cast(1, "cast", waits=False) == ["cast", "after"]
    assert send_order.num_held == 0


def test_a_cast_without_direct_messages_before_it_does_not_wait(send_order: SendOrder[str]) -> None:
    assert send_order.cast(1, "cast", waits=False) == ["cast"]


def test_casts_keep_their_order_behind_one_that_waits(send_order: SendOrder[str]) -> None:
    assert send_order.cast(1, "first", waits=True) == []
    assert send_order.cast(2, "second", waits=False) == []
    assert send_order.mark(Mark.BEFORE, 1) == ["first", "second"]


def test_a_cast_that_will_never_arrive_is_skipped_and_refused_if_it_does(send_order: SendOrder[str]) -> None:
    send_order.mark(Mark.AFTER, 1)
    send_order.direct("after")
    assert send_order.mark(Mark.SKIP, 1) == ["after"]
    assert send_order.cast(1, "cast", waits=False) is None


def test_a_repeated_cast_is_refused(send_order: SendOrder[str]) -> None:
    send_order.cast(2, "held", waits=True)
    assert send_order.cast(2, "again", waits=True) is None
    send_order.mark(Mark.BEFORE, 2)
    assert send_order.cast(2, "again", waits=False) is None
    assert send_order.cast(1, "late", waits=False) is None


def test_the_end_of_the_channel_frees_casts_and_direct_messages_go_on_waiting(send_order: SendOrder[str]) -> None:
    send_order.cast(1, "cast", waits=True)
    send_order.mark(Mark.AFTER, 2)
    send_order.direct("after the second")
    assert (send_order.cut(), send_order.awaited) == (["cast"], 2)
    assert send_order.cast(2, "second", waits=False) == ["second", "after the second"]
    assert (send_order.num_held, send_order.awaited) == (0, 0)
    assert send_order.cast(3, "next", waits=True) == ["next"]


def test_after_the_end_of_the_channel_a_cast_waits_for_the_mark_that_has_come(send_order: SendOrder[str]) -> None:
    send_order.mark(Mark.AFTER, 1)
    send_order.direct("between")
    send_order.mark(Mark.BEFORE, 2)
    assert send_order.cut() == []
    assert send_order.cast(1, "first", waits=False) == ["first", "between"]
    assert send_order.cast(2, "second", waits=True) == ["second"]


def test_a_cast_that_does_not_come_after_the_end_of_the_channel_is_given_up(send_order: SendOrder[str]) -> None:
    send_order.mark(Mark.AFTER, 1)
    send_order.direct("after")
    assert send_order.cut() == []
    assert send_order.mark(Mark.SKIP, send_order.awaited) == ["after"]
