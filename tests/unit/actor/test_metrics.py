"""Metrics and spans read back as a program gave them; what cannot be recorded is refused in words."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from monarch_hpc import get_meter, log_metric, span, traced
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import FAILED, NO_STEP, OPEN
from monarch_hpc.telemetry.names import Name, parse_names
from monarch_hpc.telemetry.reading import DecodedRecord, read_ring
from monarch_hpc.telemetry.recorder import Recorder


class Records:
    """What this process has recorded."""

    def __init__(self) -> None:
        self._memory = Recorder()
        self.runtime = SimpleNamespace(recorder=self._memory)

    def ring(self, ring: layout.Ring) -> list[DecodedRecord]:
        return read_ring(lambda at, size: self._memory.memory[at : at + size], ring)

    def look(self, number: int) -> Name:
        return parse_names(self._memory.memory[layout.NAMES_AT : layout.NAMES_AT + layout.NAMES_BYTES])(number)

    @property
    def metrics(self) -> list[tuple[object, ...]]:
        return [
            (*self.look(one.name)[1:], one.number, None if one.dur == NO_STEP else one.dur, self._tags(one))
            for one in self.ring(layout.METRICS)
        ]

    def _tags(self, one: DecodedRecord) -> object:
        return json.loads(self.look(one.peer)[1]) if one.peer else {}


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    found = Records()
    monkeypatch.setattr(Runtime, "current", cast(Any, found.runtime))
    return found


def test_metrics_of_all_kinds_of_numbers(records: Records) -> None:
    log_metric("loss", 2.5, step=10, split="train", final=False)
    log_metric("loss", np.float32(0.5), step=np.int64(-3))  # type: ignore[arg-type]  # any integer
    log_metric("loss", np.array(7))
    log_metric("loss", math.inf)
    log_metric("n", 3, name="a", value=1, split="é\ud800")
    assert records.metrics == [
        ("loss", 2.5, 10, {"split": "train", "final": False}),
        ("loss", 0.5, -3, {}),
        ("loss", 7.0, None, {}),
        ("loss", math.inf, None, {}),
        ("n", 3.0, None, {"name": "a", "value": 1, "split": "é\ud800"}),
    ]


def test_the_second_of_a_kind_is_recorded_as_the_first(records: Records) -> None:
    values = [2, 2.5, True, np.float32(0.5), np.float64(0.1), np.int8(-7), np.bool_(1), np.array(3)]
    tags: list[dict[str, Any]] = [{}, {"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    expected = []
    for _ in range(2):
        for value in values:
            for some in tags:
                log_metric("x", value, step=5, **some)  # type: ignore[arg-type]  # NumPy's are numbers, too
                expected.append(("x", float(value), 5, some))  # type: ignore[arg-type]
    assert records.metrics == expected
    assert [[*map(type, cast(Any, one[-1]).values())] for one in records.metrics] == [
        [type(some[tag]) for tag in sorted(some)] for *_, some in expected
    ]


@pytest.mark.parametrize("plain", [False, True])
def test_a_value_that_is_refused_leaves_no_gap(records: Records, plain: bool) -> None:
    memory = Recorder(plain=plain)
    cast(Any, Runtime.current).recorder = memory
    for good, bad in ((1.0, np.ones(2)), (np.array(1), np.ones(2)), (2, 10**400), (2, np.str_("1"))):
        log_metric("x", good)
        with pytest.raises((TypeError, OverflowError)):
            log_metric("x", bad)
    found = read_ring(lambda at, size: memory.memory[at : at + size], layout.METRICS)
    assert [(one.seq, one.number) for one in found] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


class OnDevice:
    is_cpu = False
    device: object = "cuda:1"

    def __float__(self) -> float:
        raise AssertionError("it waits for the device")

    def numel(self) -> int:
        return 7


class OneOnDevice(OnDevice):
    """A number that a device computes until it is told that it has."""

    def __init__(self, value: float, device: SimpleNamespace) -> None:
        self.value = value
        self.device = device

    def numel(self) -> int:
        return 1

    def detach(self) -> OneOnDevice:
        return self

    def to(self, where: str, *, non_blocking: bool) -> SimpleNamespace:
        assert where == "cpu" and non_blocking
        return SimpleNamespace(item=lambda: self.value)


def test_numbers_on_a_device_are_recorded_when_they_are_ready(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_done = 0
    events: list[int] = []

    class Event:
        def record(self, stream: str) -> None:
            assert stream == "the current one"
            events.append(len(events))
            self.number = events[-1]

        def query(self) -> bool:
            return self.number < num_done

    module = SimpleNamespace(Event=Event, current_stream=lambda _device: "the current one")
    monkeypatch.setitem(sys.modules, "torch", cast(Any, SimpleNamespace(get_device_module=lambda _device: module)))
    device = SimpleNamespace(type="cuda")
    for step in range(3):
        log_metric("loss", OneOnDevice(step / 4, device), step=step, split="train")
    assert not records.metrics
    num_done = 2
    log_metric("lr", 0.5)
    expected: list[tuple[object, ...]] = [("loss", 0.0, 0, {"split": "train"}), ("loss", 0.25, 1, {"split": "train"})]
    assert records.metrics == [*expected, ("lr", 0.5, None, {})]
    num_done = 4
    log_metric("loss", OneOnDevice(0.75, device), step=3)
    assert records.metrics[3:] == [("loss", 0.5, 2, {"split": "train"}), ("loss", 0.75, 3, {})]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"value": "2.5"}, "must be a number, not '2.5', a str"),
        ({"value": None}, "must be a number, not None"),
        ({"value": np.ones(2)}, "must be a number"),
        ({"value": OnDevice()}, "on cuda:1, and cannot be read when it is ready: it has 7 elements; log value.item()"),
        ({"value": 1.0, "step": 1.5}, "step must be an int"),
        ({"value": 1.0, "step": 2**63}, "does not fit into 64 bits"),
        ({"value": 1.0, "rank": [1]}, "tag rank must be a str, int, float or bool"),
        ({"value": 1.0, "name": 7}, "the name of a metric is 7"),
        ({"value": 1.0, "name": ""}, "the name of a metric is empty"),
    ],
)
def test_what_is_refused(records: Records, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        log_metric(arguments.pop("name", "loss"), arguments.pop("value"), **arguments)
    assert words in str(caught.value)
    assert not records.metrics


def test_spans_know_the_span_around_them_and_their_failure(records: Records) -> None:
    @traced(name="inner")
    async def fail() -> None:
        raise ValueError

    @traced
    def work() -> None:
        with pytest.raises(ValueError):
            asyncio.run(fail())

    with span("outer", step=1):
        work()
        names = {records.look(one.name)[1]: one for one in records.ring(layout.SPANS)}
        assert names["outer"].dur == OPEN
    outer, middle, inner = records.ring(layout.SPANS)
    assert [records.look(one.name) for one in (outer, middle, inner)] == [
        ("span", "outer"),
        ("span", "work"),
        ("span", "inner"),
    ]
    assert records.look(outer.peer) == ("tags", '{"step":1}')
    assert [one.num_bytes for one in (outer, middle, inner)] == [0, outer.msg, middle.msg]
    assert [one.flags for one in (outer, middle, inner)] == [0, 0, FAILED]
    assert outer.dur >= middle.dur >= inner.dur >= 0
    with pytest.raises(TypeError, match="tag x must be"):
        span("s", x=cast(Any, object()))


def test_instruments_keep_their_sums(records: Records) -> None:
    meter = get_meter()
    counter = meter.create_counter("samples", "1", "how many")
    for rank in (0, 1, 0):
        counter.add(2, {"rank": rank, "of": (1, 2)})
    meter.create_histogram("time").record(0.5)
    meter.create_gauge("used").set(3)
    assert records.metrics == [
        ("samples", 2.0, None, {"rank": 0, "of": "(1, 2)"}),
        ("samples", 2.0, None, {"rank": 1, "of": "(1, 2)"}),
        ("samples", 4.0, None, {"rank": 0, "of": "(1, 2)"}),
        ("time", 0.5, None, {}),
        ("used", 3.0, None, {}),
    ]
    with pytest.raises(AttributeError, match="opentelemetry"):
        meter.create_observable_counter("more")
