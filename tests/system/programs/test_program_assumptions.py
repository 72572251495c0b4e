"""Implicit assumptions of programs: where code runs, the order in which things end, and who gets failures."""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.core.errors import MeshDied
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


def note(path: str, text: str) -> None:
    """Append a line atomically."""
    with open(path, "ab", buffering=0) as file:
        file.write(f"{text}\n".encode())


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def here() -> str:
    loop = asyncio._get_running_loop()
    return f"{threading.get_ident()} {'no loop' if loop is None else id(loop)}"


class Child(Actor):
    """Fails on request, and logs its end."""

    def __init__(self, path: str = "", name: str = "", *, fails: bool = False) -> None:
        if fails:
            raise ValueError("born to fail")
        self.path = path
        self.name = name

    @endpoint
    def fail(self) -> None:
        raise KeyError("as asked")

    @endpoint
    def fail_on(self, rank: int) -> None:
        if monarch_hpc.context().proc.rank == rank:
            raise KeyError("as asked")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def note_at_exit(self) -> None:
        atexit.register(note, self.path, "atexit")

    def __cleanup__(self, error: BaseException | None) -> None:
        if self.path:
            note(self.path, f"{self.name} cleans up")

    def __del__(self) -> None:
        if getattr(self, "path", ""):
            note(self.path, f"{self.name} is deleted")


class Function(Actor):
    """An actor with functions only, which log where they run."""

    def __init__(self, path: str) -> None:
        self.path = path
        note(path, f"init {here()}")

    @endpoint
    def work(self) -> None:
        note(self.path, f"work {here()}")
        self.child = monarch_hpc.this_proc().spawn("child", Child, self.path, "child")
        self.child.fail.broadcast()

    def __supervise__(self, failure: MeshFailure) -> bool:
        note(self.path, f"supervise {here()}")
        return True

    def __cleanup__(self, error: BaseException | None) -> None:
        note(self.path, f"cleanup {here()}")


class Coroutine(Actor):
    """Likewise with coroutines."""

    def __init__(self, path: str) -> None:
        self.path = path
        note(path, f"init {here()}")

    @endpoint
    async def work(self) -> None:
        note(self.path, f"work {here()}")
        self.child = monarch_hpc.this_proc().spawn("child", Child, self.path, "child")
        self.child.fail.broadcast()

    async def __supervise__(self, failure: MeshFailure) -> bool:
        note(self.path, f"supervise {here()}")
        return True

    async def __cleanup__(self, error: BaseException | None) -> None:
        note(self.path, f"cleanup {here()}")


class Owner(Child):
    """Owns a child actor, which ends with it."""

    @endpoint
    def adopt(self) -> None:
        self.child = monarch_hpc.this_proc().spawn("child", Child, self.path, "child")
        self.child.pid.call_one().get(_PATIENCE_S)


class Asker(Actor):
    @endpoint
    def pid_of(self, name: str) -> int:
        named: ActorMesh[Child] = monarch_hpc.get_or_spawn_controller(name, Child).get(_PATIENCE_S)
        return int(named.pid.call_one().get(_PATIENCE_S))


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.slice(hosts=0).spawn_procs(per_host={"gpus": 4})
    settle(procs)
    return procs


@pytest.fixture
def proc(procs: ProcMesh) -> ProcMesh:
    return procs.slice(gpus=0)


@pytest.mark.parametrize("how", ["constructor", "broadcast"])
def test_the_hook_of_the_moment_hears_the_name_and_the_text(
    proc: ProcMesh, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    early: list[MeshFailure] = []
    told: list[MeshFailure] = []
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", early.append)
    if how == "broadcast":
        child = proc.spawn("bad", Child)
        child.pid.call_one().get(_PATIENCE_S)
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", told.append)
    if how == "broadcast":
        child.fail.broadcast()
    else:
        proc.spawn("bad", Child, fails=True)
    (failure,) = wait_until("the failure", lambda: list(told))
    text = "its constructor raised ValueError: born to fail" if how == "constructor" else "KeyError: 'as asked'"
    assert failure.mesh_name == "bad" and text in failure.report() and "actor bad{} on local0" in str(failure)
    assert early == []


@pytest.mark.parametrize("cls", [Function, Coroutine])
def test_constructor_endpoints_and_hooks_share_a_thread_or_the_loop(
    proc: ProcMesh, tmp_path: Path, cls: type[Function] | type[Coroutine]
) -> None:
    path = tmp_path / "log"
    actor: ActorMesh[Any] = proc.spawn("actor", cls, str(path))
    actor.work.call_one().get(_PATIENCE_S)
    wait_until("the failure", lambda: [line for line in lines(path) if line.startswith("supervise")])
    actor.stop().get(_PATIENCE_S)
    seen = [line.split(maxsplit=1) for line in lines(path) if not line.startswith("child")]
    assert [what for what, _ in seen] == ["init", "work", "supervise", "cleanup"]
    (place,) = {place for _, place in seen}
    assert place.endswith("no loop") == (cls is Function)


def test_an_owner_cleans_up_before_what_it_spawned_ends(proc: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    owner = proc.spawn("owner", Owner, str(path), "owner")
    owner.adopt.call_one().get(_PATIENCE_S)
    owner.stop().get(_PATIENCE_S)
    seen = wait_until("the ends", lambda: lines(path), accept=lambda seen: len(seen) == 4)
    assert seen.index("owner cleans up") < seen.index("child cleans up") < seen.index("child is deleted")
    assert "owner is deleted" in seen


def test_destructors_and_exit_functions_run_when_a_proc_is_stopped(hosts: HostMesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with hosts.slice(hosts=0).spawn_procs() as procs:
        child = procs.spawn("child", Child, str(path), "child")
        child.note_at_exit.call_one().get(_PATIENCE_S)
    assert lines(path) == ["child cleans up", "child is deleted", "atexit"]


def test_named_actors_live_with_the_program(proc: ProcMesh) -> None:
    assert proc.spawn("asker", Asker).pid_of.call_one("named").get(_PATIENCE_S) == os.getpid()
    named: ActorMesh[Child] = monarch_hpc.get_or_spawn_controller("named", Child).get(_PATIENCE_S)
    assert named.pid.call_one().get(_PATIENCE_S) == os.getpid()
    mine = monarch_hpc.this_proc().spawn("mine", Child)
    assert mine.pid.call_one().get(_PATIENCE_S) == os.getpid()
    for mesh in (named, mine):
        mesh.stop().get(_PATIENCE_S)


def test_a_slice_knows_of_the_failures_of_its_mesh(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    mesh = procs.spawn("mesh", Child)
    before = mesh.slice(gpus=slice(0, 2))
    mesh.fail_on.broadcast(1)
    wait_until("the failure", lambda: list(faults))
    for view in (before, mesh.slice(gpus=1), mesh.slice(gpus=slice(1, 3)), mesh):
        with pytest.raises(ActorDied, match="endpoint fail_on raised KeyError: 'as asked'"):
            view.pid.call().get(_PATIENCE_S)
    for view in (mesh.slice(gpus=0), mesh.slice(gpus=slice(2, 4))):
        assert len(list(view.pid.call().get(_PATIENCE_S).values())) == len(view)
    mesh.fail_on.broadcast(2)
    wait_until("the failures", lambda: [fault.rank for fault in faults], accept=lambda seen: sorted(seen) == [1, 2])
    with pytest.raises(MeshDied) as caught:
        mesh.pid.call().get(_PATIENCE_S)
    assert sorted(caught.value.failures) == [1, 2]


def test_workers_have_the_programs_pythonpath_of_the_moment(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/one:/two")  # the agents are already running
    for env, expected in (({}, "/one:/two"), ({"PYTHONPATH": "/three"}, "/three"), ({"PYTHONPATH": None}, None)):
        with hosts.slice(hosts=0).spawn_procs(env=env) as procs:
            assert procs.spawn("child", Child).variable.call_one("PYTHONPATH").get(_PATIENCE_S) == expected


@pytest.mark.slow
def test_workers_see_the_programs_pythonpath(tmp_path: Path) -> None:
    """Procs import what the program can import, and so do processes that they start."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "only_there.py").write_text("VALUE = 42\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import monarch_hpc, only_there\n"
        "class Worker(monarch_hpc.Actor):\n"
        "    @monarch_hpc.endpoint\n"
        "    def see(self):\n"
        "        import subprocess, sys, only_there\n"
        "        code = 'import only_there; print(only_there.VALUE)'\n"
        "        return only_there.VALUE, int(subprocess.check_output([sys.executable, '-c', code]))\n"
        "procs = monarch_hpc.hosts().slice(hosts=0).spawn_procs()\n"
        "print(procs.spawn('worker', Worker).see.call_one().get(60))\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{library}:{os.getcwd()}"}
    command = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", "1", str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "(42, 42)\n"), done.stderr
