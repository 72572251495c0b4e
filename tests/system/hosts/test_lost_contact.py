"""A program that lost contact with its allocation was given up there: every later use says so, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, AllocationError, ProcDied, endpoint
from monarch_hpc.actor import shutdown_context
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.attach.attach import Attachment, join
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.node import Node
from tests.system.support.first_host import allocation, named_allocation

_PATIENCE_S = 60.0
_PROMPT_S = 40.0
"""More than any of the errors takes on a busy machine, and less than a wait that runs into a deadline."""


class Echo(Actor):
    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def wait_for(self, path: Path, value: int) -> int:
        path.with_name("begun").touch()
        wait_until("the file", path.exists)
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def _join_and_be_dismissed(node: Node, directory: Path) -> Attachment:
    """As `join`, and the head says that it knows this process as lost before the program has asked for anything."""
    attachment = join(node, directory)
    wait_until("the goodbye", lambda: attachment.channel.error is not None)
    return attachment


def test_each_use_of_an_allocation_that_gave_the_program_up_says_so_until_it_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure]
) -> None:
    config = load({"procs.stop_s": 1.0, "agent.grace_s": 1.0}).config
    with open_local(2, config, tmp_path / "demo") as directory, contextlib.ExitStack() as after:
        after.callback(Controller.close_any)
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
        hosts = monarch_hpc.hosts()
        procs = hosts.spawn_procs(name="mesh")
        echo = procs.spawn("echo", Echo)
        assert list(echo.echo.call(1).get(_PATIENCE_S).values()) == [1, 1]
        controller = Controller.instance()
        (tenancy,) = controller.tenancies.all()
        head = tenancy.head
        assert head is not None
        controller.engine.call_soon(lambda: head.give_up("the wire was cut"))
        wait_until("the loss", lambda: controller.tenancies.get(tenancy.allocation) is None)
        wait_until("the report of both deaths", lambda: len(faults) == 2)
        begun_s = time.monotonic()
        cause = r"the allocation demo is gone or out of reach: .*the wire was cut"
        again = re.escape("start the program again, or call shutdown_context() and begin anew")
        for told_while_asking in (False, True):
            if told_while_asking:
                monkeypatch.setattr("monarch_hpc.mesh.program.allocations.tenancy.join", _join_and_be_dismissed)
            with pytest.raises(ActorDied, match=cause):
                echo.slice(hosts=0).echo.call_one(2).get(_PATIENCE_S)
            with pytest.raises(ProcDied, match=cause):
                procs.spawn("other", Echo)
            with pytest.raises(RuntimeError, match=f"{cause}.*; {again}"):
                hosts.spawn_procs()
            with pytest.raises(
                AllocationError, match=f"demo.*contact with it was lost, .*: {again}; 'monarch-hpc status'"
            ):
                monarch_hpc.hosts()
            hosts.stop().get(_PATIENCE_S)
            procs.stop().get(_PATIENCE_S)
        assert time.monotonic() - begun_s < _PROMPT_S
        monkeypatch.setattr("monarch_hpc.mesh.program.allocations.tenancy.join", join)
        shutdown_context().get(_PATIENCE_S)
        with monarch_hpc.hosts().spawn_procs() as fresh:
            assert list(fresh.spawn("echo", Echo).echo.call(3).get(_PATIENCE_S).values()) == [3, 3]


def _cut(controller: Controller) -> None:
    """End the channels to all hosts and procs, and wait until the program has noticed."""
    runtime = Runtime.current
    assert runtime is not None

    def cut() -> None:
        for channel in list(runtime.node.channels.values()):
            channel.give_up("the wire was cut")

    controller.engine.call_soon(cut)
    wait_until("the loss", controller.tenancies.all, accept=lambda left: not left)


@pytest.mark.parametrize("held", [True, False])
def test_a_program_that_has_attached_is_not_moved_to_this_machine_and_takes_back_what_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure], held: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with allocation(tmp_path, run__on_loss="hold" if held else "stop"), contextlib.ExitStack() as after:
        after.callback(Controller.close_any)
        monarch_hpc.attach("dev")
        echo = monarch_hpc.hosts().spawn_procs(per_host={"p": 1}, name="procs").spawn("echo", Echo)
        pids = list(echo.pid.call().get(_PATIENCE_S).values())
        under_way = echo.slice(hosts=0).wait_for.call_one(tmp_path / "go", 5)
        controller = Controller.instance()
        (tenancy,) = controller.tenancies.all()
        wait_until("the call has begun", (tmp_path / "begun").exists)  # or it is lost with the wire
        _cut(controller)
        with pytest.raises(ActorDied, match="the wire was cut"):
            under_way.get(_PATIENCE_S)
        with pytest.raises(AllocationError, match=r"dev.*contact with it was lost") as raised:
            monarch_hpc.hosts()
        assert (f"takeover({tenancy.run!r}, 'dev')" in str(raised.value)) is held
        shutdown_context().get(_PATIENCE_S)
        (tmp_path / "go").touch()
        if not held:
            # The second while the head still waits for the end of its procs.
            gone = rf"there is no run {tenancy.run} to take over|run {tenancy.run} is over"
            with pytest.raises(AllocationError, match=gone):
                monarch_hpc.takeover(tenancy.run)
            return
        taken = monarch_hpc.takeover(tenancy.run)
        answers = [(answer.endpoint, answer.rank, answer.get(_PATIENCE_S)) for answer in taken.unfetched]
        assert answers == [("wait_for", 0, 5)]
        again = taken.meshes["echo"]
        assert isinstance(again, monarch_hpc.ActorMesh)
        assert list(again.pid.call().get(_PATIENCE_S).values()) == pids
        taken.meshes["procs"].stop().get(_PATIENCE_S)


def test_of_two_allocations_that_were_lost_each_names_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with contextlib.ExitStack() as after:
        for name in ("dev", "more"):
            after.enter_context(named_allocation(name, tmp_path, 1, {"run__on_loss": "hold"}))
        after.callback(Controller.close_any)
        pids = {}
        for name in ("dev", "more"):
            procs = monarch_hpc.attach(name).spawn_procs(name=f"procs of {name}")
            (pids[name],) = procs.spawn("echo", Echo).pid.call().get(_PATIENCE_S).values()
        controller = Controller.instance()
        runs = {tenancy.name: tenancy.run for tenancy in controller.tenancies.all()}
        assert len({*runs.values()}) == 2
        _cut(controller)
        for asked, name in ((None, "dev"), ("more", "more"), ("dev", "dev"), (None, "dev")):
            with pytest.raises(AllocationError, match=rf"{name}.*contact with it was lost") as raised:
                monarch_hpc.hosts(asked)
            named = re.findall(r"takeover\('(\w+)', '(\w+)'\)", str(raised.value))
            assert named == [(runs[name], name)], f"hosts({asked!r})"
        shutdown_context().get(_PATIENCE_S)
        for name, run in runs.items():
            taken = monarch_hpc.takeover(run, name)
            again = taken.meshes["echo"]
            assert isinstance(again, monarch_hpc.ActorMesh)
            assert list(again.pid.call().get(_PATIENCE_S).values()) == [pids[name]]
            taken.meshes[f"procs of {name}"].stop().get(_PATIENCE_S)
