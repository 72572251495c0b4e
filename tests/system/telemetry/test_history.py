"""Records of two hosts as rows, also those of a proc that was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorError, ActorMesh, ProcMesh, endpoint, telemetry
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.errors import QueryError
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.clocks import CLOCKS, HostClock
from monarch_hpc.wire.tables.history import HANDLED, METRICS, RECORDERS, SPANS
from monarch_hpc.wire.tables.schema import Table
from tests.system.support.controlling import controlled, keep_channels, settle

_PATIENCE_S = 60.0

R = TypeVar("R")


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> int:
        with monarch_hpc.span("step", number=number):
            monarch_hpc.log_metric("loss", 1 / (number + 1), step=number)
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("secret")

    @endpoint
    def die(self) -> None:
        monarch_hpc.span("last").__enter__()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with controlled(load().config, 2) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        keep_channels()
        yield procs


def rows(table: Table[R], **where: object) -> list[R]:
    answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), table, _PATIENCE_S, where)
    assert answer is not None and not (answer.missing or answer.left_out or answer.cut)
    return answer.rows


def test_records_of_all_hosts_and_of_the_dead_are_rows(procs: ProcMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    began_s = time.time()
    trainers: ActorMesh[Trainer] = procs.spawn("trainer", Trainer)
    for number in range(3):
        pids = trainers.step.call(number).get(_PATIENCE_S)
    first = trainers.slice(hosts=0)
    with pytest.raises(ActorError):
        first.fail.call_one().get(_PATIENCE_S)
    monarch_hpc.log_metric("steps", 3)
    first.die.broadcast()
    wait_until(
        "its end", lambda: {one.state for one in rows(RECORDERS)}, _PATIENCE_S, accept=lambda some: "ended" in some
    )

    losses = rows(METRICS, name="loss")
    assert sorted((one.rank, one.step, one.value) for one in losses) == [
        (rank, step, 1 / (step + 1)) for rank in (0, 1) for step in range(3)
    ]
    assert {(one.actor, one.actor_rank == one.rank, one.pid) for one in losses} == {
        ("trainer", True, pid) for pid in pids.values()
    }
    # One machine: all its clocks are the same, and records lie between two readings of it.
    for one in losses:
        assert began_s - one.error_us * 1e-6 <= one.t <= time.time() + one.error_us * 1e-6
    (steps,) = rows(METRICS, mesh=-1)
    assert (steps.name, steps.value, steps.step, steps.actor) == ("steps", 3.0, -1, "")
    assert rows(METRICS, t=[">=", time.time() + 1000]) == []

    (failed,) = rows(HANDLED, status="failed")
    assert (failed.endpoint, failed.error, failed.rank) == ("fail", "ValueError", 0)
    assert failed.line.rpartition(":")[0] == __file__
    (running,) = rows(HANDLED, endpoint="die")
    assert running.status == "running"  # when it died
    (last,) = rows(SPANS, name="last")
    assert (last.status, last.rank, last.pid) == ("open", 0, running.pid)
    assert sum(one.metrics for one in rows(RECORDERS)) == 7


def test_clocks_are_compared(procs: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    def compared(clocks: list[HostClock]) -> bool:
        return len(clocks) == 2 and all(clock.num_exchanges >= 16 for clock in clocks)

    clocks = wait_until("a round of exchanges", lambda: rows(CLOCKS), _PATIENCE_S, accept=compared)
    for clock in clocks:
        assert clock.error_us >= clock.round_trip_us / 2 > 0
        assert abs(clock.ahead_us) <= clock.error_us + 1000  # of a machine whose clock may be set while this runs

    def shown() -> str:
        """The table, if both hosts have answered in the two seconds for which the command waits."""
        assert main(["status", "--clocks", os.environ[DIRECTORY_VARIABLE]]) == 0
        told = capsys.readouterr()
        return "" if "no answer from" in told.err else told.out

    head, *lines = wait_until("all clocks", shown, _PATIENCE_S).splitlines()
    assert head.split() == ["HOST", "AHEAD", "ERROR", "ROUND", "TRIP", "COMPARED"]
    assert [line.split()[0] for line in lines] == ["local0", "local1"]
    assert all("±" in line and line.endswith(" ago") for line in lines)


def test_questions_in_sql(procs: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datafusion")
    trainers: ActorMesh[Trainer] = procs.slice(hosts=1).spawn("other", Trainer)
    trainers.step.call(7).get(_PATIENCE_S)
    sql = "SELECT name, value FROM metrics WHERE actor = 'other'"
    result = telemetry.query(sql, timeout_s=_PATIENCE_S)
    assert (result.columns, result.rows) == (["name", "value"], [("loss", 0.125)])
    assert result.missing_hosts == result.cut == []
    with pytest.raises(QueryError, match="did you mean value"):
        telemetry.query("SELECT valu FROM metrics")
    directory = os.environ[DIRECTORY_VARIABLE]
    command = ["query", sql, "--allocation", directory, "--deadline", "60s"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["columns"], document["rows"], document["missing"]) == (["name", "value"], [["loss", 0.125]], [])
    assert main(["query", "DROP TABLE metrics", "--allocation", directory]) == 65
    assert "only questions (SELECT) are answered" in capsys.readouterr().err
    assert main(["query", "--list"]) == 0
    assert "metrics" in capsys.readouterr().out
