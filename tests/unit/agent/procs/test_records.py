"""Records of procs: dead ones are kept up to a number, requested ends are not, and each memory is closed once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.agent.procs.proc import Proc, ProcState
from monarch_hpc.agent.procs.records import HostRecords
from monarch_hpc.telemetry.memory import make_memory


def make_proc(rank: int, mesh: int = 1) -> Proc:
    start = SimpleNamespace(run="run", mesh=mesh, rank=rank, host_name="n0")
    return cast(
        Proc,
        SimpleNamespace(
            start=start,
            record_fd=make_memory(f"proc {rank}"),
            pid=0,
            state=ProcState.STARTING,
            stopping=False,
            stop_requested=False,
        ),
    )


def is_open(proc: Proc) -> bool:
    return proc.record_fd >= 0


@pytest.fixture
def records() -> Iterator[HostRecords]:
    made = HostRecords(keep_dead=2)
    yield made
    made.close()


@pytest.fixture
def procs() -> Iterator[list[Proc]]:
    made = [make_proc(rank) for rank in range(4)]
    yield made
    for proc in made:
        if is_open(proc):
            os.close(proc.record_fd)


def test_live_procs_are_reported_by_mesh_and_rank_with_their_state(records: HostRecords, procs: list[Proc]) -> None:
    procs[1].state = ProcState.READY
    procs[2].stopping = True
    reported = list(records.calls(reversed(procs[:3])))
    assert [(told.rank, told.state, told.host) for told in reported] == [
        (0, "starting", "n0"),
        (1, "ready", "n0"),
        (2, "stopping", "n0"),
    ]
    procs[0].pid = os.getpid()
    rows = list(records.procs(reversed(procs[:3])))
    assert [(row.rank, row.state, row.pid) for row in rows] == [
        (0, "starting", os.getpid()),
        (1, "ready", procs[1].pid),
        (2, "stopping", procs[2].pid),
    ]
    assert rows[0].rss_bytes > 1 << 20 and all(row.rss_bytes == 0 for row in rows[1:] if not row.pid)


def test_the_latest_dead_are_kept_with_their_cause(records: HostRecords, procs: list[Proc]) -> None:
    for proc in procs:
        records.starts(proc)
        records.ready(proc, 1000 + proc.start.rank)
        records.ended(proc, f"signal {proc.start.rank}")
    assert [is_open(proc) for proc in procs] == [False, False, True, True]
    assert [(told.rank, told.state, told.cause) for told in records.calls([])] == [
        (2, "ended", "signal 2"),
        (3, "ended", "signal 3"),
    ]
    assert [(row.rank, row.state, row.rss_bytes) for row in records.procs([])] == [(2, "ended", 0), (3, "ended", 0)]
    records.close()
    assert not any(map(is_open, procs)) and list(records.calls([])) == []


def test_a_requested_end_leaves_no_record(records: HostRecords, procs: list[Proc]) -> None:
    procs[0].stop_requested = True
    records.ended(procs[0], "it was stopped")
    assert not is_open(procs[0]) and list(records.calls([])) == []
    records.ended(procs[0], "once more")  # its memory is closed already
    assert list(records.calls([])) == []


def test_nothing_is_kept_if_none_may_be(procs: list[Proc]) -> None:
    records = HostRecords(keep_dead=0)
    records.ended(procs[0], "signal 9")
    assert not is_open(procs[0]) and list(records.calls([])) == []
