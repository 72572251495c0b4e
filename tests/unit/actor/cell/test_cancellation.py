"""Cancelled and limited calls of one actor: removed from the mailbox, flagged, or refused."""

from __future__ import annotations

import struct
from collections import deque

import pytest

from monarch_hpc.actor.cell.cancellation import LIMITED, Cancellations, Mail, limited
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.wire.frames import Frame, Kind


class Wire:
    """A link; only its identity matters."""

    peer = "a peer"

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        raise AssertionError

    mark = 0
    error: PeerLost | None = None

    def consumed(self, dest: int, cost: int) -> None:
        raise AssertionError

    def retire(self, dest: int) -> None:
        raise AssertionError


class Coroutine:
    def __init__(self) -> None:
        self.num_cancelled = 0

    def cancel(self) -> None:
        self.num_cancelled += 1


class Bench:
    """`Cancellations` with a mailbox, a clock, and a list of the refused calls."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.mailbox: deque[Mail] = deque()
        self.refused: list[tuple[MessageLink, int, int, float]] = []
        self.cancellations = Cancellations(
            self.mailbox, lambda: self.now_s, lambda *refused: self.refused.append(refused)
        )

    def put(self, line: MessageLink, slot: int, cost: int = 5, limit_s: float = 0.0) -> None:
        frame = Frame(Kind.CALL, 7, slot, limited(limit_s, b"body") if slot >= LIMITED else b"body")
        if slot >= LIMITED:
            self.cancellations.arrive(line, frame)
            assert frame.body == b"body"
        self.mailbox.append((slot, line, frame, cost, 0))

    def begin(self) -> bool:
        """Do what the actor's thread does before it runs the next call; False if the call is refused."""
        slot, line, *_ = self.mailbox.popleft()
        assert line is not None
        self.cancellations.channel = line
        self.cancellations.slot = slot
        return not ((self.cancellations.keys or slot >= LIMITED) and self.cancellations.refuses(line, slot))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_waits_is_taken_out_and_refused_once(bench: Bench) -> None:
    one, other = Wire(), Wire()
    bench.mailbox.append((0, one, Frame(Kind.STOP), 0, 0))
    for line in (one, other):
        for slot in (0, 1, 2):
            bench.put(line, slot, cost=10 * slot)
    bench.cancellations.cancel(other, 1)
    bench.cancellations.cancel(one, 2)
    assert bench.refused == [(other, 1, 10, 0.0), (one, 2, 20, 0.0)]
    left = [(line, slot) for slot, line, *_ in bench.mailbox]
    assert left == [(one, 0), (one, 0), (one, 1), (other, 0), (other, 2)]
    assert not bench.cancellations.keys


def test_who_runs_is_told_and_the_next_one_is_not(bench: Bench) -> None:
    line = Wire()
    for slot in (1, 2, 3):
        bench.put(line, slot)
    assert bench.begin() and not bench.cancellations.cancelled
    bench.cancellations.cancel(line, 1)
    assert bench.cancellations.cancelled
    bench.cancellations.cancel(line, 1)  # again: a no-op
    assert bench.begin() and not bench.cancellations.cancelled
    bench.cancellations.cancel(line, 1)  # answered meanwhile
    assert not bench.cancellations.cancelled
    assert bench.begin() and not bench.cancellations.keys and bench.refused == []


def test_a_call_cancelled_between_the_mailbox_and_its_begin_does_not_run(bench: Bench) -> None:
    line = Wire()
    bench.put(line, 1)
    mail = bench.mailbox.popleft()  # the actor's thread is preempted here
    bench.cancellations.cancel(line, 1)
    bench.mailbox.appendleft(mail)
    assert not bench.begin()
    assert bench.refused == [(line, 1, 0, 0.0)]  # cost 0: the caller of `refuses` returns the credit


def test_coroutines_are_cancelled_once_and_only_while_they_run(bench: Bench) -> None:
    line = Wire()
    running, unborn, done = Coroutine(), Coroutine(), Coroutine()
    for slot in (1, 2, 3):
        bench.put(line, slot)
    assert bench.begin()
    bench.cancellations.runs(line, 1, running)
    bench.cancellations.cancel(line, 1)
    bench.cancellations.cancel(line, 1)
    assert bench.begin()
    bench.cancellations.cancel(line, 2)  # before the coroutine exists
    bench.cancellations.runs(line, 2, unborn)
    assert bench.begin()
    bench.cancellations.runs(line, 3, done)
    bench.cancellations.over(line, 3)
    bench.cancellations.cancel(line, 3)
    assert (running.num_cancelled, unborn.num_cancelled, done.num_cancelled) == (1, 1, 0)


def test_a_limit_counts_from_the_arrival_and_ends_with_its_call(bench: Bench) -> None:
    line = Wire()
    for number, limit_s in enumerate((5.0, 5.0, 1.0)):
        bench.put(line, LIMITED | number, limit_s=limit_s)
    bench.put(line, 9)
    bench.now_s += 2.0
    assert bench.begin() and bench.cancellations.deadline_s == 105.0
    assert bench.cancellations.due(line, LIMITED) == (105.0, 5.0)
    bench.cancellations.over(line, LIMITED)
    assert bench.cancellations.deadline_s is None
    bench.cancellations.cancel(line, LIMITED | 1)
    assert not bench.begin()
    assert bench.begin() and bench.cancellations.deadline_s is None
    assert bench.refused == [(line, LIMITED | 1, 5, 5.0), (line, LIMITED | 2, 0, 1.0)]


@pytest.mark.parametrize("body", [b"", b"short", struct.pack("<d", float("nan")), struct.pack("<d", float("inf"))])
def test_a_limit_that_is_none_is_over_at_once(bench: Bench, body: bytes) -> None:
    frame = Frame(Kind.CALL, 7, LIMITED, body)
    bench.cancellations.arrive(line := Wire(), frame)
    assert frame.body == b"" and bench.cancellations.refuses(line, LIMITED)


def test_orphans_are_refused_and_broadcasts_of_those_who_said_farewell_are_not(bench: Bench) -> None:
    here, dead, gone = Wire(), Wire(), Wire()
    dead.error = PeerLost("program here", "its process has ended")
    gone.error = PeerLost("program here", "it left: the program ended")
    refuses = bench.cancellations.refuses
    outcomes = {(line, slot): refuses(line, slot, orphans=True) for line in (here, dead, gone) for slot in (0, 3)}
    assert [*outcomes.values()] == [False, False, True, True, False, True]
    assert bench.refused == [(dead, 3, 0, 0.0), (gone, 3, 0, 0.0)]
    assert not refuses(dead, 3), "only where nobody takes over what was asked"
