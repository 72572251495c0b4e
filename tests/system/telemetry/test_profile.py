"""Profiles of procs: what they compute, one rank against the others, and that none stays stopped."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import Actor, HostMesh, ProcMesh, current_rank, endpoint
from monarch_hpc.agent.procs import stack_dumps
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.profiles import PROFILES
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.skipif(not stack_dumps._find_py_spy(), reason="needs py-spy: pip install 'monarch-hpc[telemetry]'"),
    pytest.mark.slow,
]


class Worker(Actor):
    """Computes until it is told to stop; one rank in another way."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def work(self, odd_rank: int, until: str) -> None:
        while not Path(until).exists():
            if current_rank().rank == odd_rank:
                self.take_the_odd_way()
            else:
                self.take_the_usual_way()

    def take_the_usual_way(self) -> float:
        return sum(math.sqrt(number) for number in range(20_000))

    def take_the_odd_way(self) -> float:
        return sum(math.sqrt(number) for number in range(20_000))


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load().config, 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield procs


@pytest.fixture
def pids(procs: ProcMesh, tmp_path: Path) -> Iterator[list[int]]:
    workers = procs.spawn("worker", Worker)
    found = [pid for _, pid in workers.pid.call().get(_PATIENCE_S).items()]
    working = workers.work.call(3, str(tmp_path / "stop"))
    yield found
    (tmp_path / "stop").touch()
    working.get(_PATIENCE_S)


def is_stopped(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.state in "Tt"


def test_a_profile_over_ranks_and_one_against_the_others(
    pids: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", os.environ[DIRECTORY_VARIABLE], "--seconds", "2"]
    file = tmp_path / "all.html"
    assert main([*command, "-o", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ranks"], document["missing"], document["problems"]) == ([0, 1, 2, 3], [], [])
    folded = Path(document["folded"]).read_text().splitlines()
    for rank, way in enumerate(["usual", "usual", "usual", "odd"]):
        ours = [line for line in folded if line.startswith(f"r{rank:02d};") and f"take_the_{way}_way" in line]
        assert ours and all("test_profile.py:" in line and line.rpartition(" ")[2].isdecimal() for line in ours)
    page = file.read_text()
    assert "profile of 4 ranks" in page and "take_the_usual_way" in page and "<script" not in page
    assert main([*command, "--rank", "2-3", "--against", "3", "-o", str(file)]) == 0
    page = file.read_text()
    assert "rank 3 against the others" in page and "take_the_odd_way" in page and "take_the_usual_way" not in page
    assert not any(map(is_stopped, pids))
    assert main([*command, "--rank", "2", "--against", "3", "-o", str(file)]) == 64
    assert main([*command, "--rank", "77", "-o", str(file)]) == 64
    assert "'--rank': no proc has rank 77; there are 0-3" in capsys.readouterr().err
    assert file.read_text() == page


def test_a_proc_that_waits_is_seen_with_idle_and_one_that_is_stopped_stays_so(
    hosts: HostMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        settle(procs)
        pid = procs.spawn("idler", Worker).pid.call_one().get(_PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until("it is stopped", lambda: is_stopped(pid), _PATIENCE_S)
            answer = query_rows(
                Path(os.environ[DIRECTORY_VARIABLE]), PROFILES, 25.0, {"pid": pid, "seconds": 1, "idle": True}
            )
            assert answer is not None and answer.rows and {row.problem for row in answer.rows} == {""}
            assert all(row.samples > 0 and row.stack for row in answer.rows) and is_stopped(pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), PROFILES, 25.0, {"pid": pid, "seconds": 99})
        assert answer is not None and [row.problem for row in answer.rows] == ["a profile takes 1 to 5 s"]
