"""The command that writes a trace, of calls between actors of two hosts."""

from __future__ import annotations

import gzip
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, ProcMesh, endpoint
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        monarch_hpc.log_metric("loss\x1b[31m", 0.5, step=1)
        with monarch_hpc.span("inside"):
            pass
        return 1

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def ask(self, other: ActorMesh[Worker]) -> int:
        answer: int = other.work.call_one().get(_PATIENCE_S)
        return answer


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with controlled(load().config, 2) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        yield procs


def test_calls_of_calls_are_bars_and_arrows(
    procs: ProcMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    front = procs.slice(hosts=0).spawn("front", Worker)
    back = procs.slice(hosts=1).spawn("back", Worker)
    for _ in range(3):
        assert front.ask.call_one(back).get(_PATIENCE_S) == 1
    file, directory = tmp_path / "run.json.gz", os.environ[DIRECTORY_VARIABLE]
    assert main(["trace", directory, "-o", str(file), "--since", "10m", "--deadline", "60s"]) == 0
    shown = capsys.readouterr()
    assert "open it at https://ui.perfetto.dev" in shown.out and "\x1b" not in shown.out + shown.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    bars = [one for one in events if one["ph"] == "X"]
    works = [one for one in bars if (one["cat"], one["name"]) == ("call", "work")]
    assert {tracks[one["pid"], one["tid"]] for one in works} == {"back[0]"}
    assert {processes[one["pid"]].split()[1] for one in works} == {"local1"}
    assert len(works) == 3 and {one["name"] for one in bars if one["cat"] == "span"} == {"inside"}
    starts = {one["id"]: tracks[one["pid"], one["tid"]] for one in events if one["ph"] == "s"}
    ends = {one["id"]: tracks[one["pid"], one["tid"]] for one in events if one["ph"] == "f"}
    led = [(starts[number], ends[number]) for number in starts]
    assert led.count(("front[0]", "back[0]")) == 3 and led.count(("program", "front[0]")) == 3
    assert any(one["ph"] == "C" and one["name"] == "loss\x1b[31m" for one in events)

    plain = tmp_path / "run.json"
    assert main(["trace", directory, "-o", str(plain), "--deadline", "60s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["arrows"] >= 6 and document["missing"] == [] and document["bytes"] == plain.stat().st_size
    assert len(json.loads(plain.read_text())["traceEvents"]) >= len(events)
    folder = tmp_path / "profiles"
    folder.mkdir()
    pid = back.pid.call_one().get(_PATIENCE_S)
    profile = {
        "baseTimeNanoseconds": time.time_ns(),
        "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": pid, "tid": pid, "ts": 1.0, "dur": 2}],
    }
    (folder / "n1.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(profile).encode()))
    (folder / "other.json").write_text("[]")
    assert main(["trace", directory, "-o", str(plain), "--torch", str(folder), "--deadline", "60s", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["profiles"] == 1 and "are not profiles of torch: other.json" in told.err
    events = json.loads(plain.read_text())["traceEvents"]
    (added,) = (one for one in events if one["name"] == "aten::add")
    named = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert named[added["pid"]] == "torch: r01 local1"
    assert added["ts"] > max(one["ts"] for one in events if one["name"] == "work")
    written = plain.read_bytes()
    assert main(["trace", directory, "-o", str(plain), "--run", "nosuch"]) == 64
    assert "'--run': there is no run nosuch; there are: feedbeef" in capsys.readouterr().err
    assert plain.read_bytes() == written
    assert main(["trace", directory]) == 64
    assert main(["trace", directory, "-o", str(plain), "--since", "soon"]) == 64
