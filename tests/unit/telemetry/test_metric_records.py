"""Both pens: metrics are recorded with any step and value, by numbers or by names and tags that have one."""

from __future__ import annotations

import time
from typing import Any

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.reading import read_ring
from tests.unit.telemetry.test_recorder import Make, make

__all__ = ["make"]

pytestmark = pytest.mark.pen


def test_metrics_whose_names_and_tags_are_known_are_recorded_at_once(make: Make) -> None:
    recorder, memory = make()
    names, known = recorder.names, recorder.known_metric
    few: dict[str, Any] = {"split": "train"}
    many: dict[str, Any] = {"split": "train", "lr": 0.5, "last": True}
    assert not known(1, "loss", {}, None, 1.0)  # it has no number yet
    loss, ones, labels = names.metric("loss"), names.tags(few), names.tags(many)
    assert known(1, "loss", {}, None, 1.0) and known(2, "loss", few, 7, 2)
    assert known(3, "loss", many, -(2**63) + 1, 1e308) and known(3, "loss", many, 2**63 - 1, True)
    unknown: list[tuple[int, Any, Any, Any, Any]] = [
        (1, "other", {}, None, 1.0),
        (1, b"loss", {}, None, 1.0),
        (1, "loss", {"split": "test"}, None, 1.0),
        (1, "loss", {**many, "last": 1}, None, 1.0),  # 1 == True
        (1, "loss", {"split": []}, None, 1.0),
        (1, "loss", {}, True, 1.0),
        (1, "loss", {}, 2**63, 1.0),
        (1, "loss", {}, layout.NO_STEP, 1.0),
        (1, "loss", {}, None, 10**400),
    ]
    assert not any(known(*one) for one in unknown)
    found = [(one.actor, one.name, one.peer, one.dur, one.number) for one in read_ring(memory, layout.METRICS)]
    assert found == [
        (1, loss, 0, layout.NO_STEP, 1.0),
        (2, loss, ones, 7, 2.0),
        (3, loss, labels, -(2**63) + 1, 1e308),
        (3, loss, labels, 2**63 - 1, 1.0),
    ]


def test_metrics_are_recorded_with_any_step_and_value(make: Make) -> None:
    recorder, memory = make()
    given = [
        (1, 2, 3, step, value) for step, value in ((0, 2.5), (2**63 - 1, -1.0), (-1, 0.0), (layout.NO_STEP, 1e308))
    ]
    before_ns = time.monotonic_ns()
    for one in given:
        recorder.metric(*one)
    found = read_ring(memory, layout.METRICS)
    assert [(one.actor, one.name, one.peer, one.dur, one.number) for one in found] == given
    assert [(one.kind, one.flags, one.msg, one.num_bytes, one.seq) for one in found] == [
        (RecordKind.METRIC, 0, 0, 0, seq) for seq in range(1, len(given) + 1)
    ]
    times = [one.t for one in found]
    assert [before_ns, *times] == sorted([before_ns, *times])
    for step in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            recorder.metric(1, 2, 3, step, 1.0)
    recorder.metric(1, 2, 3, 7, 1)  # not every number is a float
    last = read_ring(memory, layout.METRICS)[-1]
    assert (last.dur, last.number) == (7, 1.0)
