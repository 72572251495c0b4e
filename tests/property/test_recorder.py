"""Readers accept any bytes, and any history of calls reads back as its remaining state."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import HEADER
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import Memory, memory_of, read_events
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.views.picture import draw
from monarch_hpc.telemetry.views.scene import read_memory_use, read_scene
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.questions import Portion, Rows
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.tables.calls import CALLS, ProcCalls

_TABLES = (
    (layout.SENT_AT, 64),
    (layout.OLD_AT, 64),
    (layout.EVENTS.at, 64),
    (layout.CURSORS_AT, 8),
    (layout.COUNTERS_AT, layout.COUNTER.size),
    (layout.RUNNING_AT, 64),
    (layout.ACTORS_AT, 64),
    (layout.WAITS_AT, 16),
    (layout.NAMES_AT, 16),
)


@pytest.fixture(scope="module")
def fd() -> Iterator[int]:
    fd = make_memory("test")
    yield fd
    os.close(fd)


def told(memory: Memory) -> ProcCalls:
    """The row that an agent would send, encoded and decoded."""
    proc = ProcCalls("run", 1, 0, "host", 1, "ready", "", read_scene(memory))
    answer = decode(encode(Rows(1, [Portion("host", CALLS.render([proc], {}))], [], [])))
    assert isinstance(answer, Rows)
    (row,) = CALLS.read(answer.portions[0].rows)
    return row


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), pieces=st.lists(st.tuples(st.sampled_from(_TABLES), st.binary(max_size=200))))
def test_a_reader_takes_anything(fd: int, seed: int, pieces: list[tuple[tuple[int, int], bytes]]) -> None:
    noise = random.Random(seed)
    os.ftruncate(fd, 0)
    os.ftruncate(fd, layout.TOTAL_BYTES)
    os.pwrite(fd, HEADER.pack(layout.MAGIC, layout.VERSION, layout.TOTAL_BYTES, 1, 2, 3, 4), 0)
    for (start, size), piece in pieces:
        os.pwrite(fd, piece, start + size * noise.randrange(100))
    for start, _ in _TABLES:
        if noise.random() < 0.3:
            os.pwrite(fd, noise.randbytes(noise.randrange(1 << 14)), start)
    read_events(memory_of(fd))
    read_memory_use(memory_of(fd))
    draw([told(memory_of(fd))])


@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["send", "answer", "begin", "end"]), st.integers(0, 5)), max_size=80),
    plain=st.booleans(),
)
def test_what_is_left_of_a_history(fd: int, steps: list[tuple[str, int]], plain: bool) -> None:
    os.ftruncate(fd, 0)
    os.ftruncate(fd, layout.TOTAL_BYTES)
    recorder = Recorder(os.dup(fd), 1, plain=plain)
    endpoints = [recorder.names.endpoint("actor", f"e{number}") for number in range(6)]
    handlings = [recorder.handling(0) for _ in range(6)]
    sent: dict[int, str] = {}
    running: dict[int, int] = {}
    num_ended = 0
    came_ns = time.monotonic_ns()
    for number, (step, which) in enumerate(steps, 1):
        if step == "send":
            recorder.sent(number, 0, endpoints[which], 0, 0, which)
            sent[number] = f"e{which}"
        elif step == "answer" and which < len(sent):
            recorder.answered(list(sent)[which])
            del sent[list(sent)[which]]
        elif step == "begin" and which not in running:
            handlings[which].begin(endpoints[which], 0, number, 0, came_ns)
            running[which] = number
        elif step == "end" and which in running:
            handlings[which].end(running[which])
            del running[which]
            num_ended += 1
    scene = read_scene(memory_of(fd))
    assert {call.call: call.endpoint for call in scene.sent} == sent
    assert {call.endpoint: call.call for call in scene.running} == {f"e{key}": call for key, call in running.items()}
    events = read_events(memory_of(fd))
    assert len(events) == num_ended
    assert all(event.answer_bytes == event.msg for event in events)
    for count in scene.endpoints:
        assert sum(count.ran) == sum(count.queued) == count.num_calls
        assert count.longest_s <= count.total_s
        assert count.queued_longest_s <= count.queued_total_s
    assert sum(count.num_calls for count in scene.endpoints) == num_ended
