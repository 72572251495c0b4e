"""The questions that ship as files, each on a fault that is planted on two hosts with four procs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, HostMesh, current_rank, endpoint, telemetry
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.errors import QueryError
from monarch_hpc.rdma import RDMABuffer
from monarch_hpc.telemetry.shipped import shipped_questions
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, keep_channels, settle

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")

_PATIENCE_S = 60.0
_LONG_S = 600.0
HOSTILE = "loss\x1b[31m<script>alert(1)</script>"


class Trainer(Actor):
    """Has a slow rank, a slow host, a rank that is late, and one whose loss diverges."""

    @endpoint
    def step(self, number: int) -> None:
        rank = current_rank().rank
        time.sleep(0.2 if rank == 3 else 0.005)
        monarch_hpc.log_metric("loss", 9.5 if (rank, number) == (2, 1) else 1 / (number + 1), step=number)
        with monarch_hpc.span("all_reduce", number=number):
            time.sleep(0.005 if rank == 1 else 0.1)

    @endpoint
    def read(self, slow_host: int) -> None:
        time.sleep(0.15 if current_rank()["hosts"] == slow_host else 0.002)

    @endpoint
    def lend(self) -> RDMABuffer:
        self.data = bytearray(1 << 20)
        return RDMABuffer(memoryview(self.data))

    @endpoint
    def fetch(self, buffer: RDMABuffer) -> None:
        buffer.read_into(memoryview(bytearray(1 << 20))).get(_PATIENCE_S)

    @endpoint
    def fail(self) -> None:
        raise ValueError("secret")

    @endpoint
    def log(self, name: str) -> None:
        for number in range(2):
            monarch_hpc.log_metric(name, number, step=number)


class Friend(Actor):
    """Waits for its friend, that waits for it."""

    @endpoint
    def ask(self, other: ActorMesh[Friend], me: ActorMesh[Friend], folder: Path | None) -> None:
        if folder is not None:
            (folder / str(os.getpid())).touch()
            wait_until("both to be busy", lambda: len(list(folder.iterdir())) == 2, _PATIENCE_S)
            other.ask.call_one(me, other, None).get()

    @endpoint
    def sleep(self) -> None:
        time.sleep(_LONG_S)

    @endpoint
    def die(self) -> None:
        monarch_hpc.span("the last step").__enter__()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def trainers(hosts: HostMesh) -> Iterator[ActorMesh[Trainer]]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        keep_channels()
        trainers: ActorMesh[Trainer] = procs.spawn("trainer", Trainer)
        for number in range(3):
            trainers.step.call(number).get(_PATIENCE_S)
            trainers.read.call(1).get(_PATIENCE_S)
        yield trainers


def ask(question: str, /, **where: object) -> list[dict[str, Any]]:
    """The rows of the answer in which columns have the given values."""
    answer = telemetry.query(telemetry.question(question), timeout_s=_PATIENCE_S)
    assert answer.missing_hosts == []
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def test_the_slow_rank_the_slow_host_and_the_slow_endpoint(trainers: ActorMesh[Trainer]) -> None:
    def step() -> dict[str, Any]:
        trainers.step.call(0).get(_PATIENCE_S)
        return ask("slow-rank", endpoint="step")[0]

    def read() -> list[dict[str, Any]]:
        trainers.read.call(1).get(_PATIENCE_S)
        return ask("straggler-host", endpoint="read")

    # On a busy machine another one is slow by chance, but not for long.
    slow = wait_until("the slow rank", step, _PATIENCE_S, accept=lambda row: row["rank"] == 3)
    assert (slow["actor"], slow["host"]) == ("trainer", "local1")
    assert slow["calls"] >= 4 and slow["times_median"] > 1
    hosts = wait_until("the slow host", read, _PATIENCE_S, accept=lambda rows: rows[0]["host"] == "local1")
    assert len(hosts) == 2 and hosts[0]["times_median"] > 1 > hosts[1]["times_median"]
    (row,) = ask("endpoint-p99", endpoint="step")
    assert row["calls"] >= 16 and row["failed"] == 0
    assert row["p50_ms"] >= 97 and row["p99_ms"] >= 290 and row["longest_ms"] >= 300  # the first two are within 3 %


def test_the_loss_that_diverges_and_the_rank_that_is_late(trainers: ActorMesh[Trainer]) -> None:
    first, second, *_ = ask("loss-spread", name="loss")
    assert (first["step"], first["values"], first["most"], first["spread"]) == (1, 4, 9.5, 9.0)
    assert second["spread"] == 0  # the other steps have the same loss on all ranks
    late, other, *_ = ask("late-to-collective")
    assert (late["name"], late["rank"]) == ("all_reduce", 1)
    assert late["times"] >= 3 and late["others_wait_ms"] > other["others_wait_ms"]


def test_the_speed_of_links_and_the_first_failure(
    trainers: ActorMesh[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    buffer = trainers.slice(hosts=0, gpus=0).lend.call_one().get(_PATIENCE_S)
    trainers.slice(hosts=1, gpus=0).fetch.call_one(buffer).get(_PATIENCE_S)
    (link,) = ask("link-speed", host="local1")
    assert (link["peer_host"], link["transfers"], link["failed"], link["bytes"]) == ("local0", 1, 0, 1 << 20)
    assert link["gb_per_s"] > 0
    with pytest.raises(monarch_hpc.ActorError):
        trainers.slice(hosts=1, gpus=1).fail.call_one().get(_PATIENCE_S)
    first, *_ = ask("first-failure")
    assert (first["kind"], first["rank"], first["error"]) == ("call", 3, "ValueError")
    assert first["what"] == "fail of trainer" and first["detail"].rpartition(":")[0] == __file__


def test_a_deadlock_a_deep_mailbox_and_a_death(
    hosts: HostMesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    with hosts.spawn_procs() as procs:
        settle(procs)
        left = procs.slice(hosts=0).spawn("left", Friend)
        right = procs.slice(hosts=1).spawn("right", Friend)
        left.ask.call_one(right, left, tmp_path)
        right.ask.call_one(left, right, tmp_path)
        ring = wait_until("the ring", lambda: ask("deadlock"), _PATIENCE_S, accept=lambda rows: len(rows) >= 1)[0]
        assert ring["ring"] in ("left[0] -> right[0] -> left[0]", "right[0] -> left[0] -> right[0]")
        assert ring["actors"] == 2

        busy = procs.slice(hosts=1).spawn("busy", Friend)
        for _ in range(12):
            busy.sleep.call_one()
        (deep,) = wait_until(
            "a mailbox", lambda: ask("deep-mailbox", actor="busy"), _PATIENCE_S, accept=lambda rows: is_deep(rows)
        )
        assert (deep["host"], deep["rank"], deep["state"]) == ("local1", 1, "ready")
        assert (deep["callers"], deep["endpoint"]) == (1, "sleep")

        procs.slice(hosts=0).spawn("mortal", Friend).die.broadcast()
        end = wait_until(
            "its end", lambda: ask("before-death", what="the last step"), _PATIENCE_S, accept=lambda rows: bool(rows)
        )[0]
        assert (end["host"], end["rank"], end["kind"], end["status"]) == ("local0", 0, "span", "open")
        assert "SIGKILL" in end["cause"]
        assert ask("before-death", what="die of mortal", status="running")
        assert any("SIGKILL" in row["detail"] for row in ask("first-failure", kind="death"))
        assert ask("deadlock") == []  # the dead wait for nobody


def is_deep(rows: list[dict[str, Any]]) -> bool:
    return len(rows) == 1 and rows[0]["calls"] == 11


def test_the_hosts_the_channels_that_fell_back_and_what_has_changed(trainers: ActorMesh[Trainer]) -> None:
    answer = telemetry.query(
        "SELECT h.host, h.head, h.procs, r.procs AS of_run, c.fabric, c.reason, c.channels "
        "FROM hosts h, runs r LEFT JOIN channels c ON c.run = r.run WHERE c.host = h.host ORDER BY h.rank",
        timeout_s=_PATIENCE_S,
    )
    assert answer.missing_hosts == []
    assert [row[:4] for row in answer.rows] == [("local0", True, 2, 4), ("local1", False, 2, 4)]
    fell_back = [row for row in answer.rows if not str(row[4]).startswith("ucx")]
    found = ask("fallback-channels")
    assert {(row["host"], row["fabric"], row["reason"]) for row in found} == {
        (row[0], row[4], row[5]) for row in fell_back
    }
    assert ask("slurm-marks") == []
    assert telemetry.query("SELECT * FROM state_changes", timeout_s=_PATIENCE_S).columns[0] == "t"


def test_the_command_asks_by_name(
    trainers: ActorMesh[Trainer], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainers.log.call(HOSTILE).get(_PATIENCE_S)
    command = ["query", "--allocation", os.environ[DIRECTORY_VARIABLE], "--deadline", "60s"]
    assert main([*command, "--ask", "loss-spread"]) == 0
    shown = capsys.readouterr()
    assert r"loss\x1b[31m<script>" in shown.out and "\x1b" not in shown.out + shown.err
    assert main([*command, "--ask", "loss-spread", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert HOSTILE in {row[1] for row in document["rows"]}
    file = tmp_path / "loss.parquet"
    assert main([*command, "--ask", "loss-spread", "--format", "parquet", "-o", str(file)]) == 0
    assert f"{file}: {len(document['rows'])} rows" in capsys.readouterr().out and file.read_bytes()[:4] == b"PAR1"
    assert main([*command, "--ask", "loss-spread", "--explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == ["metrics"]
    assert main([*command, "SELECT 1", "--format", "parquet"]) == 64
    assert main([*command, "SELECT 1", "--ask", "loss-spread"]) == 64
    assert main([*command]) == 64
    assert main([*command, "--ask", "no such"]) == 64
    assert "'slow-rank'" in capsys.readouterr().err
    assert main(["query", "--list", "--quiet"]) == 0
    assert capsys.readouterr().out.split()[: len(shipped_questions())] == [*shipped_questions()]
    with pytest.raises(QueryError, match="there are: before-death, deadlock"):
        telemetry.question("no such")
