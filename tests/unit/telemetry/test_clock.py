"""Comparing clocks: the fastest exchange counts, until a later one is surer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.wire.control.clocks import AskClock, ClockTold

_AHEAD_NS = 1_230_000_000_000
"""The head's clock of the day, less the local monotonic one."""


class Wire:
    """A head, messages that take time in each direction, and timers."""

    def __init__(self, delays_us: list[tuple[int, int]]) -> None:
        self.now_ns = 10**12
        self.delays_us = delays_us
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.asked: list[AskClock] = []
        self.clock = ClockComparison("n1", len(delays_us), 60.0, self.asked.append, self._later, lambda: self.now_ns)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.timers.append((delay_s, callback))

    def run(self) -> None:
        """Answer all questions of one round."""
        for there_us, back_us in self.delays_us:
            ask = self.asked.pop()
            self.now_ns += there_us * 1000
            told = ClockTold(ask.ticket, self.now_ns + _AHEAD_NS)
            self.now_ns += back_us * 1000
            self.clock.take(told)
        assert not self.asked

    def wait(self) -> None:
        """Let the interval pass."""
        ((delay_s, callback),) = self.timers
        self.timers.clear()
        self.now_ns += int(delay_s * 1e9)
        callback()


def test_the_fastest_exchange_counts() -> None:
    wire = Wire([(500, 90), (30, 20), (75_000, 10), (40, 40)])
    assert wire.clock.correction().error_us == -1
    assert wire.clock.row().error_us == -1
    wire.clock.start()
    wire.run()
    correction = wire.clock.correction()
    assert abs(correction.offset_ns - _AHEAD_NS) <= 5_000  # half of the difference between there and back
    assert abs(correction.offset_ns - _AHEAD_NS) / 1000 <= correction.error_us
    assert correction.error_us == pytest.approx(25 + 75.1 * 0.05, abs=0.1)  # since then, the clocks may have drifted
    row = wire.clock.row()
    assert (row.host, row.round_trip_us, row.num_exchanges) == ("n1", 50, 4)


def test_a_later_round_counts_as_soon_as_it_is_surer() -> None:
    wire = Wire([(20, 20)])
    wire.clock.start()
    wire.run()
    wire.delays_us[:] = [(9_000, 1_000)]
    wire.wait()
    wire.run()
    assert wire.clock.row().round_trip_us == 40  # a minute's drift is 3 ms, a delay of 10 ms is worse
    wire.wait()
    wire.run()
    assert wire.clock.row().round_trip_us == 10_000
    assert wire.clock.correction().offset_ns - _AHEAD_NS == 4_000_000


def test_answers_to_an_earlier_round_and_unknown_ones_do_not_count() -> None:
    wire = Wire([(20, 20), (20, 20)])
    wire.clock.start()
    (late,) = wire.asked
    wire.asked.clear()
    wire.wait()
    wire.clock.take(ClockTold(late.ticket, 5))
    wire.clock.take(ClockTold(10**6, 5))
    assert wire.clock.row().error_us == -1
    wire.run()
    assert wire.clock.correction().offset_ns == _AHEAD_NS
