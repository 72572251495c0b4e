"""Both pens: records are read back as written, and incomplete ones are not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.histogram import bucket_of
from monarch_hpc.telemetry.layout import FAILED, HEADER, OPEN, RECORD, RecordKind
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.names import parse_names
from monarch_hpc.telemetry.progress import CallProgress
from monarch_hpc.telemetry.reading import Memory, memory_of, read_events, read_u64
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.views.scene import MAX_SENT, read_memory_use, read_scene

pytestmark = pytest.mark.pen

HERE = 0xFEED

_LATER = 2**64 - 1
"""Arrival time of a call that was not queued, whatever the clock says."""


@pytest.fixture(params=[False, True], ids=["compiled", "plain"])
def make(request: pytest.FixtureRequest) -> Callable[[], tuple[Recorder, Memory]]:
    def recorder() -> tuple[Recorder, Memory]:
        fd = make_memory("test")
        request.addfinalizer(lambda: os.close(fd))
        return Recorder(os.dup(fd), HERE, plain=request.param), memory_of(fd)

    return recorder


Make = Callable[[], tuple[Recorder, Memory]]


def test_the_extension_is_there() -> None:
    from monarch_hpc.telemetry import _pen

    assert isinstance(Recorder().handling(0), _pen.Handling)


def test_an_idle_process(make: Make) -> None:
    scene = read_scene(make()[1])
    assert (scene.problem, scene.incarnation) == ("", f"{HERE:x}")
    assert not (scene.actors or scene.running or scene.waits or scene.sent or scene.endpoints)


def test_a_recorder_holds_no_descriptor_and_gives_its_memory_back(make: Make) -> None:
    fds = os.listdir("/proc/self/fd")
    alone = Recorder(plain=True)
    assert os.listdir("/proc/self/fd") == fds
    alone.close()
    recorder, memory = make()
    fd = next(int(fd) for fd in os.listdir("/proc/self/fd") if "monarch-hpc test" in _target(fd))
    actor = recorder.actor(0xABC, "trainer", 0)
    for number in range(1, 2000):
        recorder.sent(number, actor.mark, recorder.names.endpoint("trainer", "step"), 0, 10, 0xABC)
    place = recorder.wait(1, 1)
    assert os.fstat(fd).st_blocks > 0 and read_scene(memory).actors
    recorder.close()
    assert os.fstat(fd).st_blocks == 0
    # Records after the end are dropped.
    recorder.waited(place)
    recorder.answered(1)
    recorder.sent(5000, actor.mark, recorder.names.endpoint("trainer", "other"), 0, 10, 0xABC)
    actor.change(RecordKind.ACTOR_STOPPED)
    assert read_scene(memory).problem


def _target(fd: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def test_memory_that_is_none_is_refused() -> None:
    with open(os.devnull) as file, pytest.raises(OSError, match="cannot map descriptor"):
        Recorder(os.dup(file.fileno()))


def test_a_call_that_runs_and_one_that_waits_for_it(make: Make) -> None:
    recorder, memory = make()
    names = recorder.names
    actor = recorder.actor(0xABC, "trainer", 3)
    actor.change(RecordKind.ACTOR_READY)
    handling = recorder.handling(actor.mark)
    handling.begin(names.endpoint("trainer", "step"), names.proc(7, "gpu01"), 41, 100, time.monotonic_ns() - 3 * 10**9)
    recorder.sent(5, actor.mark, names.endpoint("store", "get"), names.proc(8, "gpu02"), 10, 2**64 - 1)
    place = recorder.wait(5, 5)

    scene = read_scene(memory, time.monotonic_ns() + 2 * 10**9)

    (seen,) = scene.actors
    assert (seen.actor, seen.name, seen.rank, seen.state, seen.cause) == ("abc", "trainer", 3, "ready", "")
    (running,) = scene.running
    assert (running.actor, running.endpoint, running.call) == ("abc", "step", 41)
    assert (running.caller, running.caller_host) == ("7", "gpu01")
    assert 2.0 <= running.age_s < 60.0
    assert 3.0 <= running.queued_s < 60.0
    (sent,) = scene.sent
    assert (sent.call, sent.actor, sent.target, sent.target_host) == (5, "abc", "8", "gpu02")
    assert (sent.target_actor, sent.target_name, sent.endpoint) == ("f" * 16, "store", "get")
    (wait,) = scene.waits
    assert (wait.actor, wait.calls, wait.num_calls) == ("abc", [5], 1)

    recorder.answered(5)
    recorder.waited(place)
    handling.fail(names.error(ValueError("secret")))
    scene = read_scene(memory)
    assert not (scene.running or scene.waits or scene.sent)
    (count,) = scene.endpoints
    assert (count.name, count.endpoint, count.num_calls, count.num_failed) == ("trainer", "step", 1, 1)
    assert sum(count.ran) == 1
    assert count.queued[-1] == sum(count.queued) == 1
    assert 3.0 <= count.queued_longest_s == count.queued_total_s < 60.0
    handled = read_events(memory)[-1]
    assert (handled.kind, handled.flags, handled.msg, handled.num_bytes) == (RecordKind.HANDLED, FAILED, 41, 100)
    assert handled.dur >= 0
    assert 3e6 <= handled.queued_us < 60e6
    assert handled.answer_bytes == 0
    assert parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))(handled.error) == ("error", "ValueError", "")


def test_a_call_that_says_what_it_does(make: Make) -> None:
    recorder, memory = make()
    actor = recorder.actor(0xABC, "worker", 0)
    other, handling = recorder.handling(99), recorder.handling(actor.mark)
    progress = CallProgress(recorder, actor.mark)
    progress.begin()
    progress.note(recorder.names.operation("lost: no call runs"))
    for call in (1, 2):
        other.begin(recorder.names.endpoint("other", "run"), 0, 7, 10, _LATER)
        handling.begin(recorder.names.endpoint("worker", "run"), 0, call, 10, _LATER)
        progress.begin()
        assert [one.operation for one in read_scene(memory).running if one.call == call] == [""]
        progress.note(recorder.names.operation("Tensor.add at train.py:3"))
        assert sorted(one.operation for one in read_scene(memory).running) == ["", "Tensor.add at train.py:3"]
        progress.note(0)
        assert {one.operation for one in read_scene(memory).running} == {""}
        progress.note(recorder.names.operation("Tensor.mul"))
        handling.end(5)
        other.end(0)
    assert [record.answer_bytes for record in read_events(memory) if record.msg in (1, 2)] == [5, 5]


def test_both_pens_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(*, plain: bool) -> bytes:
        recorder = Recorder(plain=plain)
        recorder.sent(1, 2, 3, 4, 5, 2**63)
        recorder.sent(0, 2, 3, 4, 5, 6)
        recorder.sent(2, 2, 3, 4, 5, 6)
        recorder.answered(2)
        recorder.sent(3, 2, 3, 4, 5, 6)
        recorder.failed(3)
        first, second = recorder.handling(9), recorder.handling(10)
        first.begin(3, 4, 5, 6, _LATER)
        second.begin(4, 5, 6, 7, _LATER)
        second.fail(8)
        second.end(9)  # no call has begun
        for num_bytes in (0, 1, layout.HALF, layout.HALF + 1):
            second.begin(4, 5, 6, 7, _LATER)
            second.end(num_bytes)
        at = (layout.SENT_AT, layout.NAMES_AT)
        assert read_u64(lambda start, size: recorder.memory[start : start + size], layout.EVENTS.cursor_at) == 6
        written = bytearray(recorder.memory[at[0] : at[1]])
        # Times differ, and so do the values computed from them.
        for offset in range(0, (layout.COUNTERS_AT - at[0]), 64):
            written[offset : offset + 8] = bytes(8)
            if written[offset + 40 : offset + 48] != OPEN.to_bytes(8, "little", signed=True):
                written[offset + 40 : offset + 48] = bytes(8)
        for offset in range(layout.COUNTERS_AT - at[0], layout.RUNNING_AT - at[0], layout.COUNTER.size):
            written[offset + 16 : offset + 32] = bytes(16)
            ran = sum(written[offset + 48 : offset + 48 + 8 * layout.NUM_BUCKETS : 8])
            written[offset + 48 : offset + 48 + 8 * layout.NUM_BUCKETS] = bytes([ran]).ljust(8 * layout.NUM_BUCKETS)
        for offset in range(layout.RUNNING_AT - at[0], layout.WAITS_AT - at[0], 64):
            written[offset : offset + 8] = bytes(8)
        return bytes(written)

    compiled, plain = tables(plain=False), tables(plain=True)
    assert any(compiled)
    assert compiled == plain


def test_waiting_times_are_counted_as_they_are_recorded(make: Make) -> None:
    recorder, memory = make()
    handling = recorder.handling(0)
    waited_ns = [0, 10**3, 10**6, 10**9, 10**11, 10**12, 10**13]
    for number, waited in enumerate(waited_ns, 1):
        name = recorder.names.endpoint("a", str(number))
        handling.begin(name, 0, number, 0, max(time.monotonic_ns() - waited, 0))  # the machine may have just booted
        handling.end(0)
    counts = {int(count.endpoint): count for count in read_scene(memory).endpoints}
    records = read_events(memory)
    assert [record.msg for record in records] == list(range(1, len(waited_ns) + 1))
    for record, waited in zip(records, waited_ns, strict=True):
        count = counts[record.msg]
        assert sum(count.queued) == 1
        least_ns = int(count.queued_total_s * 1e9) - 1
        assert least_ns >= min(waited, record.t // 2) - 1
        assert record.queued_us in {min(least_ns // 1000, layout.HALF), min((least_ns + 2) // 1000, layout.HALF)}
        assert len(count.queued) - 1 in {bucket_of(max(least_ns, 0)), bucket_of(least_ns + 2)}
    assert counts[1].ran[-1] == 1


def test_a_call_of_a_mesh_waits_for_the_ranks_that_have_not_answered(make: Make) -> None:
    recorder, memory = make()
    endpoint, other = recorder.names.endpoint("a", "e"), recorder.names.endpoint("b", "f")
    for number in range(1, 9):
        recorder.sent(number, 0, other if number == 4 else endpoint, 0, 0, 1)  # a call of another thread in between
    recorder.wait(2, 8)
    for number in (2, 5):
        recorder.answered(number)
    (wait,) = read_scene(memory).waits
    assert wait.calls == [3, 6, 7, 8]


def test_an_old_call_without_an_answer_is_not_overwritten(make: Make) -> None:
    recorder, memory = make()
    recorder.sent(1, 0, recorder.names.endpoint("a", "slow"), 0, 0, 1)
    recorder.sent(2, 0, recorder.names.endpoint("a", "slow"), 0, 0, 1)
    recorder.wait(1, 1)
    for number in range(3, 3 * layout.NUM_SENT):
        recorder.sent(number, 0, 0, 0, 0, 1)
        recorder.answered(number)
    scene = read_scene(memory)
    assert [call.call for call in scene.sent] == [1, 2]
    assert scene.waits[0].calls == [1]
    recorder.answered(1)
    assert [call.call for call in read_scene(memory).sent] == [2]


def test_a_flood_of_calls_is_counted_and_the_oldest_are_told(make: Make) -> None:
    recorder, memory = make()
    num = layout.NUM_SENT + layout.NUM_OLD + 100
    for number in range(1, num + 1):
        recorder.sent(number, 0, 0, 0, 0, 1)
    scene = read_scene(memory)
    assert scene.num_sent == layout.NUM_SENT + layout.NUM_OLD  # the first hundred were dropped
    assert [call.call for call in scene.sent] == list(range(101, 101 + MAX_SENT))


def test_the_ring_keeps_the_latest_events(make: Make) -> None:
    recorder, memory = make()
    num = layout.EVENTS.num + 100
    for number in range(num):
        recorder.change(RecordKind.MESH_SPAWNED, msg=number)
    assert [event.msg for event in read_events(memory)] == list(range(100, num))


def test_a_record_that_is_being_written_is_not_whole() -> None:
    """`struct.pack_into` clears the record and writes fields in order, which bounds what a killed process leaves."""
    seen: list[bytes] = []

    class Number:
        def __index__(self) -> int:
            seen.append(bytes(memory))
            return 7

    memory = bytearray(RECORD.pack(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
    RECORD.pack_into(memory, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, Number(), 12)
    (between,) = seen
    *fields, seq = RECORD.unpack(between)
    assert fields[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert seq == 0


def test_more_actors_calls_and_waits_than_there_is_room_for(make: Make) -> None:
    recorder, memory = make()
    actors = [recorder.actor(number + 1, "a", number) for number in range(layout.NUM_ACTORS + 5)]
    handlings = [recorder.handling(actor.mark) for actor in actors]
    for handling in handlings:
        handling.begin(0, 0, 1, 0, 0)
    places = [recorder.wait(1, 1) for _ in range(layout.NUM_WAITS + 5)]
    assert len(read_scene(memory).actors) == layout.NUM_ACTORS
    for handling in handlings:
        recorder.release(handling)
    for place in places:
        recorder.waited(place)
    scene = read_scene(memory)
    assert not (scene.running or scene.waits)
    assert len(read_events(memory)) == len(actors) + len(handlings)


def test_what_became_of_an_actor_stays_until_its_place_is_needed(make: Make) -> None:
    recorder, memory = make()
    recorder.actor(1, "old", 0).change(RecordKind.ACTOR_FAILED, "it fell over\nand a traceback")
    recorder.actor(2, "new", 0).change(RecordKind.ACTOR_READY)
    told = {(seen.name, seen.state, seen.cause) for seen in read_scene(memory).actors}
    assert told == {("old", "failed", "it fell over"), ("new", "ready", "")}
    for number in range(3, layout.NUM_ACTORS + 2):
        recorder.actor(number, "more", 0)
    assert not [seen for seen in read_scene(memory).actors if seen.name == "old"]


def test_names_are_written_once_and_end_with_the_table(make: Make) -> None:
    recorder, memory = make()
    names = recorder.names
    assert names.text("x") == names.text("x") == 1
    assert names.endpoint("x", "y") == names.endpoint("x", "y") == 2
    numbers = [names.text(f"{number} {'ä' * 500}") for number in range(3000)]
    assert numbers[0] == 3
    assert numbers[-1] == 0
    recorder.actor(1, f"5 {'ä' * 500}", 0)
    assert read_scene(memory).actors[0].name == f"5 {'ä' * 198}"


def test_threads_lose_nothing(make: Make) -> None:
    recorder, memory = make()
    num_threads, num_calls = 4, 2000

    def work(thread: int) -> None:
        handling = recorder.handling(thread)
        for number in range(num_calls):
            handling.begin(0, 0, thread * num_calls + number + 1, 0, 0)
            handling.end(0)
        recorder.release(handling)

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, range(num_threads)))
    assert {event.msg for event in read_events(memory)} == set(range(1, num_threads * num_calls + 1))


def test_memory_that_is_lent_and_moved(make: Make) -> None:
    recorder, memory = make()
    actor = recorder.actor(7, "lender", 3)
    recorder.lent(actor.mark, 2, 300)
    recorder.lent(actor.mark, -1, -100)
    recorder.lent(0, 1, 8)
    peer = recorder.names.proc(0xAB, "n1")
    for num_bytes in (10, 20):
        recorder.moved("cma", peer, num_bytes, 5_000, write=False, failed=False)
    recorder.moved("cma", peer, 30, -5, write=True, failed=False)
    use = read_memory_use(memory, _LATER)
    assert [(one.name, one.rank, one.num, one.num_bytes) for one in use.lent] == [("", 0, 1, 8), ("lender", 3, 1, 200)]
    assert sorted(
        (one.write, one.num, one.num_bytes, one.took_s, one.peer, one.host, one.path) for one in use.moved
    ) == [
        (False, 2, 20, 5e-6, "ab", "n1", "cma"),
        (True, 1, 30, 0.0, "ab", "n1", "cma"),
    ]
    for number in range(2 * layout.NUM_MOVED):
        recorder.moved("tcp", recorder.names.proc(number, "n2"), 1, 1, write=False, failed=False)
    assert len(read_memory_use(memory).moved) == layout.NUM_MOVED
    recorder.lent(0, -1, -8)
    assert len(read_memory_use(memory).lent) == 1


def test_what_cannot_be_read_says_why(make: Make) -> None:
    fd = make_memory("test")
    try:
        assert read_scene(memory_of(fd)).problem == "it has not recorded anything yet"
        os.pwrite(fd, HEADER.pack(layout.MAGIC, 9, layout.TOTAL_BYTES + 64, 1, 2, 3, 4), 0)
        assert read_scene(memory_of(fd)).problem == "its records have version 9, expected 5"
        os.pwrite(fd, b"x" * 64, 0)
        assert read_scene(memory_of(fd)).problem == "something has overwritten its records"
        assert read_events(memory_of(fd)) == []
        os.ftruncate(fd, 0)
        assert read_scene(memory_of(fd)).problem == "it has not recorded anything yet"
    finally:
        os.close(fd)
