"""A message that UCX has lost ends its lane; one that is only late does not."""

from __future__ import annotations

from monarch_hpc.testing import ManualClock
from monarch_hpc.transport.ucx.gap_watch import GapWatch


class Lane:
    """Records what the watch asks of it."""

    def __init__(self) -> None:
        self.clock = ManualClock(10.0)
        self.received_s = 0.0
        self.missing = -1
        self.asked: list[int] = []
        self.lost: list[int] = []
        self.num_marks = 0
        self.watch = GapWatch(self, self.clock, self.clock.call_later)

    def ask(self, asked_us: int) -> None:
        self.asked.append(asked_us)

    def send_mark(self) -> None:
        self.num_marks += 1

    def lose(self, number: int) -> None:
        self.lost.append(number)

    def see(self, number: int) -> None:
        self.missing = number
        self.watch.seen(number)


def test_a_gap_that_stays_after_an_answer_is_a_loss() -> None:
    lane = Lane()
    lane.see(7)
    lane.see(7)
    assert lane.clock.timers == [15.0]
    lane.clock.advance_to_next()
    assert lane.asked == [25_000_000]
    lane.received_s = 25.1
    lane.watch.answered(25_000_000)
    assert not lane.lost
    lane.clock.advance_to_next()
    assert (lane.lost, lane.asked, lane.clock.timers) == ([7], [25_000_000], [])


def test_a_gap_that_has_closed_is_not_asked_about() -> None:
    lane = Lane()
    lane.see(7)
    lane.missing = -1
    lane.clock.advance_to_next()
    assert (lane.lost, lane.asked, lane.clock.timers) == ([], [], [])


def test_a_gap_that_closes_after_the_question_is_not_a_loss() -> None:
    lane = Lane()
    lane.see(7)
    lane.clock.advance_to_next()
    lane.received_s = 25.1
    lane.watch.answered(25_000_000)
    lane.missing = 9
    lane.clock.advance_to_next()
    assert not lane.lost


def test_while_the_answer_on_the_lane_has_not_come_the_missing_message_may_be_before_it() -> None:
    lane = Lane()
    lane.see(7)
    lane.clock.advance_to_next()
    lane.received_s = 24.9
    lane.watch.answered(25_000_000)
    lane.clock.advance_to_next()
    assert (lane.lost, lane.asked) == ([], [25_000_000, 40_000_000])


def test_an_answer_without_a_gap_starts_nothing() -> None:
    lane = Lane()
    lane.watch.answered(1)
    assert lane.clock.timers == []


def test_large_messages_share_a_mark() -> None:
    lane = Lane()
    lane.watch.sent()
    lane.watch.sent()
    assert lane.clock.timers == [15.0]
    lane.clock.advance_to_next()
    assert (lane.num_marks, lane.clock.timers) == (1, [])
    lane.watch.sent()
    assert lane.clock.timers == [15.0]
