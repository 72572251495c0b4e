"""Timers of a manual clock run in order, each at its own time."""

from __future__ import annotations

import pytest

from monarch_hpc.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def fired(clock: ManualClock) -> list[tuple[str, float]]:
    return []


def test_timers_run_in_order_at_their_times(clock: ManualClock, fired: list[tuple[str, float]]) -> None:
    for name, delay_s in (("late", 3.0), ("first", 1.0), ("second", 1.0)):
        clock.call_later(delay_s, lambda name=name: fired.append((name, clock())))  # type: ignore[misc]
    assert clock.timers == [1.0, 1.0, 3.0]
    clock.advance(2.0)
    assert (fired, clock.now_s, clock.timers) == ([("first", 101.0), ("second", 101.0)], 102.0, [1.0])
    clock.advance_to_next()
    assert (fired[2:], clock.now_s, clock.timers) == ([("late", 103.0)], 103.0, [])


def test_a_timer_may_start_another(clock: ManualClock, fired: list[tuple[str, float]]) -> None:
    def again() -> None:
        fired.append(("again", clock()))
        clock.call_later(1.0, again)

    clock.call_later(1.0, again)
    clock.advance(3.5)
    assert [at_s for _, at_s in fired] == [101.0, 102.0, 103.0]
    assert clock.timers == [0.5]


def test_a_cancelled_timer_does_not_run(clock: ManualClock, fired: list[tuple[str, float]]) -> None:
    timer = clock.call_later(1.0, lambda: fired.append(("it", clock())))
    timer.cancel()
    timer.cancel()
    clock.advance(10.0)
    assert (fired, clock.timers) == ([], [])


def test_time_set_past_a_timer_makes_it_late(clock: ManualClock, fired: list[tuple[str, float]]) -> None:
    clock.call_later(1.0, lambda: fired.append(("it", clock())))
    clock.now_s = 160.0
    clock.advance_to_next()
    assert (fired, clock.now_s) == ([("it", 160.0)], 160.0)
