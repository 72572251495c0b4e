"""Profiles of torch in a trace: their times, processes and arrows."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from monarch_hpc.telemetry.views.torch_trace import TorchProfile, read_profile, torch_events

DOCUMENT = {
    "baseTimeNanoseconds": 1_000_000_000_000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 71, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "add", "pid": 71, "tid": 71, "ts": 500.0, "dur": 2},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 71, "tid": 71, "ts": 501.5},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 7, "ts": 510.0, "bp": "e"},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler", "pid": "Spans", "tid": "x", "ts": 499, "dur": 50},
    ],
}


def test_times_are_moved_to_the_clock_of_the_trace() -> None:
    profile = read_profile("a.json", DOCUMENT)
    assert profile is not None
    assert profile.pid == 71 and profile.base_s == pytest.approx(1000.0)
    assert profile.begin_s == pytest.approx(1000.000499)
    events = [*torch_events([(profile, 0.25, "r03 n1"), (profile, 0.0, "r04 n2")], 999.0, 5)]
    first, second = events[:7], events[7:]
    assert first[0]["args"] == {"name": "torch: r03 n1 python"}
    assert (first[1]["pid"], first[1]["ts"], first[1]["dur"]) == (5, pytest.approx(750_500.0), 2)
    assert [event["pid"] for event in first] == [5, 5, 5, 6, 7, 6, 7]
    assert {event["pid"] for event in second} == {8, 9, 10}
    assert second[1]["ts"] == pytest.approx(1_000_500.0)
    assert first[2]["id"] == first[3]["id"] != second[2]["id"]
    assert [event["args"] for event in first[5:]] == [{"name": "torch: r03 n1"}] * 2
    json.dumps(events)


@pytest.mark.parametrize("document", [None, [], {}, {"traceEvents": 3}, {"traceEvents": [{"ph": "M"}, 7]}])
def test_what_is_not_a_profile_is_left_out(document: object) -> None:
    assert read_profile("a.json", document) is None


@pytest.mark.slow  # imports torch
def test_a_real_profile_has_the_time_of_day(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        before_s = time.time()
        with torch.profiler.record_function("here"):
            torch.ones(8).sum()
        after_s = time.time()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    profile = read_profile(path.name, json.loads(path.read_text()))
    assert isinstance(profile, TorchProfile) and profile.pid == os.getpid()
    events = torch_events([(profile, 0.0, "r00")], 0.0, 1)
    (event,) = (one for one in events if one["name"] == "here" and one["ph"] == "X")
    assert before_s - 0.001 <= float(str(event["ts"])) * 1e-6 <= after_s + 0.001
