"""Waits end with the first accepted answer, or say what they saw last."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from monarch_hpc.testing import ManualClock, wait_until


def test_returns_the_first_accepted_answer() -> None:
    answers: Iterator[int] = iter([0, 0, 3, 4])
    clock = ManualClock()
    got = wait_until("three", lambda: next(answers), 10.0, interval_s=2.0, clock=clock, sleep=clock.advance)
    assert (got, clock.now_s) == (3, 4.0)


def test_says_what_it_saw_last() -> None:
    clock = ManualClock()
    with pytest.raises(TimeoutError, match=r"waited 3 s for: the moon; last seen: 'a cloud'"):
        wait_until(
            "the moon", lambda: "a cloud", 3.0, accept="moon".__eq__, interval_s=1.0, clock=clock, sleep=clock.advance
        )


def test_asks_once_more_when_the_time_is_over() -> None:
    clock = ManualClock()
    assert wait_until("time to pass", lambda: clock.now_s >= 5, 5.0, interval_s=50, clock=clock, sleep=clock.advance)


def test_what_the_probe_raises_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until("never", lambda: 1 / 0)


@pytest.mark.parametrize(("takes_s", "pause_s"), [(0.0, 0.25), (0.125, 0.25), (0.375, 0.75), (2.0, 1.0)])
def test_a_pause_is_twice_as_long_as_the_call_within_limits(takes_s: float, pause_s: float) -> None:
    clock = ManualClock()
    begun_s: list[float] = []

    def probe() -> None:
        begun_s.append(clock.now_s)
        clock.advance(takes_s)

    with pytest.raises(TimeoutError):
        wait_until("nothing", probe, 6.0, interval_s=0.25, clock=clock, sleep=clock.advance)
    pauses_s = {later - earlier - takes_s for earlier, later in itertools.pairwise(begun_s)}
    assert pauses_s == {pause_s}
