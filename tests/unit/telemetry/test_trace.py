"""Traces: bars that nest or have lanes of their own, arrows from senders to calls, and hostile names as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from monarch_hpc.telemetry.views.trace import TraceRows, start_of, trace_events
from monarch_hpc.wire.tables.history import HandledCall, MetricRow, SendRow, SpanRow, TransferRow

T = 1.0  # Unix time in a double is known to a quarter of a microsecond only
HOSTILE = "x\x1b[31m</script><script>\ud800"


def handled(rank: int, t: float, ran_us: float, call: int, *, tree: bool = False, status: str = "ok") -> HandledCall:
    return HandledCall(
        run="run",
        mesh=1,
        rank=rank,
        host=f"n{rank}",
        pid=70 + rank,
        t=T + t,
        error_us=30.0,
        record=call,
        actor="trainer",
        actor_rank=rank,
        incarnation=f"{rank:x}",
        actor_id="1",
        endpoint="step",
        caller="a",
        caller_host="login",
        call=call,
        through_tree=tree,
        bytes=10,
        answer_bytes=20,
        queued_us=5,
        ran_us=ran_us,
        status=status,
        error="",
        line="",
    )


def send(t: float, call: int, *, tree: bool = False) -> SendRow:
    return SendRow(
        run="run",
        mesh=-1,
        rank=0,
        host="login",
        pid=9,
        t=T + t,
        error_us=-1.0,
        record=call,
        actor="",
        actor_rank=-1,
        incarnation="a",
        actor_id="0",
        endpoint="step",
        target="",
        target_host="n1",
        target_actor="trainer",
        target_id="1",
        call=call,
        through_tree=tree,
        num_receivers=1,
        bytes=10,
        took_us=50.0,
        awaited=False,
        status="ok",
    )


def span(t: float, took_us: float, name: str = "load") -> SpanRow:
    return SpanRow("run", 1, 0, "n0", 70, T + t, 30.0, 1, "trainer", 0, name, 1, 0, 5, took_us, "ok", "")


def events(rows: TraceRows) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(json.dumps([*trace_events(rows, start_of(rows))]))
    return found


def test_bars_arrows_and_names() -> None:
    metric = MetricRow("run", 1, 0, "n0", 70, T + 0.5, 30.0, 1, "trainer", 0, HOSTILE, 0.25, 3, "")
    broken = MetricRow("run", 1, 0, "n0", 70, T + 0.5, 30.0, 1, "trainer", 0, "nan", float("nan"), 3, "")
    move = TransferRow("run", 1, 0, "n0", 70, T + 0.2, 30.0, 1, "b", "n1", "cma", False, 100, 5.0, "ok")
    found = events(
        TraceRows(
            [handled(0, 0.001, 500.0, 7), handled(1, 0.002, 900.0, 7), handled(1, -0.1, 10.0, 8)],
            [send(0.0, 7), send(0.0, 7, tree=True), send(0.1, 0)],
            [span(0.0011, 100.0), span(0.9, 1.0, HOSTILE)],
            [move],
            [metric, broken],
        )
    )
    names = {(one["pid"], one["name"], one["args"]["name"]) for one in found if one["ph"] == "M"}
    assert {name for _, kind, name in names if kind == "process_name"} == {
        "program login (clock not compared)",
        "r00 n0 (±30 µs)",
        "r01 n1 (±30 µs)",
    }
    assert {name for _, kind, name in names if kind == "thread_name"} == {
        "program",
        "trainer[0]",
        "trainer[1]",
        "transfers of memory",
    } | {name for _, _, name in names if name == "program (2)"}
    bars = [one for one in found if one["ph"] == "X"]
    assert min(one["ts"] for one in bars) == 0 and len(bars) == 9
    (counter,) = [one for one in found if one["ph"] == "C"]
    assert (counter["name"], counter["args"], counter["ts"]) == (HOSTILE, {"trainer[0]": 0.25}, 600_000)
    starts = {one["id"]: one for one in found if one["ph"] == "s"}
    ends = {one["id"]: one for one in found if one["ph"] == "f"}
    assert len(starts) == len(ends) == 2  # call 8 was sent by nobody who is known
    assert {one["ts"] for one in starts.values()} == {100_000}
    assert {one["ts"] for one in ends.values()} == {101_000, 102_000}
    assert all(bar_around(bars, one) for one in (*starts.values(), *ends.values()))


def bar_around(bars: list[dict[str, Any]], event: Mapping[str, Any]) -> bool:
    """Whether the end of an arrow is on a bar, without which it is not shown."""
    same = [one for one in bars if (one["pid"], one["tid"]) == (event["pid"], event["tid"])]
    return any(one["ts"] <= event["ts"] <= one["ts"] + one["dur"] for one in same)


def test_a_call_that_seems_to_begin_before_it_was_sent() -> None:
    found = events(TraceRows([handled(0, 0.0, 50.0, 1)], [send(0.00002, 1)]))
    (start,), (end,) = ([one for one in found if one["ph"] == kind] for kind in "sf")
    assert start["ts"] == end["ts"] == 20


def test_no_two_bars_of_a_lane_overlap_without_one_in_the_other() -> None:
    noise = random.Random(5)
    calls = [handled(0, noise.randrange(1000) / 1e6, float(noise.randrange(1, 200)), 0) for _ in range(300)]
    lanes: dict[int, list[tuple[float, float]]] = {}
    for one in events(TraceRows(calls, [], [span(0.0001, 400.0), span(0.0002, 100.0)])):
        if one["ph"] == "X":
            lanes.setdefault(one["tid"], []).append((one["ts"], one["ts"] + one["dur"]))
    assert sum(map(len, lanes.values())) == 302 and len(lanes) > 1
    for bars in lanes.values():
        for begin, end in bars:
            for other_begin, other_end in bars:
                apart = end <= other_begin or other_end <= begin
                inside = begin <= other_begin and other_end <= end + 1e-6
                assert apart or inside or (other_begin <= begin and end <= other_end + 1e-6)


def test_no_rows_are_no_events() -> None:
    assert events(TraceRows()) == []
