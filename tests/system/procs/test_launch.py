"""Procs start beside the program, and what is asked of them meanwhile waits."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, CallTimeout, HostMesh, ProcMesh, SpawnError, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.config.load import load
from monarch_hpc.mesh.launch import Launch, end_launches
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Member(Actor):
    """An actor that keeps what it was told."""

    def __init__(self, greeting: str = "") -> None:
        self.told = [greeting]

    @endpoint
    def tell(self, word: str) -> list[str]:
        self.told.append(word)
        return list(self.told)

    @endpoint
    def total(self, values: np.ndarray) -> float:
        values *= 1  # arrays are the receiver's own, also those of calls that waited
        return float(values.sum())

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Starter(Actor):
    """An actor that starts procs and does not wait for them."""

    @endpoint
    def start(self, gate: str) -> tuple[bool, list[list[str]]]:
        """Whether the call returned before the procs were there, and what their actors answered."""
        procs = monarch_hpc.this_host().spawn_procs({"gpus": 2}, bootstrap=waits_for(Path(gate)))
        answers = procs.spawn("member", Member, "hello").tell.call("there")
        early = not procs.initialized.done()
        Path(gate).touch()
        return early, list(answers.get(_PATIENCE_S).values())

    @endpoint
    def stop_early(self) -> str:
        """Stop procs before this process knows their number."""
        procs = monarch_hpc.this_host().spawn_procs()
        procs.stop("they are not needed").get(_PATIENCE_S)
        return str(procs.initialized.exception(_PATIENCE_S))


def waits_for(gate: Path) -> Callable[[], None]:
    """A bootstrap that returns when *gate* is there."""

    def bootstrap() -> None:
        wait_until("the gate", gate.exists, timeout_s=_PATIENCE_S)

    return bootstrap


def failed(procs: ProcMesh) -> Callable[[], bool]:
    """Whether the start has failed, without seeing the failure."""
    state = cast(Launch, procs._launch)._state
    return lambda: state.error is not None


def fails() -> None:
    raise KeyError("no such licence")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 0.5}).config) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


def test_a_reference_leaves_the_process_after_its_actors_are_asked_for(
    hosts: HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_left, seen = threading.Event(), list[bool]()
    spawn = ProcMesh._spawn

    def late(*arguments: Any) -> None:
        seen.append(has_left.wait(0.3))
        spawn(*arguments)

    monkeypatch.setattr(ProcMesh, "_spawn", late)
    with hosts.spawn_procs() as procs:
        member = procs.spawn("member", Member, "hello")
        sent = pickle.dumps(member)
        has_left.set()
        assert pickle.loads(sent).slice(hosts=0).tell.call_one("there").get(_PATIENCE_S) == ["hello", "there"]
    assert seen == [False]


def test_three_meshes_are_usable_as_soon_as_one(hosts: HostMesh, tmp_path: Path) -> None:
    """Each bootstrap waits until all three run: one after the other they would never end."""

    def meet(own: str) -> Callable[[], None]:
        def bootstrap() -> None:
            (tmp_path / own).touch()
            wait_until("the others", lambda: len(os.listdir(tmp_path)) == 3, timeout_s=_PATIENCE_S)

        return bootstrap

    meshes = [hosts.slice(hosts=0).spawn_procs(bootstrap=meet(name)) for name in "abc"]
    members: list[Any] = [procs.spawn("member", Member) for procs in meshes]
    answers = [member.tell.call_one("hello") for member in members]
    assert [future.get(_PATIENCE_S) for future in answers] == [["", "hello"]] * 3
    assert all(procs.initialized.get(_PATIENCE_S) for procs in meshes)
    assert all(member.initialized.get(_PATIENCE_S) for member in members)
    for procs in meshes:
        procs.stop().get(_PATIENCE_S)


def test_nothing_is_copied_once_the_procs_are_there(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_buffer: object) -> bytes:
        raise AssertionError("copied")

    values = np.arange(1000.0)
    with hosts.spawn_procs() as procs:
        settle(procs)
        monkeypatch.setattr("monarch_hpc.mesh.launch.copy_of", refuse)
        member = procs.spawn("member", Member, values)  # kept, not read
        assert list(member.total.call(values).get(_PATIENCE_S).values()) == [values.sum()] * len(procs)
        assert member.slice(hosts=0).total.call_one(values).get(_PATIENCE_S) == values.sum()


def test_what_is_asked_of_initialized_procs_is_sent_at_once(hosts: HostMesh) -> None:
    begun, gate = threading.Event(), threading.Event()
    with hosts.spawn_procs() as procs:
        launch = cast(Launch, procs._launch)

        def ask() -> Future[Literal[True]]:
            begun.set()
            assert gate.wait(_PATIENCE_S)
            return procs.initialized

        asked = launch.after(ask, "the gate")
        initialized = procs.initialized
        assert begun.wait(_PATIENCE_S)
        early = initialized.done()
        gate.set()
        assert initialized.get(_PATIENCE_S) and launch.opened is not None and asked.get(_PATIENCE_S)
        settle(procs)
    assert not early, "messages that were asked for before are still to be sent"


def test_what_is_asked_of_procs_that_start_is_done_in_order(hosts: HostMesh, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with hosts.spawn_procs({"gpus": 1}, bootstrap=waits_for(gate), name="choir") as procs:
        assert not procs.initialized.done() and "hosts" in repr(procs)
        members: Any = procs.spawn("member", Member, "dear")
        values = np.ones(1 << 16)
        members.tell.broadcast("first")
        second = members.slice(hosts=1).tell.call("second")
        third = members.tell.call("third")
        total = members.total.call(values)
        values[:] = 0  # the call has its own values, as if it had been sent
        chosen, streamed = members.pid.choose(), members.tell.stream("fourth")
        settings = procs.logging_option(level="INFO")
        with pytest.raises(TimeoutError, match="no answer in"):
            third.get(0.01)
        with pytest.raises(CallTimeout):
            members.tell.options(timeout=0.05).call("never").get(_PATIENCE_S)
        cancelled = members.slice(hosts=0, gpus=0).tell.call_one("never")
        assert cancelled.cancel()
        gate.touch()
        assert second.get(_PATIENCE_S).item(gpus=0) == ["dear", "first", "second"]
        assert third.get(_PATIENCE_S).item(hosts=0, gpus=0) == ["dear", "first", "third"]
        assert set(total.get(_PATIENCE_S).values()) == {float(1 << 16)}
        assert chosen.get(_PATIENCE_S) in [proc.pid for proc in procs.procs]
        assert {len(future.get(_PATIENCE_S)) for future in streamed} == {4, 5}
        settings.get(_PATIENCE_S)
        assert members.initialized.get(_PATIENCE_S) is True
        assert members.tell.call("last").get(_PATIENCE_S).item(hosts=0, gpus=0)[-2:] == ["fourth", "last"]


def test_a_failure_comes_at_every_use_with_the_line_that_asked(
    hosts: HostMesh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    procs = hosts.spawn_procs(bootstrap=fails)
    members: Any = procs.spawn("member", Member)
    answer, stopped = members.tell.call("word"), members.stop()
    error = procs.initialized.exception(_PATIENCE_S)
    assert isinstance(error, SpawnError) and "no such licence" in str(error)
    assert procs.initialized.exception(_PATIENCE_S) is error is answer.exception(_PATIENCE_S)
    assert stopped.exception(_PATIENCE_S) is error
    (note,) = error.__notes__
    assert note.startswith(f"the procs were asked for at {__file__}:")
    for use in (
        lambda: procs.spawn("member", Member),
        lambda: members.tell.call("word").get(_PATIENCE_S),
        lambda: members.slice(hosts=0).tell.call_one("word").get(_PATIENCE_S),
        lambda: members.initialized.get(_PATIENCE_S),
        lambda: procs.to_table(),
        lambda: pickle.dumps(members),
    ):
        with pytest.raises(SpawnError) as caught:
            use()
        assert caught.value is error
    assert members.tell.options(on_error="collect").call("word").get(_PATIENCE_S).failures().keys()
    assert asyncio.run(awaited(procs)) is error
    end_launches()
    assert caplog.records == []


async def awaited(procs: ProcMesh) -> BaseException | None:
    with pytest.raises(SpawnError) as caught:
        await asyncio.wait_for(procs.initialized, _PATIENCE_S)
    return caught.value


def test_a_failure_that_nobody_has_seen_is_logged_once(hosts: HostMesh, caplog: pytest.LogCaptureFixture) -> None:
    procs = hosts.slice(hosts=0).spawn_procs(bootstrap=fails)
    members = procs.spawn("member", Member)
    members.tell.broadcast("word")
    wait_until("the failure", failed(procs))
    assert caplog.records == []
    end_launches()  # as at the end of the program
    del procs, members
    gc.collect()
    end_launches()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "no such licence" in record.getMessage()
    assert f"{__file__}:" in record.getMessage()


@pytest.mark.parametrize("kind", ["call", "call_one"])
def test_a_failure_that_a_call_raises_is_not_logged(
    hosts: HostMesh, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    procs = hosts.slice(hosts=0).spawn_procs(bootstrap=fails)
    tell = procs.spawn("member", Member).tell
    with pytest.raises(SpawnError, match="no such licence"):
        getattr(tell, kind)("word").get(_PATIENCE_S)
    end_launches()
    assert caplog.records == []


def test_a_mesh_that_is_dropped_while_it_starts_is_stopped(
    hosts: HostMesh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pid = tmp_path / "pid"

    def tells_and_waits() -> None:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(pid)
        threading.Event().wait()

    procs = hosts.slice(hosts=0).spawn_procs(bootstrap=tells_and_waits)
    wait_until("the bootstrap", pid.exists)
    del procs
    gc.collect()
    wait_until("the end of the proc", lambda: not Path(f"/proc/{pid.read_text()}").exists())
    assert caplog.records == []
    # One of which something is asked lives on.
    gate = tmp_path / "gate"
    hosts.slice(hosts=0).spawn_procs(bootstrap=waits_for(gate)).spawn("member", Member).tell.broadcast("word")
    answer = hosts.slice(hosts=0).spawn_procs(bootstrap=waits_for(gate)).spawn("member", Member).tell.call_one("word")
    gc.collect()
    gate.touch()
    assert answer.get(_PATIENCE_S) == ["", "word"]
    hosts.stop().get(_PATIENCE_S)


def test_procs_are_stopped_while_they_start(hosts: HostMesh, tmp_path: Path) -> None:
    procs = hosts.spawn_procs(bootstrap=waits_for(tmp_path / "never"))
    waiting = procs.spawn("member", Member).tell.call("word")
    begun_s = time.monotonic()
    procs.stop("not needed").get(_PATIENCE_S)
    error = procs.initialized.exception(_PATIENCE_S)
    assert isinstance(error, SpawnError) and waiting.exception(_PATIENCE_S) is error
    assert time.monotonic() - begun_s < _PATIENCE_S / 2


def test_actors_start_procs_in_the_same_way(hosts: HostMesh, tmp_path: Path) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        starter = procs.spawn("starter", Starter)
        early, answers = starter.start.call_one(str(tmp_path / "gate")).get(_PATIENCE_S)
        assert early and answers == [["hello", "there"]] * 2
        assert "it was stopped while it started: they are not needed" in starter.stop_early.call_one().get(_PATIENCE_S)
