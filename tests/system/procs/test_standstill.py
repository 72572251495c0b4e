"""Procs stopped by a signal, held by a debugger, or holding the interpreter's lock: only the first are killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.agent.children.stop_watch import StoppedProcs
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.schema import Config
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, StopProcs
from tests.system.support.agent_client import Client, alive

_PTRACE_ATTACH = 16
_PTRACE_DETACH = 17


@pytest.fixture
def dead_s(request: pytest.FixtureRequest) -> float:
    """Seconds after which a stopped proc is killed; `_NEVER` for tests that look at one that is suspect."""
    return float(getattr(request, "param", 4.0))


_NEVER = pytest.mark.parametrize("dead_s", [600.0], indirect=True, ids=[""])


def suspects(directory: Path) -> object:
    status = query_status(directory, 60.0)
    return [run["suspect"] for run in status["runs"]] if status else None


def lives(client: Client, rank: int) -> list[str]:
    """Return the agents' reports on a proc."""
    return [m.life for m in list(client.messages) if isinstance(m, ProcLife) and m.proc.rank == rank]


@contextlib.contextmanager
def traced(pid: int) -> Iterator[None]:
    """Attach to a process like a debugger."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(_PTRACE_ATTACH, pid, None, None):
        pytest.skip(f"may not trace a process here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, 0)
    try:
        yield
    finally:
        libc.ptrace(_PTRACE_DETACH, pid, None, None)


def test_a_stopped_proc_is_suspect_and_then_killed_with_the_cause(directory: Path, dead_s: float) -> None:
    with Client(directory, "aaaaaaaa") as client:
        pids = client.pids(client.spawn([0, 1]), 2)
        os.kill(pids[1], signal.SIGSTOP)
        news = client.wait(ProcLife)
        assert (news.proc.rank, news.proc.host, news.life, news.dead_s) == (1, 1, "suspect", dead_s)
        assert news.stopped_s >= 0.4
        ended = client.wait(ProcEnded)
        assert (ended.proc.rank, ended.expected) == (1, False)
        assert re.fullmatch(r"stopped \(SIGSTOP\) for \d+ s", ended.cause)
        assert suspects(directory) == [[]]
        assert lives(client, 1) == ["suspect"]
        assert alive(pids[0]) and not alive(pids[1])


@_NEVER
def test_one_that_goes_on_in_time_has_lost_nothing(directory: Path) -> None:
    code = "import sys\nfor n in range(10**9):\n    print(n, flush=True)\n    import time; time.sleep(0.01)"
    with Client(directory, "aaaaaaaa") as client:
        mesh = client.spawn([0], 1, code)
        (pid,) = client.pids(mesh, 1)
        os.kill(pid, signal.SIGSTOP)
        client.wait(ProcLife)
        assert suspects(directory) == [[{"mesh": mesh, "rank": 0, "host": "local0"}]]
        os.kill(pid, signal.SIGCONT)
        client.wait(ProcLife, lambda news: news.life == "alive")
        before = len(client.lines(mesh, 0))
        wait_until("its further lines", lambda: len(client.lines(mesh, 0)) > before + 10)
        lines = client.lines(mesh, 0)
        assert lines == [str(number) for number in range(len(lines))]
        assert suspects(directory) == [[]]
        assert lives(client, 0) == ["suspect", "alive"]


def test_one_that_a_debugger_holds_is_left_alone(directory: Path) -> None:
    with Client(directory, "aaaaaaaa") as client:
        mesh = client.spawn([0], 2)
        held, stopped = client.pids(mesh, 2)
        with traced(held):
            os.kill(stopped, signal.SIGSTOP)
            assert client.wait(ProcEnded).proc.rank == 1  # enough time has passed
        assert lives(client, 0) == []
        assert alive(held)


def test_one_that_holds_the_interpreters_lock_is_well(directory: Path) -> None:
    code = "import ctypes; print('going', flush=True); ctypes.PyDLL(None).sleep(600)"
    with Client(directory, "aaaaaaaa") as client:
        mesh = client.spawn([0], 1, code)
        (busy,) = client.pids(mesh, 1)
        wait_until("its line", lambda: client.lines(mesh, 0))
        (stopped,) = client.spawn_ready([0])
        os.kill(stopped, signal.SIGSTOP)
        client.wait(ProcEnded)
        assert alive(busy)
        assert len([m for m in client.messages if isinstance(m, ProcLife)]) == 1


def test_a_stopped_proc_can_be_asked_to_end(directory: Path, config: Config) -> None:
    with Client(directory, "aaaaaaaa") as client:
        mesh = client.spawn([0])
        (pid,) = client.pids(mesh, 1)
        os.kill(pid, signal.SIGSTOP)
        client.send(StopProcs("aaaaaaaa", mesh, [0], config.procs.stop_s))
        ended = client.wait(ProcEnded)
        assert ended.expected
        assert lives(client, 0) == []


def test_one_that_its_own_parent_has_reaped_does_not_end_the_watch(engine: Engine) -> None:
    # A task of a step is not the agent's child: it may be gone before the step reports its end.
    commands = [[sys.executable, "-c", "import time; time.sleep(600)"]] * 2
    reaped, stopped = (subprocess.Popen(command) for command in commands)
    try:
        procs = StoppedProcs(engine, 0.01, Lease(0.05, 600.0))
        changes: list[tuple[int, Liveness]] = []
        for process in (reaped, stopped):
            note = partial(lambda pid, life, _stopped_s: changes.append((pid, life)), process.pid)
            engine.call_soon(partial(procs.watch, process.pid, note, lambda: None))
        reaped.kill()
        reaped.wait()
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_until("the report on the stopped one", lambda: list(changes))
        assert changes == [(stopped.pid, Liveness.SUSPECT)]
        over = threading.Event()
        for process in (reaped, stopped):
            engine.call_soon(partial(procs.forget, process.pid))
        engine.call_soon(over.set)
        assert over.wait(60)
    finally:
        stopped.kill()
        stopped.wait()


def test_one_that_runs_another_program_is_reported_once(engine: Engine) -> None:
    code = "import os, sys; print(flush=True); input(); os.execv(sys.executable, [sys.executable, '-c', 'input()'])"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline()  # it is within Python
        procs, looks, replaced = StoppedProcs(engine, 0.01, Lease(0.05, 600.0)), [0], [0]

        def count(numbers: list[int]) -> None:
            numbers[0] += 1

        def look() -> None:
            count(looks)
            engine.call_later(0.01, look)

        engine.call_soon(partial(procs.watch, process.pid, lambda _life, _stopped_s: None, partial(count, replaced)))
        engine.call_soon(look)
        wait_until("some looks at the first program", lambda: looks[0] > 10)
        assert replaced == [0]
        process.stdin.write(b"\n")
        process.stdin.flush()
        wait_until("the report", lambda: replaced[0])
        seen = looks[0]
        wait_until("some looks at the second one", lambda: looks[0] > seen + 10)
        assert replaced == [1]
        over = threading.Event()
        engine.call_soon(partial(procs.forget, process.pid))
        engine.call_soon(over.set)
        assert over.wait(60)
    finally:
        process.kill()
        process.communicate()
