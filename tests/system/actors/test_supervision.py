"""Supervision: a failure goes to the owner, then to the owner's owner, then to the program."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, HostMesh, MeshFailure, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Child(Actor):
    def __init__(self, *, fails: bool = False) -> None:
        if fails:
            raise ValueError("born to fail")

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Owner(Actor):
    """Spawns children, and handles their failures or not."""

    def __init__(self, *, handles: bool | None = True) -> None:
        self.handles = handles
        self.told: list[MeshFailure] = []
        self.order: list[str] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.append(failure)
        self.order.append("supervise")
        if self.handles is None:
            raise RuntimeError("cannot say")
        return self.handles

    @endpoint
    def spawn(self, procs: ProcMesh | None = None) -> None:
        self.children = (procs or monarch_hpc.this_proc()).spawn("child", Child)
        self.children.pid.call().get(_PATIENCE_S)

    @endpoint
    def spawn_owner(self, *, handles: bool) -> None:
        self.inner = monarch_hpc.this_proc().spawn("inner", Owner, handles=handles)
        self.inner.spawn.call_one().get(_PATIENCE_S)
        self.inner.hurt.call_one().get(_PATIENCE_S)

    @endpoint
    def hurt(self) -> None:
        self.children.fail.broadcast()

    @endpoint
    def hurt_and_wait(self, num: int) -> None:
        """Return once the failure and *num* messages wait to be handled."""
        cell = current_runtime().actors.cells[monarch_hpc.context().actor]
        self.children.fail.broadcast()
        wait_until("the failure", lambda: cell._supervision.due, _PATIENCE_S)
        wait_until("the backlog", lambda: len(cell._mailbox) >= num, _PATIENCE_S)

    @endpoint
    def note(self) -> list[str]:
        self.order.append("note")
        return self.order

    @endpoint
    def failures(self) -> list[MeshFailure]:
        return self.told


class Plain(Actor):
    """Spawns a child and has no __supervise__."""

    @endpoint
    def spawn(self) -> None:
        self.child = monarch_hpc.this_proc().spawn("child", Child)
        self.child.fail.broadcast()


class Patient(Actor):
    """An actor of coroutines, whose endpoints wait for what its hook is told."""

    def __init__(self, answer: str = "yes") -> None:
        self.answer = answer
        self.told = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended.set()
        if self.answer == "raise":
            raise RuntimeError("cannot say")
        return self.answer == "yes"

    @endpoint
    async def hurt_and_wait(self) -> str:
        """Return once the hook has been called."""
        self.child = monarch_hpc.this_proc().spawn("child", Child)
        self.child.fail.broadcast()
        await self.told.wait()
        return "told"

    @endpoint
    async def let_go(self) -> str:
        self.go_on.set()
        await self.ended.wait()
        return "went on"

    @concurrent_endpoint
    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()


class Brisk(Actor):
    """An actor of coroutines with a hook that is a function."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.set()
        return True

    @endpoint
    async def hurt_and_wait(self) -> str:
        self.child = monarch_hpc.this_proc().spawn("child", Child)
        self.child.fail.broadcast()
        await self.told.wait()
        return "told"


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled() as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def proc(hosts: HostMesh) -> ProcMesh:
    """One proc for all tests. The first call starts UCX in this process, which stays."""
    procs = hosts.slice(hosts=0).spawn_procs()
    settle(procs)
    return procs


def test_an_owner_that_handles_a_failure_lives_on(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    owner = proc.spawn("owner", Owner)
    owner.spawn.call_one().get(_PATIENCE_S)
    owner.hurt.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: owner.failures.call_one().get(_PATIENCE_S))
    assert (failure.mesh_name, failure.rank) == ("child", 0)
    assert failure.cause == "endpoint fail raised ValueError: as asked" and "Traceback" in failure.trace
    assert faults == []


def test_a_failure_is_handled_before_the_backlog(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    owner = proc.spawn("owner", Owner)
    owner.spawn.call_one().get(_PATIENCE_S)
    owner.hurt_and_wait.broadcast(3)
    notes = [owner.note.call_one() for _ in range(3)]
    assert notes[0].get(_PATIENCE_S) == ["supervise", "note"]
    assert faults == []


@pytest.mark.parametrize("handles", [False, None])
def test_what_an_owner_does_not_handle_it_dies_of_and_the_program_is_told(
    proc: ProcMesh, faults: list[MeshFailure], handles: bool | None
) -> None:
    owner = proc.spawn("owner", Owner, handles=handles)
    owner.spawn.call_one().get(_PATIENCE_S)
    owner.hurt.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert failure.mesh_name == "owner" and "endpoint fail raised ValueError: as asked" in failure.cause
    assert handles is False or "__supervise__ raised RuntimeError: cannot say" in failure.cause
    with pytest.raises(ActorDied, match="as asked"):
        owner.note.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("handles", [True, False])
def test_failures_go_up_from_owner_to_owner(proc: ProcMesh, faults: list[MeshFailure], *, handles: bool) -> None:
    outer = proc.spawn("outer", Owner)
    outer.spawn_owner.call_one(handles=handles).get(_PATIENCE_S)
    if handles:
        assert outer.failures.call_one().get(_PATIENCE_S) == []
    else:
        (failure,) = wait_until("the failure", lambda: outer.failures.call_one().get(_PATIENCE_S))
        assert failure.mesh_name == "inner" and "actor child{} on local0 died" in failure.cause
    assert faults == []


def test_an_owner_without_the_hook_passes_failures_up(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    proc.spawn("plain", Plain).spawn.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert failure.mesh_name == "plain" and "actor child{} on local0 died: endpoint fail raised" in failure.cause


def test_the_death_of_a_proc_is_told_to_who_spawned_there(
    hosts: HostMesh, proc: ProcMesh, faults: list[MeshFailure]
) -> None:
    owner = proc.spawn("owner", Owner)
    with hosts.slice(hosts=1).spawn_procs(per_host={"gpus": 2}) as procs:
        owner.spawn.call_one(procs).get(_PATIENCE_S)
        os.kill(procs.procs[1].pid, signal.SIGKILL)
        (failure,) = wait_until("the failure", lambda: owner.failures.call_one().get(_PATIENCE_S))
        assert (failure.mesh_name, failure.rank) == ("child", 1)
    # Stopping the other one is not a failure.
    assert len(owner.failures.call_one().get(_PATIENCE_S)) == 1
    assert faults == []


def test_nothing_outlives_its_owner(proc: ProcMesh) -> None:
    owner = proc.spawn("owner", Lender)
    owner.spawn.call_one().get(_PATIENCE_S)
    children = owner.lend.call_one().get(_PATIENCE_S)
    assert children.pid.call_one().get(_PATIENCE_S) == proc.procs[0].pid
    owner.stop()

    def stopped() -> bool:
        error = children.pid.call_one().exception(_PATIENCE_S)
        return isinstance(error, ActorDied) and error.cause == "it was stopped"

    wait_until("the end of the children", stopped)


class Lender(Owner):
    @endpoint
    def lend(self) -> monarch_hpc.ActorMesh[Child]:
        return self.children


@pytest.mark.parametrize("cls", [Patient, Brisk])
def test_an_endpoint_that_waits_lives_to_see_the_hook(
    proc: ProcMesh, faults: list[MeshFailure], cls: type[Patient] | type[Brisk]
) -> None:
    owner = proc.spawn("owner", cls)
    assert owner.hurt_and_wait.call_one().get(_PATIENCE_S) == "told"
    if cls is Patient:
        assert owner.let_go.call_one().get(_PATIENCE_S) == "went on"  # while the hook waits for it
    owner.stop().get(_PATIENCE_S)
    assert faults == []


@pytest.mark.parametrize(("answer", "words"), [("no", "did not handle"), ("raise", "RuntimeError: cannot say")])
def test_a_hook_that_waited_and_does_not_handle_the_failure_ends_the_actor_and_its_calls(
    proc: ProcMesh, faults: list[MeshFailure], answer: str, words: str
) -> None:
    owner = proc.spawn("owner", Patient, answer)
    waiting = owner.wait_for_ever.call_one()
    owner.hurt_and_wait.call_one().get(_PATIENCE_S)
    owner.let_go.broadcast()
    with pytest.raises(ActorDied, match=words):
        waiting.get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert failure.mesh_name == "owner" and words in failure.cause


def test_a_stop_cancels_a_hook_that_waits(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    owner = proc.spawn("owner", Patient)
    owner.hurt_and_wait.call_one().get(_PATIENCE_S)
    owner.stop().get(_PATIENCE_S)
    assert faults == []


@pytest.mark.slow
@pytest.mark.parametrize("armed", [True, False])
def test_it_ends_a_program_whose_main_thread_hangs_in_c(tmp_path: Path, *, armed: bool) -> None:
    """Also if the signal handler cannot be installed, because the hosts were first used on another thread."""
    program = tmp_path / "program.py"
    program.write_text(
        "import ctypes, threading, monarch_hpc\n"
        "from monarch_hpc.actor import fault\n"
        "fault._REACT_S = 0.5\n"
        "class Bad(monarch_hpc.Actor):\n"
        "    @monarch_hpc.endpoint\n    def fail(self):\n        raise KeyError('as asked')\n"
        "def begin():\n    global procs\n    procs = monarch_hpc.hosts().slice(hosts=0).spawn_procs()\n"
        + ("begin()\n" if armed else "thread = threading.Thread(target=begin)\nthread.start()\nthread.join()\n")
        + "print(procs.procs[0].pid, flush=True)\n"
        "mutex = ctypes.create_string_buffer(64)\n"
        "c = ctypes.CDLL(None)\n"
        "c.pthread_mutex_lock(mutex)\n"
        "threading.Timer(0.2, lambda: procs.spawn('bad', Bad).fail.broadcast()).start()\n"
        "c.pthread_mutex_lock(mutex)\n"
    )
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "1", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "unhandled failure" in done.stderr and "endpoint fail raised KeyError" in done.stderr
    assert "the main thread did not react within 0.5 s" in done.stderr
    assert "c.pthread_mutex_lock(mutex)" in done.stderr
    assert not Path(f"/proc/{int(done.stdout)}").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spawn", "words"),
    [
        ("procs.spawn('bad', Bad, 1)", "actor bad{} on local0 died: its constructor raised ValueError: no good 1"),
        ("procs.spawn('bad', Bad, 0).fail.broadcast()", "actor bad{} on local0 died: endpoint fail raised KeyError"),
    ],
)
def test_a_failure_that_nobody_handles_ends_the_program(tmp_path: Path, spawn: str, words: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time, monarch_hpc\n"
        "class Bad(monarch_hpc.Actor):\n"
        "    def __init__(self, number):\n        if number:\n            raise ValueError(f'no good {number}')\n"
        "    @monarch_hpc.endpoint\n    def fail(self):\n        raise KeyError('as asked')\n"
        f"procs = monarch_hpc.hosts().slice(hosts=0).spawn_procs()\n{spawn}\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "1", str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert words in done.stderr and "monarch_hpc.actor.unhandled_fault_hook" in done.stderr


def test_a_proc_that_is_terminated_by_hand_names_the_signal(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        child = procs.spawn("child", Child)
        os.kill(child.pid.call_one().get(_PATIENCE_S), signal.SIGTERM)
        # A call meanwhile could be told first, and the program would not; or that the actor was stopped.
        wait_until("the program's failure", lambda: ["signal 15" in fault.cause for fault in faults] == [True])
        with pytest.raises(ActorDied, match=r"died: signal 15 \(SIGTERM\)"):
            child.pid.call_one().get(_PATIENCE_S)
