"""`stop()` always ends: what is queued is handled within a limit, then what runs is cancelled and what waits fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, HostMesh, MeshFailure, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.actors.test_turns import hang, release
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_STOP_S = 0.3


class Child(Actor):
    """Takes its time to end."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    async def __cleanup__(self, _error: BaseException | None) -> None:
        await asyncio.sleep(0.1)
        if self.path:
            Path(self.path).touch()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Endless(Actor):
    """Never returns, in several ways; notes what happens to it."""

    def __init__(self, folder: str, fifo: str = "") -> None:
        self.folder = Path(folder)
        if fifo:
            hang(fifo)

    def note(self, text: str) -> None:
        (self.folder / text).touch()

    @endpoint
    async def wait(self) -> None:
        self.note("waits")
        try:
            await asyncio.Event().wait()
        finally:
            self.note("cancelled")

    @concurrent_endpoint
    async def refuse(self) -> None:
        self.note("waits")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.note("refused")

    @endpoint
    def hang(self, fifo: str) -> str:
        self.note("waits")
        hang(fifo)
        self.note("returned")
        return "late"

    @endpoint(timeout=60.0)
    def hang_with_a_limit(self, fifo: str) -> str:
        return self.hang(fifo)

    @endpoint
    async def hang_waiting(self, fifo: str) -> str:
        return self.hang(fifo)

    @endpoint
    def alive(self) -> bool:
        return True

    @endpoint
    def spawn(self, path: str) -> None:
        self.child = monarch_hpc.this_proc().spawn("child", Child, path)

    @endpoint
    def spawn_procs(self) -> int:
        self.procs = monarch_hpc.this_host().spawn_procs()
        return int(self.procs.spawn("child", Child).pid.call_one().get(_PATIENCE_S))

    @endpoint
    def hurt(self) -> None:
        self.child.fail.broadcast()

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.note("told")
        return True

    def __cleanup__(self, _error: BaseException | None) -> None:
        self.note("cleaned")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": _STOP_S}).config, num_hosts=1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


def test_a_coroutine_that_never_returns_is_cancelled_and_what_waits_fails(proc: ProcMesh, tmp_path: Path) -> None:
    actor = proc.spawn("endless", Endless, str(tmp_path))
    running, queued = actor.wait.call_one(), actor.alive.call_one()
    wait_until("the coroutine", (tmp_path / "waits").exists)
    actor.stop("enough").get(_PATIENCE_S)
    for future in (running, queued, actor.alive.call_one()):
        with pytest.raises(ActorDied, match="it was stopped: enough"):
            future.get(_PATIENCE_S)
    assert (tmp_path / "cancelled").exists() and (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("way", ["hang", "hang_with_a_limit"])
def test_a_function_that_never_returns_is_given_up(proc: ProcMesh, tmp_path: Path, fifo: str, way: str) -> None:
    actor = proc.spawn("endless", Endless, str(tmp_path))
    running, queued = getattr(actor, way).call_one(fifo), actor.alive.call_one()
    wait_until("the function", (tmp_path / "waits").exists)
    actor.stop("enough").get(_PATIENCE_S)
    for future in (running, queued, actor.alive.call_one()):
        with pytest.raises(ActorDied, match="it was stopped: enough"):
            future.get(_PATIENCE_S)
    assert not (tmp_path / "cleaned").exists()
    release(fifo)  # it cleans up when it can
    wait_until("the clean-up", (tmp_path / "cleaned").exists)
    assert (tmp_path / "returned").exists()


@pytest.mark.slow  # cancelled coroutines have three seconds
@pytest.mark.parametrize("way", ["hang_waiting", "refuse", "constructor"])
def test_what_cannot_be_cancelled_is_given_up_too(proc: ProcMesh, tmp_path: Path, fifo: str, way: str) -> None:
    actor = proc.spawn("endless", Endless, str(tmp_path), fifo if way == "constructor" else "")
    running = actor.alive if way == "constructor" else getattr(actor, way)
    call = running.call_one(*([fifo] if way == "hang_waiting" else []))
    if way != "constructor":
        wait_until("the call", (tmp_path / "waits").exists)
    actor.stop().get(_PATIENCE_S)
    with pytest.raises(ActorDied, match="it was stopped"):
        call.get(_PATIENCE_S)
    if way != "refuse":
        release(fifo)
    wait_until("the clean-up", (tmp_path / "cleaned").exists)


def test_a_stop_ends_after_what_the_actor_has_spawned(proc: ProcMesh, tmp_path: Path) -> None:
    actor = proc.spawn("owner", Endless, str(tmp_path))
    actor.spawn.call_one(str(tmp_path / "child ended")).get(_PATIENCE_S)
    pid = actor.spawn_procs.call_one().get(_PATIENCE_S)
    actor.stop().get(_PATIENCE_S)
    assert (tmp_path / "child ended").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_an_actor_that_ends_is_not_told_of_failures(proc: ProcMesh, tmp_path: Path, faults: list[MeshFailure]) -> None:
    actor = proc.spawn("owner", Endless, str(tmp_path))
    actor.spawn.call_one("").get(_PATIENCE_S)
    actor.wait.broadcast()
    wait_until("the coroutine", (tmp_path / "waits").exists)
    ended = actor.stop()
    actor.hurt.broadcast()
    ended.get(_PATIENCE_S)
    assert not (tmp_path / "told").exists() and not faults


def test_the_reason_is_text(proc: ProcMesh, tmp_path: Path) -> None:
    actor = proc.spawn("endless", Endless, str(tmp_path))
    with pytest.raises(TypeError, match="reason"):
        actor.stop(1)  # type: ignore[arg-type]
    actor.stop("\udcff" + "x" * 10**6).get(_PATIENCE_S)  # such as the name of a file, and a whole log
    died = actor.wait.call_one().exception(_PATIENCE_S)
    assert isinstance(died, ActorDied) and "\\udcffxxx" in died.cause and len(died.cause) < 20_000
