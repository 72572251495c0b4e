"""Endpoints: the threads that they run on, their timeouts, explicit ports; and the ends of actors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0
_LIMIT_S = 2.0
"""Of endpoints: longer than one that does nothing takes on a busy machine."""


def here() -> tuple[int, bool]:
    """Name of the current thread, and whether it has a running event loop."""
    return threading.get_ident(), asyncio._get_running_loop() is not None


class Blocking(Actor):
    """An actor with functions only."""

    def __init__(self) -> None:
        self.born = here()

    @endpoint
    def places(self) -> list[tuple[int, bool]]:
        return [self.born, here()]

    @endpoint(timeout=_LIMIT_S)
    def drag(self, seconds: float) -> str:
        threading.Event().wait(seconds)
        return "done"


class Waiting(Actor):
    """An actor with coroutines only."""

    def __init__(self) -> None:
        self.born = here()
        self.gate = asyncio.Event()
        self.task = asyncio.create_task(asyncio.sleep(0))

    @endpoint
    async def places(self) -> list[tuple[int, bool]]:
        return [self.born, here()]

    @endpoint(timeout=_LIMIT_S)
    async def drag(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @concurrent_endpoint
    async def wait(self) -> str:
        await self.gate.wait()
        return "passed"

    @endpoint
    async def open(self) -> None:
        self.gate.set()


class Mixed(Actor):
    """An actor with both, which logs its events to a file."""

    def __init__(self, path: str = "", *, cleans: bool = True) -> None:
        self.born = here()
        self.path = path
        self.log: list[str] = []
        if not cleans:
            self.__cleanup__ = None  # type: ignore[method-assign, assignment]

    def note(self, text: str) -> None:
        self.log.append(text)
        if self.path:
            with open(self.path, "a") as file:
                file.write(f"{text}\n")

    @endpoint
    def block(self, seconds: float = 0.0) -> tuple[int, bool]:
        threading.Event().wait(seconds)
        self.note("block")
        return here()

    @endpoint
    async def wait(self, seconds: float = 0.0) -> tuple[int, bool]:
        self.note("wait")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.note("cancelled")
            raise
        self.note("waited")
        return here()

    @concurrent_endpoint
    async def wait_aside(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(seconds)
        self.note("aside over")

    @endpoint
    def fail(self) -> None:
        raise ValueError("as asked")

    @endpoint
    async def fail_later(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("as asked, later")

    @endpoint
    def noted(self) -> list[str]:
        return self.log

    def __cleanup__(self, error: BaseException | None) -> None:
        self.note(f"cleanup {error!r}")

    def __del__(self) -> None:
        self.note("deleted")


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def proc(hosts: HostMesh) -> ProcMesh:
    """One proc for all tests. The first call starts UCX and the event loop in this process, which stay."""
    procs = hosts.slice(hosts=0).spawn_procs()
    settle(procs)
    monarch_hpc.this_proc().spawn("waiting", Waiting).places.call_one().get(_PATIENCE_S)
    return procs


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_functions_run_on_one_thread_where_no_loop_is_seen(proc: ProcMesh) -> None:
    actor = proc.spawn("blocking", Blocking)
    born, called = actor.places.call_one().get(_PATIENCE_S)
    assert born == called and not called[1]


def test_coroutines_run_on_a_loop_of_their_actor_with_its_constructor(proc: ProcMesh) -> None:
    actors = [proc.spawn("waiting", Waiting) for _ in range(2)]
    places = [actor.places.call_one().get(_PATIENCE_S) for actor in actors]
    assert [set(pair) for pair in places] == [{(pair[0][0], True)} for pair in places]
    assert places[0] != places[1]


def test_a_class_may_have_both_which_run_on_one_thread(proc: ProcMesh) -> None:
    actor = proc.spawn("mixed", Mixed)
    blocked, waited = actor.block.call_one().get(_PATIENCE_S), actor.wait.call_one().get(_PATIENCE_S)
    assert not blocked[1] and waited[1] and blocked[0] == waited[0]


def test_messages_are_handled_one_at_a_time_unless_an_endpoint_is_concurrent(proc: ProcMesh) -> None:
    actor = proc.spawn("mixed", Mixed)
    futures = [actor.wait.call_one(0.02), actor.block.call_one(), actor.wait.call_one(0.0)]
    for future in futures:
        future.get(_PATIENCE_S)
    assert actor.noted.call_one().get(_PATIENCE_S) == ["wait", "waited", "block", "wait", "waited"]
    waiting = proc.spawn("waiting", Waiting)
    passing = [waiting.wait.call_one() for _ in range(3)]
    waiting.open.call_one().get(_PATIENCE_S)
    assert [future.get(_PATIENCE_S) for future in passing] == ["passed"] * 3


@pytest.mark.parametrize("cls", [Blocking, Waiting])
def test_an_endpoint_may_have_a_time_limit(proc: ProcMesh, cls: type[Blocking] | type[Waiting]) -> None:
    actor = proc.spawn("hurried", cls)
    begun_s = time.monotonic()
    slow = actor.drag.call_one(2 * _LIMIT_S)
    with pytest.raises(TimeoutError, match=r"endpoint drag took longer than its timeout of 2 s"):
        slow.get(_PATIENCE_S)
    assert time.monotonic() - begun_s < 30.0
    assert actor.drag.call_one(0.0).get(_PATIENCE_S) == "done"


def test_an_actor_that_is_stopped_cleans_up_after_its_backlog(proc: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    actor = proc.spawn("mixed", Mixed, str(path))
    aside = actor.wait_aside.call_one(60.0)
    actor.block.broadcast(0.05)
    last = actor.wait.call_one(0.0)
    actor.stop().get(_PATIENCE_S)
    assert lines(path) == ["block", "wait", "waited", "aside over", "cleanup None", "deleted"]
    assert last.done() and aside.done()
    with pytest.raises(ActorDied, match="it was stopped"):
        actor.block.call_one().get(_PATIENCE_S)
    actor.stop().get(_PATIENCE_S)  # a second stop is not an error


def test_the_end_of_a_proc_cancels_what_runs_refuses_what_waits_and_cleans_up(hosts: HostMesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    procs = hosts.slice(hosts=0).spawn_procs()
    actor = procs.spawn("mixed", Mixed, str(path))
    running = actor.wait.call_one(600.0)
    queued = actor.block.call_one()
    wait_until("the coroutine", lambda: lines(path) == ["wait"])
    begun_s = time.monotonic()
    procs.stop().get(_PATIENCE_S)
    assert time.monotonic() - begun_s < 30.0
    for future in (running, queued):
        with pytest.raises(ActorDied, match="it was stopped"):
            future.get(_PATIENCE_S)
    assert lines(path) == ["wait", "cancelled", "cleanup None", "deleted"]


def test_code_that_cannot_be_cancelled_does_not_hold_up_the_end_of_its_proc(hosts: HostMesh) -> None:
    procs = hosts.slice(hosts=0).spawn_procs()
    procs.spawn("blocking", Blocking).drag.broadcast(600.0)
    begun_s = time.monotonic()
    procs.stop().get(_PATIENCE_S)
    assert time.monotonic() - begun_s < 30.0


@pytest.mark.parametrize("endpoint_name", ["fail", "fail_later"])
def test_a_failure_that_no_call_reports_ends_the_actor_and_is_told(
    proc: ProcMesh, faults: list[MeshFailure], tmp_path: Path, endpoint_name: str
) -> None:
    path = tmp_path / "log"
    actor = proc.spawn("mixed", Mixed, str(path))
    with pytest.raises(ValueError, match="as asked"):
        getattr(actor, endpoint_name).call_one().get(_PATIENCE_S)  # this failure is reported to its caller
    getattr(actor, endpoint_name).broadcast()
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert failure.mesh_name == "mixed" and f"endpoint {endpoint_name} raised ValueError: as asked" in failure.cause
    assert "actor mixed{} on local0 died: endpoint" in failure.report() and "Traceback" in failure.report()
    with pytest.raises(ActorDied, match=f"endpoint {endpoint_name} raised ValueError: as asked"):
        actor.block.call_one().get(_PATIENCE_S)
    wait_until("the end", lambda: lines(path), accept=lambda seen: seen[-1:] == ["deleted"])
    assert lines(path)[0].startswith("cleanup ValueError('as asked")
    # The proc still works.
    assert proc.spawn("next", Blocking).places.call_one().get(_PATIENCE_S)


def test_a_proc_that_dies_while_nobody_calls_it_is_a_failure(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        actor = procs.spawn("victim", Blocking)
        actor.places.call_one().get(_PATIENCE_S)
        os.kill(procs.procs[0].pid, signal.SIGKILL)
        (failure,) = wait_until("the failure", lambda: list(faults))
        assert (failure.mesh_name, failure.rank) == ("victim", 0) and "signal 9" in failure.cause


def test_actors_of_the_program_itself_live_in_its_process(proc: ProcMesh, tmp_path: Path) -> None:
    path = tmp_path / "log"
    actor = monarch_hpc.this_proc().spawn("mine", Mixed, str(path))
    blocked = actor.block.call_one().get(_PATIENCE_S)
    assert blocked[0] in [thread.ident for thread in threading.enumerate()]
    assert actor.wait.call_one().get(_PATIENCE_S)[1]
    asker = proc.spawn("asker", Asker)
    assert asker.ask.call_one(actor).get(_PATIENCE_S) == ["block", "wait", "waited"]
    actor.stop()
    wait_until("the end", lambda: lines(path), accept=lambda seen: seen[-1:] == ["deleted"])


class Asker(Actor):
    """Calls an actor that it gets as an argument."""

    @endpoint
    def ask(self, other: ActorMesh[Mixed]) -> list[str]:
        return list(other.noted.call_one().get(_PATIENCE_S))


class Desk(Actor):
    """Answers through explicit response ports."""

    def __init__(self) -> None:
        self.waiting: list[ResponsePort] = []

    @endpoint(explicit_response_port=True)
    def queue(self, port: ResponsePort, number: int) -> str:
        self.waiting.append(port)
        return "no answer"

    @endpoint(explicit_response_port=True)
    async def at_once(self, port: ResponsePort, number: int) -> None:
        port.send(number)
        port.send(number + 1)

    @endpoint(explicit_response_port=True)
    def refuse(self, port: ResponsePort) -> None:
        port.exception(KeyError("refused"))

    @endpoint(explicit_response_port=True)
    def forget(self, port: ResponsePort) -> None:
        """Drop the port without an answer."""

    @endpoint(explicit_response_port=True)
    def fail(self, port: ResponsePort, *, late: bool) -> None:
        if late:
            port.send("answered")
        raise ValueError("as asked")

    @endpoint
    def serve(self) -> int:
        waiting, self.waiting = self.waiting, []
        for number, port in enumerate(waiting):
            threading.Thread(target=port.send, args=(number,)).start()
        return len(waiting)


def test_an_endpoint_with_a_port_answers_when_it_likes(proc: ProcMesh) -> None:
    desk = proc.spawn("desk", Desk)
    with pytest.raises(TypeError, match=r"queue\(self, number: 'int'\).*missing a required argument: 'number'"):
        desk.queue.call_one()
    queued = [desk.queue.call_one(number) for number in range(3)]
    desk.queue.broadcast(3)
    assert desk.at_once.call_one(5).get(_PATIENCE_S) == 5
    assert not any(future.done() for future in queued)
    assert desk.serve.call_one().get(_PATIENCE_S) == 4
    assert [future.get(_PATIENCE_S) for future in queued] == [0, 1, 2]
    with pytest.raises(KeyError, match="refused"):
        desk.refuse.call_one().get(_PATIENCE_S)


def test_a_port_that_is_dropped_is_an_answer(proc: ProcMesh) -> None:
    desk = proc.spawn("desk", Desk)
    with pytest.raises(PortClosed, match=r"response port of forget of actor desk.*dropped without an answer"):
        desk.forget.call_one().get(_PATIENCE_S)
    queued = desk.queue.call_one(1)
    desk.stop()
    with pytest.raises(ActorDied, match=r"desk.* died: it was stopped"):
        queued.get(_PATIENCE_S)


def test_what_is_raised_after_the_answer_fails_the_actor(proc: ProcMesh, faults: list[MeshFailure]) -> None:
    desk = proc.spawn("desk", Desk)
    with pytest.raises(ValueError, match="as asked"):
        desk.fail.call_one(late=False).get(_PATIENCE_S)
    assert faults == []
    assert desk.fail.call_one(late=True).get(_PATIENCE_S) == "answered"
    (failure,) = wait_until("the failure", lambda: list(faults))
    assert "endpoint fail raised ValueError: as asked" in failure.cause


class Hidden(Actor):
    @endpoint
    def stop(self) -> None:
        """Has no parameter for the port."""


def test_an_endpoint_that_the_mesh_would_hide_is_refused(proc: ProcMesh) -> None:
    with pytest.raises(
        ValueError, match="a mesh of actors has stop itself: give these endpoints of Hidden other names"
    ):
        proc.spawn("hidden", Hidden)
