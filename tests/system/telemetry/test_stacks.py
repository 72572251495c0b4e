"""Stacks of procs that wait for a lock, are stopped, or hold the interpreter's lock in C; none stays stopped by it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, ProcMesh, current_rank, endpoint, telemetry
from monarch_hpc.agent.procs import stack_dumps
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.stacks import STACKS, ThreadStack
from tests.system.support.controlling import controlled, keep_channels, settle

_PATIENCE_S = 60.0
_LONG_S = 600.0

pytestmark = pytest.mark.skipif(
    not stack_dumps._find_py_spy(), reason="needs py-spy: pip install 'monarch-hpc[telemetry]'"
)


class Worker(Actor):
    """Hangs in several ways."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait_for_a_lock(self, odd_rank: int) -> None:
        lock = threading.Lock()
        lock.acquire()
        if current_rank().rank == odd_rank:
            self.take_the_odd_way(lock)
        lock.acquire()

    def take_the_odd_way(self, lock: threading.Lock) -> None:
        lock.acquire()

    @endpoint
    def wait_elsewhere(self, odd_rank: int) -> None:
        event = threading.Event()
        if current_rank().rank == odd_rank:
            self.miss_the_event(event)
        event.wait()

    def miss_the_event(self, event: threading.Event) -> None:
        event.wait()

    @endpoint
    def hold_the_lock(self) -> None:
        ctypes.PyDLL(None).usleep(int(_LONG_S * 1e6))  # unlike CDLL, PyDLL keeps the interpreter's lock

    @endpoint
    def work(self) -> int:
        return sum(range(1000))


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    patient = replace(loaded.liveness, dead_s=_LONG_S)  # a stopped proc must not be killed during the test
    with controlled(replace(loaded, liveness=patient, procs=replace(loaded.procs, stop_s=0.5)), 2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        keep_channels()
        yield procs


@pytest.fixture
def pids(procs: ProcMesh) -> Iterator[dict[int, int]]:
    found = procs.spawn("asked", Worker).pid.call().get(_PATIENCE_S)
    yield {point.rank: pid for point, pid in found.items()}
    for pid in found.values():
        os.kill(pid, signal.SIGCONT)


def ask(**where: object) -> list[ThreadStack]:
    answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), STACKS, _PATIENCE_S, where)
    assert answer is not None and not (answer.missing or answer.left_out)
    return answer.rows


def standing(function: str, **where: object) -> dict[int, ThreadStack]:
    """The threads in whose stack a function is, by rank."""
    return {row.rank: row for row in ask(**where) if f"{function} (" in row.stack}


def is_stopped(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.state in "Tt"


def test_the_odd_one_of_many_that_wait_for_a_lock_is_first(
    procs: ProcMesh, pids: dict[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    workers: ActorMesh[Worker] = procs.spawn("locked", Worker)
    workers.wait_for_a_lock.call(2)

    def stand(rows: dict[int, ThreadStack]) -> bool:
        stacks = {rank: row.stack for rank, row in rows.items()}
        odd = stacks.pop(2, "")
        return "take_the_odd_way (" in odd and len(stacks) == 3 and len(set(stacks.values())) == 1

    wait_until("all stand", lambda: standing("Worker.wait_for_a_lock"), _PATIENCE_S, accept=stand)
    command = ["stacks", os.environ[DIRECTORY_VARIABLE], "--deadline", "60s"]
    assert main(command) == 0
    first, second, *_ = capsys.readouterr().out.split("\n\n")
    assert re.match(rf"1 of 4: r02 on local1, pid {pids[2]}; thread ", first)
    assert re.match(
        r"    Worker\.take_the_odd_way \(test_stacks\.py:\d+\)\n    Worker\.wait_for_a_lock", first.split("\n", 1)[1]
    )
    assert second.startswith("3 of 4: r00-r01,r03; thread ")
    assert main([*command, "--rank", "0-1", "--host", "local0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["num_procs"], document["missing"], document["problems"]) == (2, [], {})
    (group,) = [one for one in document["groups"] if any("wait_for_a_lock" in frame for frame in one["frames"])]
    assert [(one["rank"], one["host"]) for one in group["threads"]] == [(0, "local0"), (1, "local0")]
    assert main([*command, "--rank", "0-1", "--all"]) == 0
    assert "engine" in capsys.readouterr().out
    assert main([*command, "--rank", "three"]) == 64
    for choice, sentence in (
        (("--rank", "7,99"), "'--rank': no proc has rank 7,99; there are 0-3"),
        (("--host", "local1", "--rank", "0"), "'--rank': no proc on host local1 has rank 0; there are 2-3"),
        (("--host", "nosuch"), "'--host': no proc is on host nosuch; there are: local0, local1"),
        (("--run", "nosuch"), "'--run': there is no run nosuch; there are: feedbeef"),
    ):
        refused = partial(main, [*command, *choice])
        wait_until("all answers", refused, _PATIENCE_S, accept=lambda code: code == 64)
        assert sentence in capsys.readouterr().err


def test_the_question_for_the_odd_one(procs: ProcMesh) -> None:
    pytest.importorskip("datafusion")
    procs.spawn("again", Worker).wait_elsewhere.call(3)
    question = telemetry.question("odd-stack")

    def odd() -> list[tuple[object, ...]]:
        answer = telemetry.query(question, timeout_s=_PATIENCE_S)
        assert answer.columns[:4] == ["procs", "a_rank", "a_host", "function"]
        return [row[:3] for row in answer.rows if "miss_the_event" in str(row[5])]

    assert wait_until("it stands", odd, _PATIENCE_S) == [(1, 3, "local1")]


def test_a_proc_that_is_stopped_has_a_stack_and_stays_stopped(procs: ProcMesh, pids: dict[int, int]) -> None:
    workers: ActorMesh[Worker] = procs.slice(hosts=0, gpus=1).spawn("stopped", Worker)
    workers.wait_for_a_lock.call(-1)
    wait_until("it waits", lambda: standing("Worker.wait_for_a_lock", rank=1), _PATIENCE_S)
    os.kill(pids[1], signal.SIGSTOP)
    wait_until("it is stopped", lambda: is_stopped(pids[1]), _PATIENCE_S)
    for where in ({"rank": [1]}, {"rank": [1], "native": True}):
        (row,) = [row for row in ask(**where) if "wait_for_a_lock" in row.stack][-1:]
        assert (row.state, row.problem) == ("stopped", "")
        assert is_stopped(pids[1])


def test_a_proc_that_holds_the_interpreters_lock_in_c(hosts: HostMesh) -> None:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        settle(procs)
        holder = procs.spawn("holder", Worker)
        pid = holder.pid.call_one().get(_PATIENCE_S)
        holder.hold_the_lock.call()
        (row,) = wait_until(
            "it holds the lock",
            lambda: [row for row in ask(pid=pid) if "Worker.hold_the_lock (" in row.stack and row.owns_gil],
            _PATIENCE_S,
        )
        assert row.program and row.function == "Worker.hold_the_lock"
        native = [row for row in ask(pid=pid, native=True) if "Worker.hold_the_lock (" in row.stack]
        assert [(row.native, "nanosleep" in row.stack) for row in native] == [(True, True)]
        assert not is_stopped(pid)


@pytest.mark.slow
def test_200_dumps_leave_no_proc_stopped(procs: ProcMesh, pids: dict[int, int]) -> None:
    workers: ActorMesh[Worker] = procs.slice(gpus=0).spawn("busy", Worker)

    def dump(number: int) -> int:
        rows = ask(rank=[0, 2], native=number % 2 == 1)
        assert {row.problem for row in rows} == {""}
        return len({row.pid for row in rows})

    with ThreadPoolExecutor(2) as pool:
        counted = pool.map(dump, range(100))  # of two procs each
        for _ in range(20):
            workers.work.call().get(_PATIENCE_S)
        assert sum(counted) == 200
    assert not any(map(is_stopped, pids.values()))
    workers.work.call().get(_PATIENCE_S)
    assert not [name for name in map(name_of, Path("/proc/self/task").iterdir()) if "py-spy" in name]


def name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it has ended
        return ""
