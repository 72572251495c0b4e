"""Procs that only look dead: the interpreter's lock held, long transfers; and one that stays stopped."""

from __future__ import annotations

import ctypes
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, endpoint
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle
from tests.system.support.first_host import ENDING

_PATIENCE_S = 120.0
_DEAD_S = 22.0  # longer than an agent stands still on a busy machine
_HELD_S = _DEAD_S + 3.0
# Of half a gigabyte each: they take as long as `_DEAD_S` on a slow wire,
_NUM_ARRAYS = int(os.environ.get("ARRAYS", "10"))
_LONGEST_S = 30.0  # and on a machine that is busy with other things no more than this


class Busy(Actor):
    """An actor that looks dead from outside."""

    @endpoint
    def hold_the_lock(self, seconds: float) -> None:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # unlike CDLL, PyDLL keeps the interpreter's lock

    @endpoint
    def double(self, array: np.ndarray) -> np.ndarray:
        array *= 2
        return array

    @endpoint
    def pid(self) -> int:
        return os.getpid()


TOILING = f"""
import ctypes, time
import numpy as np
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Toiling(Actor):
    @endpoint
    def hold_the_lock(self, seconds): ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    @endpoint
    def take(self, array): return int(array[0] + array[-1])

toiling = monarch_hpc.hosts().slice(hosts=1).spawn_procs().spawn("toiling", Toiling)
array = np.zeros({512 << 20}, dtype=np.uint8)
array[0] = array[-1] = 1
toiling.take.call_one(array[:1]).get()
held = toiling.hold_the_lock.call_one({_HELD_S})
ctypes.PyDLL(None).usleep(int({_HELD_S} * 1e6))
held.get()
print("held", toiling.take.call_one(array[:1]).get(), flush=True)
begun_s = time.perf_counter()
num = 0
while num < {_NUM_ARRAYS} and time.perf_counter() - begun_s < {_LONGEST_S}:
    assert toiling.take.call_one(array).get() == 2
    num += 1
print(f"taken {{num}} {{array.nbytes * num / (time.perf_counter() - begun_s) / 1e9:.1f}} GB/s")
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    config = replace(loaded, liveness=replace(loaded.liveness, heartbeat_s=0.1, suspect_s=0.4, dead_s=_DEAD_S))
    with controlled(config) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.fixture
def busy(hosts: HostMesh) -> Iterator[ActorMesh[Busy]]:
    with hosts.slice(hosts=1).spawn_procs() as procs:
        yield procs.spawn("busy", Busy)


def listen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Capture the controller's output. Not a fixture: pytest restores its streams before each test."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def stop(pid: int) -> None:
    """Suspend a process, and wait until it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    status = Path(f"/proc/{pid}/status")
    wait_until("the stop", status.read_text, accept=lambda text: "T (stopped)" in text)


def states() -> list[object]:
    status = query_status(Path(os.environ[DIRECTORY_VARIABLE]), 60.0)
    return [host["state"] for host in status["hosts"]] if status else []


def test_a_proc_that_holds_the_interpreters_lock_is_not_dead(
    busy: ActorMesh[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = listen(monkeypatch)
    future = busy.hold_the_lock.call_one(_HELD_S)
    future.get(_PATIENCE_S)
    assert busy.double.call_one(np.ones(3)).get(_PATIENCE_S).sum() == 6
    wait_until("both hosts", states, accept=lambda seen: seen == ["alive", "alive"])
    assert stderr.getvalue() == ""


def test_a_proc_that_stays_stopped_is_dead_and_its_callers_told(
    busy: ActorMesh[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = listen(monkeypatch)
    stop(busy.pid.call_one().get(_PATIENCE_S))
    with pytest.raises(ActorDied, match=r"busy.* died: stopped \(SIGSTOP\) for \d+ s"):
        busy.pid.call_one().get(_PATIENCE_S)
    wait_until("the news", stderr.getvalue, accept=lambda text: "died: stopped (SIGSTOP) for" in text)


@pytest.mark.slow
def test_a_lock_held_for_long_on_both_sides_and_five_gigabytes_are_no_death(tmp_path: Path) -> None:
    """Started by `run`, with an owner of the run beside the program."""
    program = tmp_path / "toiling.py"
    program.write_text(TOILING)
    values = {"DEAD_S": _DEAD_S, "SUSPECT_S": 0.4, "HEARTBEAT_S": 0.1}
    liveness = {f"MONARCH_HPC_LIVENESS__{name}": str(value) for name, value in values.items()}
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "2", str(program)]
    done = subprocess.run(
        command, env={**os.environ, **liveness}, capture_output=True, text=True, timeout=180, check=False
    )
    print(done.stdout)
    assert (done.returncode, done.stderr.replace(ENDING, "")) == (0, "")
    assert "held 2\n" in done.stdout and re.search(r"^taken \d+ ", done.stdout, re.MULTILINE)


def test_a_long_transfer_is_not_a_death(busy: ActorMesh[Busy], monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = listen(monkeypatch)
    array = np.ones(64 * 2**20 // 8)
    begun_s = time.monotonic()
    num = 0
    while time.monotonic() - begun_s < _HELD_S:
        futures = [busy.double.call_one(array) for _ in range(4)]
        for future in futures:
            assert future.get(_PATIENCE_S)[-1] == 2
            num += 1
        assert "lost" not in states()
    assert num >= 4
    wait_until("both hosts", states, accept=lambda seen: seen == ["alive", "alive"])
    assert stderr.getvalue() == ""
