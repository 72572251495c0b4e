"""A table of procs that is kept up to date while they work."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import Actor, ActorMesh, ProcMesh, current_rank, endpoint
from monarch_hpc.mesh.output.watch import rows_of
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.calls import ActorSeen, ProcCalls, RunningCall, Scene, SentCall, Wait
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Worker(Actor):
    @endpoint
    def work(self, folder: Path) -> int:
        wait_until("the file", (folder / "go").exists, _PATIENCE_S)
        return current_rank().rank


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def procs(shared_hosts: SharedHosts) -> Iterator[ProcMesh]:
    with shared_hosts.controlled(1) as hosts, hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield procs


def test_rows_say_what_procs_run_and_wait_for() -> None:
    scene = Scene(
        "",
        "aa",
        [ActorSeen("7", "trainer", 0, "ready", "", 1.0)],
        [RunningCall("7", f"step{number}", number, "cc", "n0", 2.0, 0.0) for number in range(5)],
        [Wait("7", [5], 1, "", 1.5), Wait("7", [], 0, "a barrier", 0.0)],
        [SentCall(5, "7", 1, "dd", "n2", "9", "store", "get", 1.5)],
        1,
        [],
    )
    seen = [ProcCalls("run", 1, 4, "n1", 71, "ready", "", scene)]
    runs = "trainer[0].step0 2.0 s, trainer[0].step1 2.0 s, trainer[0].step2 2.0 s, 2 more"
    assert rows_of(seen, {4: ["0"], 5: ["1"]}) == [
        ["0", "n1", "71", "ready", runs, "store.get 1.5 s, a barrier"],
        ["1", "", "", "gone", "", ""],
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["terminal", "file"])
def test_the_table_follows_the_procs(
    procs: ProcMesh, stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = stream()
    monkeypatch.setattr("sys.stderr", shown)
    workers: ActorMesh[Worker] = procs.spawn("worker", Worker)
    with procs.slice(gpus=1).watch(0.01) as watch:
        answer = workers.work.call(tmp_path)
        wait_until("a proc that works", lambda: "worker[1].work" in shown.getvalue(), _PATIENCE_S)
        assert "worker[0].work" not in shown.getvalue()
        (tmp_path / "go").touch()
        answer.get(_PATIENCE_S)
        at_rest = "ready\n"
        wait_until("a proc at rest", lambda: shown.getvalue().endswith(at_rest), _PATIENCE_S)
        watch.stop()
        before = shown.getvalue()
    assert shown.getvalue() == before
    assert ("\x1b[" in before) is (stream is Terminal)
    with pytest.raises(ValueError, match="interval_s"):
        procs.watch(-1)
