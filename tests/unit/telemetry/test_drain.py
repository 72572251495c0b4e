"""Drains of calls that were sent: each is taken once, when it is answered, or counted as lost."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, SENDS, SPANS
from monarch_hpc.telemetry.layout import CAST, HEADER, RECORD, RECORD_BYTES, RecordKind, Ring
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


def _ring_of(ring: Ring, written: int, kind: int, others: set[int], open_ones: set[int]) -> dict[int, bytes]:
    """Memory, by place, of a ring whose latest records are there: *others* of another kind, *open_ones* that go on."""
    found = {ring.cursor_at: written.to_bytes(8, "little")}
    for number in range(max(written - ring.num, 0) + 1, written + 1):
        dur = layout.OPEN if number in open_ones else 5
        record = RECORD.pack(
            1, RecordKind.PROC_STARTING if number in others else kind, 0, 0, 1, 0, 1, 1, dur, 0, number
        )
        found[ring.at + (number & (ring.num - 1)) * RECORD_BYTES] = record
    return found


@pytest.mark.parametrize("more", [-3, 0, 1, 500])
@pytest.mark.parametrize("what", [EVENTS, SPANS])
def test_of_a_ring_all_are_taken_that_are_there_but_others(what: str, more: int) -> None:
    ring = {EVENTS: layout.EVENTS, SPANS: layout.SPANS}[what]
    written = ring.num + more
    oldest = max(more, -1) + 2 if more > -2 else 1  # the next one may be on its way, to the place of the one before
    left_out = {oldest, oldest + 1, written - 7, written}
    kind = RecordKind.HANDLED if what == EVENTS else RecordKind.SPAN
    parts = _ring_of(ring, written, kind, left_out if what == EVENTS else set(), left_out if what == SPANS else set())
    memory = bytearray(max(parts) + RECORD_BYTES + HEADER.size)
    for at, data in parts.items():
        memory[at : at + len(data)] = data

    def read(at: int, size: int) -> bytes:
        return bytes(memory[at : at + size])

    drain = Drain(read, {})
    records, num_lost = drain._take_ring(what, 0, written)
    numbers = memoryview(records).cast("Q")[7::8].tolist()
    assert numbers == [number for number in range(oldest, written + 1) if number not in left_out]
    assert num_lost == oldest - 1
    assert drain._open_spans == (left_out if what == SPANS else set())
