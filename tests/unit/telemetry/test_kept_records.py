"""Records out of memory all at once: those that a drain takes that has taken none before."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, RECORDS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.kept.records import as_records, by_table, numbers_of, take_records, without
from monarch_hpc.telemetry.layout import CAST, OPEN, RECORD_BYTES, RecordKind, Ring
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.drain import Drain

_TABLES = ("handled", "sends", "metrics", "spans", "transfers")
_RINGS = {EVENTS: layout.EVENTS, METRICS: layout.METRICS, SPANS: layout.SPANS, TRANSFERS: layout.TRANSFERS}


@pytest.fixture
def fd() -> Iterator[int]:
    fd = make_memory("process")
    recorder = Recorder(os.dup(fd), 1)
    yield fd
    recorder.close()
    os.close(fd)


def _write(fd: int, at: int, **fields: int) -> None:
    names = ("t", "kind", "flags", "actor", "name", "peer", "msg", "bytes", "dur", "value", "seq")
    os.pwrite(fd, layout.RECORD.pack(*(fields.get(name, 0) for name in names)), at)


def _write_ring(fd: int, ring: Ring, number: int, **fields: int) -> None:
    _write(fd, ring.at + (number & (ring.num - 1)) * RECORD_BYTES, seq=number, **fields)
    os.pwrite(fd, number.to_bytes(8, "little"), ring.cursor_at)


def _check(fd: int) -> int:
    """Compare with a drain; return the number of records."""
    memory, expected, lost = memory_of(fd), dict[tuple[str, str], list[int]](), 0
    for taken in Drain(memory, {}).take(last=True):
        lost += taken.num_lost
        for name, records in by_table(taken.what, as_records(taken.records), _TABLES):
            expected.setdefault((name, taken.what), []).extend(records["seq"].tolist())
    found, num_lost = take_records(memory, RECORDS, _TABLES)
    numbers = {(one.table, one.what): sorted(one.records["seq"].tolist()) for one in found}
    assert {place: some for place, some in numbers.items() if some} == {
        place: sorted(some) for place, some in expected.items() if some
    }
    assert num_lost == lost
    assert all(min(some, default=one.least) >= one.least for one, some in zip(found, numbers.values(), strict=True))
    return sum(map(len, numbers.values()))


def test_nothing_is_taken_of_memory_that_is_not_written(fd: int) -> None:
    assert _check(fd) == 0
    other = make_memory("other")
    assert take_records(memory_of(other), RECORDS, _TABLES) == ([], 0)
    os.close(other)


@pytest.mark.parametrize("what", _RINGS)
@pytest.mark.parametrize("rounds", [0.01, 0.99, 1.0, 1.4, 2.1])
def test_a_ring_has_what_a_drain_takes(fd: int, what: str, rounds: float) -> None:
    chance, ring = random.Random(f"{what} {rounds}"), _RINGS[what]
    num = int(ring.num * rounds)
    kinds = (RecordKind.HANDLED, RecordKind.SENT, RecordKind.ACTOR_READY)
    places = bytearray(os.pread(fd, ring.num * RECORD_BYTES, ring.at))
    for number in range(max(num - ring.num, 0) + 1, num + 1):
        dur, at = OPEN if chance.random() < 0.01 else 5, (number & (ring.num - 1)) * RECORD_BYTES
        layout.RECORD.pack_into(places, at, number, chance.choice(kinds), 0, 1, 1, 1, number, 1, dur, 1, number)
    os.pwrite(fd, places, ring.at)
    os.pwrite(fd, num.to_bytes(8, "little"), ring.cursor_at)
    assert _check(fd) > 0


@pytest.mark.parametrize("number", [0, 7])
def test_a_record_that_is_being_written_ends_a_ring_and_one_that_is_damaged_does_not(fd: int, number: int) -> None:
    for one in range(1, 101):
        _write_ring(fd, layout.EVENTS, one, kind=RecordKind.HANDLED)
    _write(fd, layout.EVENTS.at + 50 * RECORD_BYTES, kind=RecordKind.HANDLED, seq=number)
    assert _check(fd) == (99 if number else 49)


@pytest.mark.slow  # a table of calls is filled several times
@pytest.mark.parametrize("seed", range(4))
def test_sent_calls_are_those_that_a_drain_takes(fd: int, seed: int) -> None:
    chance = random.Random(seed)
    recorder, last, waiting = Recorder(os.dup(fd), 1), {0: 0, CAST: CAST}, list[int]()
    casts = chance.choice((0.0, 0.02, 0.5))
    for _ in range(3):
        for _ in range(chance.choice((10, 500, layout.NUM_SENT - 3, layout.NUM_SENT * 3 // 2))):
            bit = CAST if chance.random() < casts else 0
            last[bit] += 1
            recorder.sent(last[bit], 1, 1, 1, 10, 7)
            waiting.append(last[bit])
            while len(waiting) > 300 or (waiting and chance.random() < 0.7):
                recorder.answered(waiting.pop(chance.randrange(len(waiting))))
        _check(fd)
    assert _check(fd) > 0
    recorder.close()


def test_those_that_files_have_are_left_out(fd: int) -> None:
    for number in range(1, 101):
        _write_ring(fd, layout.METRICS, number, kind=RecordKind.METRIC)
    ((taken,), _) = take_records(memory_of(fd), [METRICS], ["metrics"])
    parts = [numbers_of(taken.records[3:40]), numbers_of(taken.records[60:])]
    assert without(taken.records, parts)["seq"].tolist() == [1, 2, 3, *range(41, 61)]
    assert without(taken.records, []) is taken.records


def test_only_what_is_asked_for_is_taken(fd: int) -> None:
    for number in range(1, 11):
        _write_ring(fd, layout.EVENTS, number, kind=RecordKind.HANDLED)
        _write_ring(fd, layout.METRICS, number, kind=RecordKind.METRIC)
    for places, names in (([METRICS, SENDS, CASTS], ["metrics"]), ([EVENTS], ["handled"])):
        found, _ = take_records(memory_of(fd), places, names)
        assert [(one.table, one.what) for one in found] == [(names[0], places[0])]
