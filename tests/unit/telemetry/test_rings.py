"""Rings of metrics, spans and transfers keep their records whatever else is recorded."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import FAILED, OPEN
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.names import parse_names
from monarch_hpc.telemetry.reading import Memory, memory_of, read_ring, read_u64
from monarch_hpc.telemetry.recorder import Recorder


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Callable[[], tuple[Recorder, Memory]]:
    def recorder() -> tuple[Recorder, Memory]:
        fd = make_memory("test")
        request.addfinalizer(lambda: os.close(fd))
        return Recorder(os.dup(fd), 1), memory_of(fd)

    return recorder


Make = Callable[[], tuple[Recorder, Memory]]


def test_the_rings_of_a_program_are_not_overwritten_by_calls(make: Make) -> None:
    recorder, memory = make()
    rings, names = recorder.rings, recorder.names
    mark = recorder.actor(7, "trainer", 3).mark
    recorder.metric(mark, names.metric("loss"), names.tags({"split": "train"}), 10, 2.5)
    outer = rings.span(mark, names.span("epoch"), 0, 0)
    inner = rings.span(mark, names.span("load"), 0, outer.number)
    inner.end(failed=True)
    recorder.moved("cma", names.proc(1, "n1"), 30, 5_000, write=True, failed=True)
    for number in range(1, layout.EVENTS.num + 2):
        recorder.sent(0, 0, 0, 0, number, 1)
    look = parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))
    (metric,) = read_ring(memory, layout.METRICS)
    assert (look(metric.name), look(metric.peer)) == (("metric", "loss"), ("tags", '{"split":"train"}'))
    assert (metric.actor, metric.dur, metric.number) == (mark, 10, 2.5)
    epoch, load = read_ring(memory, layout.SPANS)
    assert (epoch.dur, epoch.num_bytes, look(epoch.name)) == (OPEN, 0, ("span", "epoch"))
    assert (load.flags, load.num_bytes) == (FAILED, epoch.msg)
    assert load.dur >= 0
    (transfer,) = read_ring(memory, layout.TRANSFERS)
    assert (transfer.flags, transfer.num_bytes, transfer.dur, transfer.value) == (FAILED, 30, 5_000, 1)
    assert [read_u64(memory, ring.cursor_at) for ring in (layout.METRICS, layout.SPANS, layout.TRANSFERS)] == [1, 2, 1]
    assert read_u64(memory, layout.EVENTS.cursor_at) == layout.EVENTS.num + 2


def test_a_span_that_outlives_its_place_is_written_again(make: Make) -> None:
    recorder, memory = make()
    outer = recorder.rings.span(0, 0, 0, 0)
    for _ in range(layout.SPANS.num):
        recorder.rings.span(0, 0, 0, outer.number).end(failed=False)
    outer.end(failed=False)
    found = read_ring(memory, layout.SPANS)
    assert len(found) == layout.SPANS.num
    assert (found[-1].msg, found[-1].num_bytes) == (outer.number, 0)
    assert found[-1].dur >= found[0].dur
    assert found[-1].seq == layout.SPANS.num + 2


@pytest.mark.parametrize("num", [1, layout.TRANSFERS.num, layout.TRANSFERS.num + 3, 3 * layout.TRANSFERS.num - 1])
def test_the_latest_records_of_a_ring_are_read(make: Make, num: int) -> None:
    recorder, memory = make()
    for number in range(1, num + 1):
        recorder.rings.transfer(0, 0, 0, number, 0, 0, write=False)
    for limit in (1, 10, layout.TRANSFERS.num, 10**9):
        latest = range(max(num - min(limit, layout.TRANSFERS.num), 0) + 1, num + 1)
        assert [one.msg for one in read_ring(memory, layout.TRANSFERS, limit)] == list(latest)


def test_names_of_programs_leave_room_for_endpoints(make: Make) -> None:
    recorder, memory = make()
    names = recorder.names
    assert names.tags({}) == 0
    assert names.tags({"a": 1}) != names.tags({"a": True})
    assert names.tags({"a": "x" * 2000}) == 0
    for number in range(10_000):
        names.metric(f"{number} {'x' * 300}")
    assert names.metric("y" * 200) == names.tags({"b": "y" * 300}) == 0
    assert names.endpoint("trainer", "step")
    (unnamed,) = struct.unpack("<Q", memory(layout.UNNAMED_AT, 8))
    assert unnamed > 1000
