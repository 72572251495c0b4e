"""Drains of calls that were sent: each is taken once, when it is answered, or counted as lost."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, SENDS
from monarch_hpc.telemetry.layout import CAST, RECORD_BYTES
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.drain import Drain


class Caller:
    """A process that sends calls, and a drain of its records that checks what it takes."""

    def __init__(self) -> None:
        self.fd = make_memory("caller")
        self.recorder = Recorder(os.dup(self.fd), 1)
        self.sizes: list[int] = []
        """Bytes of each read."""
        memory = memory_of(self.fd)

        def read(at: int, size: int) -> bytes:
            self.sizes.append(size)
            return memory(at, size)

        self.drain = Drain(read, {})
        self.last = {0: 0, CAST: CAST}
        self.open: list[int] = []
        self.answered: set[int] = set()
        self.taken: set[int] = set()
        self.num_lost = 0

    def send(self, num: int, *, cast: bool = False) -> None:
        for _ in range(num):
            bit = CAST if cast else 0
            self.last[bit] += 1
            self.recorder.sent(self.last[bit], 1, 1, 1, 10, 7)
            self.open.append(self.last[bit])

    def answer(self, number: int) -> None:
        self.open.remove(number)
        self.recorder.answered(number)
        self.answered.add(number)

    def take(self, *, last: bool = False) -> None:
        for taken in self.drain.take(last=last):
            if taken.what not in (SENDS, CASTS):
                continue
            self.num_lost += taken.num_lost
            numbers = memoryview(taken.records).cast("Q")[7::8].tolist()
            assert len(numbers) * RECORD_BYTES == len(taken.records)
            assert len(set(numbers)) == len(numbers)
            assert not self.taken.intersection(numbers)
            assert self.answered.issuperset(numbers)
            self.taken.update(numbers)

    @property
    def num_sent(self) -> int:
        return self.last[0] + self.last[CAST] - CAST

    def close(self) -> None:
        self.recorder.close()
        os.close(self.fd)


@pytest.fixture
def caller() -> Iterator[Caller]:
    caller = Caller()
    yield caller
    caller.close()


@pytest.mark.parametrize("casts", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_each_call_is_taken_once_when_it_is_answered(caller: Caller, seed: int, casts: float) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        for _ in range(chance.randrange(4)):
            caller.send(chance.choice((1, 7, 300, 700)), cast=chance.random() < casts)
            for number in chance.sample(caller.open, chance.randrange(len(caller.open) + 1)):
                caller.answer(number)
        caller.take()
        assert len(caller.taken) + caller.num_lost <= len(caller.answered)
        if casts in (0.0, 1.0):  # else a cast may have taken the place of a call with the same number
            assert caller.taken == caller.answered
            assert caller.num_lost == 0
    for number in list(caller.open):
        caller.answer(number)
    for cast in (False, True):  # behind these, what was overwritten is missed
        caller.send(1, cast=cast)
    caller.take(last=True)
    assert len(caller.taken) + caller.num_lost == caller.num_sent - 2


def test_calls_that_others_have_overwritten_are_counted(caller: Caller) -> None:
    num = layout.NUM_SENT + 3000
    caller.take()
    for _ in range(num):
        caller.send(1)
        caller.answer(caller.open[0])
    caller.send(5, cast=True)
    caller.take()
    assert caller.num_lost + len(caller.taken) == num
    assert caller.num_lost >= 3000
    for number in list(caller.open):
        caller.answer(number)
    caller.take()
    assert caller.num_lost + len(caller.taken) == num + 5


def test_a_drain_reads_little_more_than_what_is_new(caller: Caller) -> None:
    caller.take()
    for size in (10, 1000):
        caller.sizes.clear()
        caller.send(size)
        for number in list(caller.open):
            caller.answer(number)
        caller.take()
        assert sum(caller.sizes) < size * RECORD_BYTES + 4 * 512 * RECORD_BYTES
    assert caller.taken == set(range(1, 1011))
