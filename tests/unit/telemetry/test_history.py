"""Rows of records: the latest first, with names instead of numbers, in the time of the head's clock."""

from __future__ import annotations

import random

import pytest

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import HISTORY, MAX_RECORDS, latest_first, read_recorder
from monarch_hpc.telemetry.layout import CAST, HEADER, NO_STEP
from monarch_hpc.telemetry.reading import Memory
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.history import HandledCall, HistoryRow, MetricRow, SendRow, SpanRow, TransferRow
from monarch_hpc.wire.tables.procs import RunProcess

PROC = RunProcess("run", 1, 2, "n1", 77, "ready", "")
CORRECTION = Correction(5 * 10**9, 12.34)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(incarnation=0xABC)


def memory_of(recorder: Recorder) -> Memory:
    return lambda at, size: recorder.memory[at : at + size]


def read(recorder: Recorder, table: str) -> list[HistoryRow]:
    rows = list(HISTORY[table](memory_of(recorder), PROC, CORRECTION))
    assert TABLES[table].read(TABLES[table].render(rows, {})) == rows
    return rows


def test_rows_of_each_table(recorder: Recorder) -> None:
    before_s = (monotonic_ns() + CORRECTION.offset_ns) * 1e-9
    names, rings = recorder.names, recorder.rings
    mark = recorder.actor(7, "trainer", 3).mark
    step, peer = names.endpoint("trainer", "step"), names.proc(0xF, "n2")
    try:
        raise KeyError("secret")
    except KeyError as error:
        failure, line = names.error(error), error.__traceback__.tb_lineno if error.__traceback__ else 0
    done, running = recorder.handling(mark), recorder.handling(mark)
    done.begin(step, peer, 5, 100, monotonic_ns())
    done.end(40)
    done.begin(step, peer, CAST | 6, 200, monotonic_ns())
    done.fail(failure)
    running.begin(step, peer, 0, 1, monotonic_ns())
    recorder.sent(0, mark, step, peer, 1, 1)  # another event, which is no row
    recorder.metric(mark, names.metric("loss"), names.tags({"a": 1}), 10, 0.5)
    recorder.metric(0, names.metric("loss"), 0, NO_STEP, 1.5)
    span = rings.span(mark, names.span("load"), 0, 0)
    rings.span(mark, names.span("read"), 0, span.number).end(failed=True)
    recorder.moved("cma", peer, 30, 5_000, write=True, failed=False)

    handled = [row for row in read(recorder, "handled") if isinstance(row, HandledCall)]
    assert [(row.call, row.through_tree, row.status, row.bytes, row.answer_bytes) for row in handled] == [
        (0, False, "running", 1, 0),
        (6, True, "failed", 200, 0),
        (5, False, "ok", 100, 40),
    ]
    assert {(row.actor, row.actor_rank, row.endpoint, row.caller, row.caller_host) for row in handled} == {
        ("trainer", 3, "step", "f", "n2")
    }
    assert [(row.error, row.line) for row in handled] == [("", ""), ("KeyError", f"{__file__}:{line}"), ("", "")]
    assert {(row.run, row.mesh, row.rank, row.host, row.pid, row.error_us) for row in handled} == {
        ("run", 1, 2, "n1", 77, 12.3)
    }
    assert before_s <= handled[-1].t <= handled[0].t <= (monotonic_ns() + CORRECTION.offset_ns) * 1e-9
    assert {(row.incarnation, row.actor_id) for row in handled} == {("abc", "7")}
    metrics = [row for row in read(recorder, "metrics") if isinstance(row, MetricRow)]
    assert [(row.actor, row.actor_rank, row.name, row.value, row.step, row.tags) for row in metrics] == [
        ("", -1, "loss", 1.5, -1, ""),
        ("trainer", 3, "loss", 0.5, 10, '{"a":1}'),
    ]
    spans = [row for row in read(recorder, "spans") if isinstance(row, SpanRow)]
    assert [(row.name, row.span, row.parent, row.status) for row in spans] == [
        ("read", 2, 1, "failed"),
        ("load", 1, 0, "open"),
    ]
    (transfer,) = [row for row in read(recorder, "transfers") if isinstance(row, TransferRow)]
    assert (transfer.peer_host, transfer.path, transfer.write, transfer.took_us) == ("n2", "cma", True, 5.0)
    state = read_recorder(memory_of(recorder), PROC)
    assert (state.incarnation, state.events, state.metrics, state.spans, state.transfers) == ("abc", 4, 2, 2, 1)


def test_rows_of_sent_calls(recorder: Recorder) -> None:
    names = recorder.names
    mark = recorder.actor(7, "trainer", 3).mark
    step, peer = names.endpoint("data", "load"), names.proc(0xF, "n2")
    for number in range(1, 5):
        recorder.sent(number, mark, step, peer, 10 * number, 9)
    recorder.answered(1)
    recorder.failed(2)
    recorder.sent(0, 0, step, peer, 1, 9)
    recorder.sent(CAST | 9, mark, step, 16, 5, 0)
    other = layout.NUM_SENT + 3  # takes the place of the unanswered call 3, which is kept elsewhere
    recorder.sent(other, mark, names.endpoint("data", "save"), peer, 1, 9)
    recorder.wait(3, 4)
    recorder.wait(CAST | 9, CAST | 9)
    recorder.wait_for("a port", mark)
    rows = {(row.call, row.through_tree): row for row in read(recorder, "sends") if isinstance(row, SendRow)}
    assert {key: (row.status, row.awaited) for key, row in rows.items()} == {
        (0, False): ("sent", False),
        (1, False): ("ok", False),
        (2, False): ("failed", False),
        (3, False): ("open", True),
        (4, False): ("open", True),
        (9, True): ("open", True),
        (other, False): ("open", False),
    }
    one, tree = rows[3, False], rows[9, True]
    assert (one.actor, one.actor_rank, one.incarnation, one.actor_id) == ("trainer", 3, "abc", "7")
    assert (one.target, one.target_host, one.target_actor, one.target_id) == ("f", "n2", "data", "9")
    assert (one.endpoint, one.bytes, one.num_receivers, tree.num_receivers, tree.target) == ("load", 30, 1, 16, "")
    assert rows[1, False].took_us > 0 == rows[0, False].took_us and rows[0, False].actor_rank == -1


def test_only_the_latest_are_looked_at_and_the_rest_is_counted(recorder: Recorder) -> None:
    num = layout.METRICS.num + 5
    for step in range(num):
        recorder.metric(0, 0, 0, step, 1.0)
    rows = [row.step for row in read(recorder, "metrics") if isinstance(row, MetricRow)]
    assert sorted(rows) == list(range(num - MAX_RECORDS, num))
    state = read_recorder(memory_of(recorder), PROC)
    assert (state.metrics, state.metrics_lost) == (num, 5)


def test_rows_of_several_processes_are_merged(recorder: Recorder) -> None:
    other = Recorder()
    for step in range(4):
        for one in (recorder, other):
            one.metric(0, 0, 0, step, 1.0)
    merged = list(latest_first([read(recorder, "metrics"), read(other, "metrics")]))
    assert [row.step for row in merged if isinstance(row, MetricRow)] == [3, 3, 2, 2, 1, 1, 0, 0]


def test_any_bytes_give_rows(recorder: Recorder) -> None:
    noise = random.Random(7)
    for at in range(0, layout.TOTAL_BYTES - 4096, 40_000):
        recorder.memory[at : at + 4096] = noise.randbytes(4096)
    for table in HISTORY:
        read(recorder, table)
    recorder.memory[: HEADER.size] = HEADER.pack(layout.MAGIC, layout.VERSION, layout.TOTAL_BYTES, 1, 2, 3, 4)
    for table in HISTORY:
        read(recorder, table)
    read_recorder(memory_of(recorder), PROC)
