"""Records of the calls that an actor handles: their time in the queue, and their answers."""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from monarch_hpc import Actor, ActorError, ActorMesh, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import FAILED, RecordKind
from monarch_hpc.telemetry.names import parse_names
from monarch_hpc.telemetry.reading import DecodedRecord, read_events, read_table
from monarch_hpc.telemetry.views.scene import read_scene
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_gates: dict[str, threading.Event] = {}
_NUM_VALUES = 100_000


def memory(at: int, size: int) -> bytes:
    return bytes(current_runtime().recorder.memory[at : at + size])


def pass_gate(name: str) -> None:
    assert _gates.setdefault(name, threading.Event()).wait(_PATIENCE_S)


class Worker(Actor):
    """Has an endpoint of each kind; each answers with an array."""

    @endpoint
    def plain(self) -> object:
        return np.ones(_NUM_VALUES)

    @endpoint
    async def coroutine(self) -> object:
        return np.ones(_NUM_VALUES)

    @concurrent_endpoint
    async def concurrent(self) -> object:
        return np.ones(_NUM_VALUES)

    @endpoint(timeout=_PATIENCE_S)
    def timed(self) -> object:
        return np.ones(_NUM_VALUES)

    @endpoint
    def wrapped(self) -> object:
        return self._answer()

    async def _answer(self) -> object:
        return np.ones(_NUM_VALUES)

    @endpoint(explicit_response_port=True)
    def explicit(self, port: ResponsePort) -> None:
        port.send(np.ones(_NUM_VALUES))

    @endpoint
    def takes(self, value: object) -> None:
        del value

    @endpoint
    def quiet(self) -> None:
        return None

    @endpoint
    def fails(self) -> None:
        raise ValueError("x" * 1000)

    @endpoint
    async def coroutine_fails(self) -> None:
        raise ValueError("x" * 1000)

    @endpoint
    def cannot_travel(self) -> object:
        return threading.Lock()

    @endpoint(timeout=0.1)
    def late(self) -> None:
        pass_gate("late")

    @endpoint(explicit_response_port=True)
    def goes_on(self, port: ResponsePort) -> None:
        port.send(np.ones(_NUM_VALUES))
        pass_gate("goes_on")

    @endpoint
    def hold(self) -> None:
        pass_gate("hold")

    @endpoint
    def queued(self) -> float:
        (call,) = [call for call in read_scene(memory).running if call.endpoint == "queued"]
        return call.queued_s


class RecordObserver(Actor):
    """Reads the records of its process, and opens gates."""

    @endpoint
    def handled(self, method: str) -> list[DecodedRecord]:
        name = current_runtime().recorder.names.endpoint("worker", method)
        return [record for record in read_events(memory) if (record.kind, record.name) == (RecordKind.HANDLED, name)]

    @endpoint
    def look(self, number: int) -> tuple[str, ...]:
        return parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))(number)

    @endpoint
    def running(self) -> list[str]:
        return [call.endpoint for call in read_scene(memory).running]

    @endpoint
    def counts(self, method: str) -> tuple[int, int]:
        (count,) = [one for one in read_scene(memory).endpoints if (one.name, one.endpoint) == ("worker", method)]
        assert sum(count.ran) == sum(count.queued) == count.num_calls
        return count.num_calls, count.num_failed

    @endpoint
    def open(self, name: str) -> int:
        now_ns = time.monotonic_ns()
        _gates.setdefault(name, threading.Event()).set()
        return now_ns


class Stage:
    def __init__(self, procs: ProcMesh) -> None:
        self.worker: ActorMesh[Any] = procs.spawn("worker", Worker)
        self.observer: ActorMesh[Any] = procs.spawn("observer", RecordObserver)

    def ask(self, question: str, *args: object) -> Any:
        return getattr(self.observer, question).call_one(*args).get(_PATIENCE_S)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with controlled(load().config, 1) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        yield procs


@pytest.fixture
def stage(procs: ProcMesh) -> Stage:
    return Stage(procs)


@pytest.mark.parametrize("method", ["plain", "coroutine", "concurrent", "timed", "wrapped", "explicit"])
def test_a_call_is_written_down_once_with_its_answer(stage: Stage, method: str) -> None:
    call = getattr(stage.worker, method).call_one
    num = 3
    for _ in range(num):
        call().get(_PATIENCE_S)
    if method == "explicit":  # it answers before it returns
        wait_until("the end", lambda: stage.ask("handled", method), accept=lambda found: len(found) == num)
    records = stage.ask("handled", method)
    assert len(records) == num
    for record in records:
        assert record.flags == 0
        assert record.dur >= 0
        assert 8 * _NUM_VALUES < record.answer_bytes < 9 * _NUM_VALUES
    assert stage.ask("counts", method) == (num, 0)


@pytest.mark.parametrize("method", ["fails", "coroutine_fails", "cannot_travel"])
def test_a_failure_is_recorded_with_its_class_and_line_and_not_with_its_text(stage: Stage, method: str) -> None:
    with pytest.raises((ActorError, TypeError, ValueError)):
        getattr(stage.worker, method).call_one().get(_PATIENCE_S)
    (record,) = stage.ask("handled", method)
    assert record.flags == FAILED
    kind, cls, line = stage.ask("look", record.error)
    assert kind == "error"
    if method != "cannot_travel":
        assert cls == "ValueError"
        path, _, number = line.rpartition(":")
        assert path == __file__
        assert 'raise ValueError("x" * 1000)' in linecache.getline(path, int(number))
    assert stage.ask("counts", method) == (1, 1)
    sent = [one for one in read_table(memory, layout.SENT_AT, layout.NUM_SENT) if one.flags & FAILED]
    assert record.msg in {one.msg for one in sent}


def test_sizes_include_buffers(stage: Stage) -> None:
    stage.worker.takes.call_one(np.ones(_NUM_VALUES)).get(_PATIENCE_S)
    (record,) = stage.ask("handled", "takes")
    assert 8 * _NUM_VALUES < record.num_bytes < 9 * _NUM_VALUES
    (sent,) = [one for one in read_table(memory, layout.SENT_AT, layout.NUM_SENT) if one.num_bytes > 8 * _NUM_VALUES]
    assert (sent.num_bytes, sent.msg, sent.flags, sent.num_receivers) == (record.num_bytes, record.msg, 0, 1)


def test_nothing_is_answered_where_nobody_waits(stage: Stage) -> None:
    stage.worker.quiet.broadcast()
    stage.worker.quiet.call_one().get(_PATIENCE_S)
    silent, answered = stage.ask("handled", "quiet")
    assert (silent.msg, silent.answer_bytes) == (0, 0)
    assert answered.msg and 0 < answered.answer_bytes < 100


def test_an_endpoint_that_goes_on_after_its_answer_runs_until_it_returns(stage: Stage) -> None:
    stage.worker.goes_on.call_one().get(_PATIENCE_S)
    assert stage.ask("running").count("goes_on") == 1
    assert stage.ask("handled", "goes_on") == []
    stage.ask("open", "goes_on")
    (record,) = wait_until("the end", lambda: stage.ask("handled", "goes_on"), accept=bool)
    assert record.flags == 0
    assert record.answer_bytes > 8 * _NUM_VALUES


def test_an_endpoint_that_is_too_slow_runs_until_it_returns(stage: Stage) -> None:
    with pytest.raises(TimeoutError, match="took longer than its timeout"):
        stage.worker.late.call_one().get(_PATIENCE_S)
    assert stage.ask("running").count("late") == 1
    assert stage.ask("handled", "late") == []
    stage.ask("open", "late")
    (record,) = wait_until("the end", lambda: stage.ask("handled", "late"), accept=bool)
    assert record.flags == FAILED
    assert record.dur >= 10**8
    assert stage.ask("look", record.error) == ("error", "TimeoutError", "")


def test_a_call_has_waited_since_it_came(stage: Stage) -> None:
    held = stage.worker.hold.call_one()
    sent_ns = time.monotonic_ns()
    waiting = stage.worker.queued.call_one()
    opened_ns = stage.ask("open", "hold")  # on the same channel: the earlier call has arrived
    queued_s = waiting.get(_PATIENCE_S)
    held.get(_PATIENCE_S)
    (record,) = stage.ask("handled", "queued")
    least_us, most_us = ((record.t - since_ns) // 1000 for since_ns in (opened_ns, sent_ns))
    assert 0 < least_us <= record.queued_us <= most_us
    assert queued_s == pytest.approx(record.queued_us * 1e-6)
