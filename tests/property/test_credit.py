"""Credit: a mailbox never holds more than its window, no credit is lost, and no sender starves."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from monarch_hpc.transport.credit import PIECE_BYTES, Credit, Ticket, cost_of
from monarch_hpc.wire.frames import Frame, Kind

_ACTORS = st.integers(0, 1)
_COSTS = st.integers(1, 30) | st.integers(1, 150)


class Flow(RuleBasedStateMachine):
    """Two sides of a channel with calls and grants in flight, delivered at any speed."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 0
        self.num_wakeups = 0  # number of wake-ups of waiting senders
        self.sender = self.receiver = Credit(0, self.wake)
        self.waiting: dict[int, deque[Ticket]] = {}
        self.mailbox: dict[int, deque[int]] = {}
        self.grants: deque[tuple[int, int]] = deque()

    @initialize(window=st.integers(0, 100))
    def open(self, window: int) -> None:
        self.window = window
        self.sender, self.receiver = Credit(window, self.wake), Credit(window, self.wake)

    def wake(self) -> None:
        self.num_wakeups += 1

    def _arrive(self) -> bool:
        """Send the granted calls; return whether there were any."""
        num_waiting = sum(map(len, self.waiting.values()))
        for dest, row in self.waiting.items():
            while row and row[0].granted:
                self._put(dest, row.popleft().cost)
            assert not any(ticket.granted for ticket in row), "a later call overtook an earlier one"
        return sum(map(len, self.waiting.values())) < num_waiting

    def _put(self, dest: int, cost: int, *, forced: bool = False) -> None:
        box = self.mailbox.setdefault(dest, deque())
        box.append(cost)
        others = sum(box) - cost
        assert forced or sum(box) <= self.window or others < max(self.window // 4, 1), (list(box), self.window)

    @rule(dest=_ACTORS, cost=_COSTS)
    def send(self, dest: int, cost: int) -> None:
        row = self.waiting.setdefault(dest, deque())
        if self.sender.try_take(dest, cost):
            assert not row, "a newcomer overtook those who wait"
            self._put(dest, cost)
        else:
            row.append(self.sender.queue(dest, cost))
            self._arrive()

    @rule(dest=_ACTORS, cost=_COSTS)
    def send_from_a_callback(self, dest: int, cost: int) -> None:
        self.sender.take(dest, cost)
        self._put(dest, cost, forced=True)

    @rule(dest=_ACTORS, data=st.data())
    def lose_patience(self, dest: int, data: st.DataObject) -> None:
        row = self.waiting.get(dest)
        if row:
            ticket = row[data.draw(st.integers(0, len(row) - 1))]
            num_wakeups = self.num_wakeups
            self.sender.leave(ticket)
            row.remove(ticket)
            assert self._arrive() is (self.num_wakeups > num_wakeups), "somebody sleeps on"

    @rule(dest=_ACTORS)
    def handle(self, dest: int) -> None:
        box = self.mailbox.get(dest)
        if box:
            grant = self.receiver.consumed(dest, box.popleft())
            if grant:
                self.grants.append((dest, grant))

    @rule()
    def give(self) -> None:
        if self.grants:
            num_wakeups = self.num_wakeups
            self.sender.give(*self.grants.popleft())
            assert self._arrive() is (self.num_wakeups > num_wakeups), "somebody sleeps on"

    def teardown(self) -> None:
        """Check that every call is sent and no credit is lost, from any state."""
        while any(self.mailbox.values()) or self.grants:
            for dest in self.mailbox:
                self.handle(dest)
            self.give()
        assert not any(self.waiting.values()), "somebody waits for ever"
        for dest in range(2):
            # Less than a quarter is withheld: three quarters of the window are available again.
            rest = max(self.window - max(self.window // 4, 1) + 1, 1)
            assert self.sender.try_take(dest, rest)


TestFlow = pytest.mark.slow(Flow.TestCase)  # a hundred random histories
TestFlow.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_who_leaves_the_row_lets_those_behind_pass() -> None:
    told: list[None] = []
    credit = Credit(100, lambda: told.append(None))
    assert credit.try_take(1, 60)
    large, small = credit.queue(1, 80), credit.queue(1, 40)
    assert not (large.granted or small.granted)
    assert not told
    credit.leave(large)
    assert small.granted and not large.granted
    assert told == [None], "its thread would sleep on"


def test_who_gives_up_takes_nothing_along() -> None:
    told: list[None] = []
    credit = Credit(100, lambda: told.append(None))
    assert credit.try_take(1, 60)
    granted, waiting = credit.queue(1, 80), credit.queue(1, 40)
    credit.give(1, 60)
    assert granted.granted and not waiting.granted
    for ticket in (granted, granted):  # the second time is a no-op
        credit.abandon(ticket)
        credit.leave(ticket)
    assert waiting.granted
    assert not credit.try_take(1, 61)
    credit.abandon(waiting)
    assert credit.try_take(1, 100), "all of it is there again"


@given(body=st.binary(max_size=50), buffers=st.lists(st.binary(max_size=50), max_size=5))
def test_a_frame_costs_its_bytes_and_something_for_each_piece(body: bytes, buffers: list[bytes]) -> None:
    cost = cost_of(Frame(Kind.CALL, 1, 0, body, buffers))
    assert cost == PIECE_BYTES * (1 + len(buffers)) + len(body) + sum(map(len, buffers))
    received = Frame(Kind.CALL, 1, 0, memoryview(body), [bytearray(buffer) for buffer in buffers])
    assert cost_of(received) == cost
