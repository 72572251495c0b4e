"""Deadlines: each call expires once and on time, and thousands of calls share one timer."""

from __future__ import annotations

import pytest

from monarch_hpc.actor.runtime.deadlines import Deadlines
from monarch_hpc.testing import ManualClock


class Call:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.expired_s: list[float] = []

    def expire(self) -> None:
        self.expired_s.append(self._clock.now_s)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def deadlines(clock: ManualClock) -> Deadlines:
    return Deadlines(clock, clock.call_later)


def test_each_expires_once_and_in_time(clock: ManualClock, deadlines: Deadlines) -> None:
    first, second, other = Call(clock), Call(clock), Call(clock)
    deadlines.add(5.0, first)
    clock.advance(2.0)
    deadlines.add(5.0, second)
    deadlines.add(1.0, other)
    clock.advance(100.0)
    assert (first.expired_s, second.expired_s, other.expired_s) == ([105.0], [107.0], [103.0])
    assert not clock.timers
    deadlines.add(5.0, first)
    clock.advance(5.0)
    assert first.expired_s == [105.0, 207.0]


def test_what_is_done_does_not_expire_and_leaves_nothing(clock: ManualClock, deadlines: Deadlines) -> None:
    call = Call(clock)
    for _ in range(1000):
        deadlines.add(5.0, call)
        deadlines.remove(5.0, call)
    deadlines.remove(7.0, call)
    assert len(clock.timers) == 1
    late = Call(clock)
    clock.advance(4.0)
    deadlines.add(5.0, late)
    clock.advance(100.0)
    assert (call.expired_s, late.expired_s, clock.timers) == ([], [109.0], [])
