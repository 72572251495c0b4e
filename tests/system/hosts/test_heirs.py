"""The agent of the head's host dies: another one leads, calls go on, and runs continue."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ProcMesh, SpawnError, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.allocation.heads import read_head
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.storage.files import read_json
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.slurm.record import AllocationRecord, current_owner
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.testing import wait_until

_PATIENCE_S = 60.0


PROGRAM = """
import sys
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

hosts = monarch_hpc.hosts()
hosts = hosts.slice(hosts=slice(len(hosts) - int(sys.argv[1]), len(hosts)))
echo = hosts.spawn_procs().spawn("echo", Echo)
print(*echo.echo.call(int(sys.argv[2])).get(60).values(), flush=True)
if sys.argv[2] == "1":
    sys.stdin.readline()
    print(*echo.echo.call(2).get(60).values())
    print(*hosts.spawn_procs().spawn("echo", Echo).echo.call(3).get(60).values())
"""


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()


SOON = pytest.mark.parametrize("fence_s", [5])
"""For tests that wait for an end. Elsewhere a machine that stands still must not end what is to go on."""


@pytest.fixture
def fence_s() -> int:
    """Config key `liveness.fence_s`."""
    return 120


@pytest.fixture
def tries() -> int:
    """Config key `heal.tries`: lost agents stay away, so that there are fewer voices after each loss."""
    return 0


@pytest.fixture
def directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure], fence_s: int, tries: int
) -> Iterator[Path]:
    """An allocation of four hosts, used by this process."""
    # A minority stops fence_s after a silent head would be dead.
    times = {"liveness.fence_s": fence_s, "liveness.dead_s": 3 * fence_s}
    config = load({"procs.stop_s": 1.0, "agent.grace_s": 1.0, "heal.tries": tries, **times}).config
    with open_local(4, config, tmp_path / "demo") as directory, contextlib.ExitStack() as after:
        after.callback(Controller.close_any)
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
        yield directory


def kill_agent(directory: Path, rank: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the agent of a host."""
    document = read_json(directory / "hosts" / f"{rank}.json")
    assert isinstance(document, dict)
    os.kill(document["pid"], number)


def term(directory: Path) -> int:
    """The term of the head."""
    head = read_head(directory)
    return 0 if head is None else head.term


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start `monarch-hpc run` with a program on the allocation."""
    return subprocess.Popen(
        [sys.executable, "-m", "monarch_hpc.cli", "run", "-a", "dev", "program.py", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def runs(directory: Path) -> list[object]:
    """The runs that the head knows."""
    status = query_status(directory, _PATIENCE_S)
    assert status is not None
    return [run["run"] for run in status["runs"]]


def spawn_on(host: int) -> ProcMesh:
    """A proc on one host."""
    return monarch_hpc.hosts().slice(hosts=host).spawn_procs(name=f"on{host}")


def test_living_procs_go_on_and_an_heir_starts_new_ones(directory: Path) -> None:
    procs = [spawn_on(host) for host in (2, 3)]
    actors = [mesh.spawn("echo", Echo) for mesh in procs]
    (victim, _) = [actor.pid.call_one().get(_PATIENCE_S) for actor in actors]
    for rank in (0, 1):
        before = term(directory)
        kill_agent(directory, rank)
        for value in range(50):
            assert [actor.echo.call_one(value).get(_PATIENCE_S) for actor in actors] == [value, value]
        wait_until("the heir", lambda before=before: term(directory) > before)  # type: ignore[misc]
        smaller = f"{3 - rank} hosts elect the next head"
        log = directory / f"local{rank + 1}.err"
        wait_until("the electorate without it", lambda log=log, smaller=smaller: smaller in log.read_text())  # type: ignore[misc]
    fresh = spawn_on(3).spawn("echo", Echo)
    assert fresh.echo.call_one(7).get(_PATIENCE_S) == 7
    # The heir knows the procs that it has not started, and ends them.
    procs[0].stop().get(_PATIENCE_S)
    wait_until("the end of the proc", lambda: not Path(f"/proc/{victim}").exists())


def test_an_order_that_the_head_has_not_passed_on_is_carried_out_by_its_heir(directory: Path) -> None:
    actor = spawn_on(1).spawn("echo", Echo)
    assert actor.echo.call_one(1).get(_PATIENCE_S) == 1
    kill_agent(directory, 0, signal.SIGSTOP)
    sent = spawn_on(2).spawn("echo", Echo).echo.call_one(2)
    stopped = monarch_hpc.hosts().slice(hosts=3).spawn_procs(name="stopped")
    stopped.stop()
    kill_agent(directory, 0)
    assert spawn_on(3).spawn("echo", Echo).echo.call_one(3).get(_PATIENCE_S) == 3
    assert sent.get(_PATIENCE_S) == 2
    with pytest.raises(SpawnError):
        stopped.spawn("echo", Echo).echo.call_one(4).get(_PATIENCE_S)
    with pytest.raises(SpawnError, match="local0"):
        spawn_on(0).spawn("echo", Echo).echo.call_one(5).get(_PATIENCE_S)


def test_procs_that_were_starting_are_not_started_twice(directory: Path) -> None:
    hosts = monarch_hpc.hosts().slice(hosts=slice(1, 4))
    (tenancy,) = Controller.instance().tenancies.all()
    kill_agent(directory, 2, signal.SIGSTOP)
    mesh = hosts.spawn_procs(name="starting")
    pids = mesh.spawn("echo", Echo).pid.call()
    wait_until("two of three procs", lambda: len(tenancy.procs) == 2)
    kill_agent(directory, 0)
    kill_agent(directory, 2, signal.SIGCONT)
    found = set(pids.get(_PATIENCE_S).values())
    assert found == {proc.pid for proc in tenancy.procs.values()} and len(found) == 3


def test_a_run_goes_on_and_another_begins(directory: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "state" / "monarch-hpc")
    record = AllocationRecord("ab" * 16, "dev", directory, "4", current_owner(), time.time())
    registry.create(record)
    registry.set_job(record, 7, time.time())
    (tmp_path / "program.py").write_text(PROGRAM)
    going = start(tmp_path, "2", "1")
    assert going.stdout is not None and going.stdin is not None
    assert going.stdout.readline() == "1 1\n"
    kill_agent(directory, 0)
    wait_until("the heir", lambda: term(directory) > 1)
    # It has two hosts, and its own run beside the one that has come back.
    out, err = start(tmp_path, "2", "0").communicate(timeout=_PATIENCE_S)
    assert out == "0 0\n", err
    going.stdin.write("\n")
    out, err = going.communicate(timeout=_PATIENCE_S)
    assert (out, going.returncode) == ("2 2\n3 3\n", 0), err
    wait_until("the end of the runs", lambda: runs(directory) == [])


@pytest.mark.parametrize("tries", [3])
def test_agents_that_were_started_again_outlive_the_head_that_did_it(directory: Path) -> None:
    def states() -> list[object]:
        status = query_status(directory, _PATIENCE_S)
        return [host["state"] for host in status["hosts"]] if status else []

    kept = spawn_on(3).spawn("echo", Echo)
    assert kept.echo.call_one(1).get(_PATIENCE_S) == 1
    for rank in (1, 0, 1):  # of another host, of the head, and of its heir, whichever that is
        before, victim = read_json(directory / "hosts" / f"{rank}.json"), rank
        assert isinstance(before, dict)
        kill_agent(directory, victim)
        wait_until(
            "another agent",
            lambda before=before, victim=victim: read_json(directory / "hosts" / f"{victim}.json") != before,  # type: ignore[misc]
        )
        wait_until("all hosts", states, accept=lambda seen: seen == ["alive"] * 4)
        for host in range(4):
            assert spawn_on(host).spawn("echo", Echo).echo.call_one(host).get(_PATIENCE_S) == host
    assert kept.echo.call_one(2).get(_PATIENCE_S) == 2


@SOON
def test_a_kept_mesh_outlives_the_head_that_has_kept_it(directory: Path) -> None:
    procs = monarch_hpc.hosts().slice(hosts=slice(1, 4)).spawn_procs(name="procs")
    pids = procs.spawn("echo", Echo).pid.call().get(_PATIENCE_S).values()
    procs.keep("lasting")
    kill_agent(directory, 0)
    wait_until("another head", lambda: term(directory), _PATIENCE_S, accept=lambda now: now == 2)
    kept = monarch_hpc.kept("lasting")
    assert kept["echo"].pid.call().get(_PATIENCE_S).values() == pids
    status = query_status(directory, _PATIENCE_S)
    assert status is not None
    assert [(one["name"], one["alive"], one["programs"]) for one in status["kept"]] == [("lasting", 3, 1)]
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(ActorDied, match="SIGKILL"):
        kept["echo"].slice(hosts=0).echo.call_one(1).get(_PATIENCE_S)
    kept.stop().get(_PATIENCE_S)
    with pytest.raises(ActorDied):
        kept["echo"].slice(hosts=1).echo.call_one(1).get(_PATIENCE_S)


@SOON
def test_the_procs_of_a_program_that_died_with_the_head_are_ended(directory: Path) -> None:
    actor = spawn_on(1).spawn("echo", Echo)
    pid = actor.pid.call_one().get(_PATIENCE_S)
    (tenancy,) = Controller.instance().tenancies.all()
    kill_agent(directory, 0)
    Controller.instance().engine.call_soon(lambda: Controller.instance().node.leave(tenancy.allocation, "it is lost"))
    wait_until("the heir", lambda: term(directory) > 1)
    wait_until("the end of the proc", lambda: not Path(f"/proc/{pid}").exists())


@SOON
def test_two_of_four_cannot_be_lost_at_once(directory: Path) -> None:
    actor = spawn_on(2).spawn("echo", Echo)
    assert actor.echo.call_one(1).get(_PATIENCE_S) == 1
    for rank in (0, 1):
        kill_agent(directory, rank)

    def answered() -> int:
        return int(actor.echo.call_one(1).get(_PATIENCE_S))

    with pytest.raises(ActorDied):
        wait_until("the end of the minority", answered, 120.0, accept=lambda value: value != 1)
    assert term(directory) == 1
