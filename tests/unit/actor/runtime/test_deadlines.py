"""Deadlines: each call expires once and on time, and thousands of calls share one timer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch_hpc.actor.runtime.deadlines import Deadlines


class Clock:
    """A clock and timers that a test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert delay_s > 0
        self.timers.append((self.now_s + delay_s, callback))

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= end_s]:
            timer = min(due, key=lambda timer: timer[0])
            self.timers.remove(timer)
            self.now_s = timer[0]
            timer[1]()
        self.now_s = end_s


class Call:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.expired_s: list[float] = []

    def expire(self) -> None:
        self.expired_s.append(self._clock.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(lambda: clock.now_s, clock.later)


def test_each_expires_once_and_in_time(clock: Clock, deadlines: Deadlines) -> None:
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


def test_what_is_done_does_not_expire_and_leaves_nothing(clock: Clock, deadlines: Deadlines) -> None:
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
