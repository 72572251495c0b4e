"""Cancelled calls: queued ones do not run, coroutines are cancelled, and functions can check for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, CallTimeout, HostMesh, ProcMesh, concurrent_endpoint, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_SOON_S = 0.2
"""A time limit that is meant to expire."""

_MIB = 2**20
_WINDOW_BYTES = 8 * _MIB

_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    """Return a named event of this process."""
    return _gates.setdefault(name, threading.Event())


class Worker(Actor):
    """Logs its calls, and whether their callers still wait."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    def note(self, text: str) -> str:
        self.log.append(text)
        return text

    @endpoint
    def take(self, data: np.ndarray) -> None:
        self.log.append(f"took {data.nbytes // _MIB}")

    @endpoint
    def block(self, name: str) -> str:
        """Wait for the gate; then log whether the caller still waits."""
        self.log.append(f"begin {name}")
        assert gate(name).wait(_PATIENCE_S)
        self.log.append(f"end {name} {monarch_hpc.context().cancelled}")
        return name

    @endpoint
    def block_until_cancelled(self, name: str) -> None:
        gate(name).set()
        self.log.append("begin")
        wait_until("the caller gives up", lambda: monarch_hpc.context().cancelled, _PATIENCE_S)
        self.log.append("cancelled")

    @endpoint
    async def wait(self, seconds: float = 60.0, name: str = "") -> str:
        return await self._wait(seconds, name)

    @concurrent_endpoint
    async def wait_aside(self, seconds: float = 60.0, name: str = "") -> str:
        return await self._wait(seconds, name)

    @endpoint
    def wait_wrapped(self, seconds: float = 60.0, name: str = "") -> Coroutine[object, object, str]:
        return self._wait(seconds, name)

    async def _wait(self, seconds: float, name: str) -> str:
        self.log.append("wait")
        gate(name).set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.log.append(f"cancelled {monarch_hpc.context().cancelled}")
            raise
        return "waited"

    @endpoint
    def left(self) -> float | None:
        return monarch_hpc.context().deadline_left_s

    @endpoint
    async def left_in_a_coroutine(self) -> float | None:
        return monarch_hpc.context().deadline_left_s

    @endpoint
    def ask(self, other: ActorMesh[Worker], name: str, hold: str = "") -> str:
        """Call another actor without a time limit: the call inherits this one's. Answer once *hold* opens."""
        try:
            other.block.call_one(name).get()
        except CallTimeout as late:
            self.log.append("late")
            assert not hold or gate(hold).wait(_PATIENCE_S)
            return str(late)
        return "answered"

    @concurrent_endpoint
    async def noted(self) -> list[str]:
        return self.log


class Opener(Actor):
    @endpoint
    def open(self, name: str) -> None:
        gate(name).set()

    @endpoint
    def pass_through(self, name: str) -> None:
        assert gate(name).wait(_PATIENCE_S)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    # Large messages to both procs are to wait for their mailboxes, not to share memory.
    transport = replace(loaded.transport, mailbox_bytes=_WINDOW_BYTES, cast_shared_bytes=1 << 30)
    with controlled(replace(loaded, transport=transport), 1) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.slice(hosts=0).spawn_procs(per_host={"gpus": 2})
    settle(procs)
    # The program's event loop stays.
    monarch_hpc.this_proc().spawn("warm", Worker).noted.call_one().get(_PATIENCE_S)
    return procs


@pytest.fixture(params=["remote", "local"])
def place(request: pytest.FixtureRequest, procs: ProcMesh) -> ProcMesh:
    """A proc of another process, or of this one."""
    return procs.slice(gpus=0) if request.param == "remote" else monarch_hpc.this_proc()


@pytest.fixture
def worker(place: ProcMesh) -> Iterator[ActorMesh[Worker]]:
    mesh = place.spawn("worker", Worker)
    noted(mesh)
    yield mesh
    mesh.stop().get(_PATIENCE_S)


def noted(worker: ActorMesh[Worker], *expected: str) -> list[str]:
    """Return the log of a worker, once it is as expected; even a concurrent endpoint waits until a function ends."""
    return wait_until(
        "its notes",
        lambda: worker.noted.call_one().get(_PATIENCE_S),
        _PATIENCE_S,
        accept=lambda seen: not expected or seen == list(expected),
    )


def open_gate(place: ProcMesh, name: str) -> None:
    opener = place.spawn("opener", Opener)
    opener.open.call_one(name).get(_PATIENCE_S)
    opener.stop().get(_PATIENCE_S)


def until_open(place: ProcMesh, name: str) -> None:
    opener = place.spawn("opener", Opener)
    opener.pass_through.call_one(name).get(_PATIENCE_S)
    opener.stop().get(_PATIENCE_S)


def test_a_call_that_has_not_begun_never_runs(place: ProcMesh, worker: ActorMesh[Worker]) -> None:
    running = worker.block.call_one("queued")
    calls = [worker.note.call_one(str(number)) for number in range(6)]
    worker.note.broadcast("cast")
    for number in (4, 1, 0):
        assert calls[number].cancel() and calls[number].cancelled()
    open_gate(place, "queued")
    assert running.get(_PATIENCE_S) == "queued"
    assert [calls[number].get(_PATIENCE_S) for number in (2, 3, 5)] == ["2", "3", "5"]
    noted(worker, "begin queued", "end queued False", "2", "3", "5", "cast")
    wait_until("the answers", lambda: current_runtime()._slots, accept=lambda slots: not slots)


def test_the_credit_of_cancelled_calls_is_given_back_while_the_actor_is_busy(
    place: ProcMesh, worker: ActorMesh[Worker]
) -> None:
    running = worker.block.call_one("credit")
    data = np.zeros(_MIB, np.uint8)
    for _ in range(5):  # five times the capacity of the mailbox
        calls = [worker.take.call_one(data) for _ in range(_WINDOW_BYTES // _MIB - 2)]
        for call in calls:
            call.cancel()
    assert not running.done()
    open_gate(place, "credit")
    running.get(_PATIENCE_S)
    noted(worker, "begin credit", "end credit False")


@pytest.mark.parametrize("name", ["wait", "wait_aside", "wait_wrapped"])
def test_a_running_coroutine_is_cancelled(place: ProcMesh, worker: ActorMesh[Worker], name: str) -> None:
    waiting = getattr(worker, name).call_one(60.0, name)
    until_open(place, name)
    assert waiting.cancel()
    assert worker.note.call_one("next").get(_PATIENCE_S) == "next"
    wait_until(
        "its notes", lambda: sorted(noted(worker)), accept=lambda seen: seen == ["cancelled True", "next", "wait"]
    )


def test_a_running_function_can_ask_and_goes_on(
    place: ProcMesh, worker: ActorMesh[Worker], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    call = worker.block_until_cancelled.call_one(name)
    until_open(place, name)
    call.cancel()
    assert worker.note.call_one("next").get(_PATIENCE_S) == "next"
    # The next call is not seen as cancelled.
    assert worker.block.call_one(name).get(_PATIENCE_S) == name
    noted(worker, "begin", "cancelled", "next", f"begin {name}", f"end {name} False")


def test_a_call_whose_time_is_over_is_cancelled_too(place: ProcMesh, worker: ActorMesh[Worker]) -> None:
    running = worker.block.call_one("late")
    late = worker.note.options(timeout=_SOON_S).call_one("late")
    with pytest.raises(CallTimeout, match=r"no answer within 0\.2 s from actor worker"):
        late.get(_PATIENCE_S)
    open_gate(place, "late")
    running.get(_PATIENCE_S)
    noted(worker, "begin late", "end late False")
    with pytest.raises(CallTimeout):
        worker.wait.options(timeout=10 * _SOON_S).call_one().get(_PATIENCE_S)
    # On a busy machine it may not have begun by then; then it never does.
    assert noted(worker)[2:] in (["wait", "cancelled True"], ["wait", "cancelled False"], ["wait"], [])


def test_an_answered_call_is_not_cancelled(worker: ActorMesh[Worker]) -> None:
    call = worker.note.call_one("done")
    assert call.get(_PATIENCE_S) == "done"
    assert not call.cancel() and call.get() == "done"
    noted(worker, "done")


def test_cancelling_races_with_answers_and_nothing_is_lost(worker: ActorMesh[Worker]) -> None:
    expected = 0
    for number in range(300):
        calls = [worker.note.call_one(f"{number}"), worker.wait_aside.call_one(0.0), worker.note.call_one("x")]
        cancelled = [call.cancel() for call in calls[:2]]
        assert calls[2].get(_PATIENCE_S) == "x"
        expected += 1
        for call, gone in zip(calls, cancelled, strict=False):
            if not gone:
                call.get(_PATIENCE_S)
    notes = noted(worker)
    assert notes.count("x") == expected
    assert all(notes.count(f"{number}") <= 1 for number in range(300))
    wait_until("the answers", lambda: current_runtime()._slots, accept=lambda slots: not slots)


def test_who_handles_a_call_knows_how_much_time_is_left(worker: ActorMesh[Worker]) -> None:
    for name in ("left", "left_in_a_coroutine"):
        called = getattr(worker, name)
        assert called.call_one().get(_PATIENCE_S) is None
        left_s = called.options(timeout=1000.0).call_one().get(_PATIENCE_S)
        assert 1000.0 - _PATIENCE_S < left_s <= 1000.0
        assert called.call_one().get(_PATIENCE_S) is None
    assert monarch_hpc.context().deadline_left_s is None and not monarch_hpc.context().cancelled


def test_calls_made_for_a_call_end_with_its_time(procs: ProcMesh) -> None:
    first, second = (procs.slice(gpus=gpu).spawn("worker", Worker) for gpu in range(2))
    for mesh in (first, second):
        noted(mesh)
    asking = first.ask.options(timeout=5.0).call_one(second, "nested", "asked")
    behind = second.note.call_one("behind")
    with pytest.raises(CallTimeout):
        asking.get(_PATIENCE_S)
    open_gate(procs.slice(gpus=0), "asked")
    noted(first, "late")
    open_gate(procs.slice(gpus=1), "nested")
    assert behind.get(_PATIENCE_S) == "behind"
    # A call without a limit has none, even after a call with one.
    again = first.ask.call_one(second, "nested")
    assert again.get(_PATIENCE_S) == "answered"


def test_a_mesh_call_is_cancelled_on_all_ranks(procs: ProcMesh) -> None:
    workers = procs.spawn("worker", Worker)
    workers.noted.call().get(_PATIENCE_S)
    for call in (workers.wait.call(), workers.wait.fold(len)):
        call.cancel()
    stream = workers.wait.stream()
    for future in stream:
        future.cancel()
    notes = workers.note.call("next").get(_PATIENCE_S)
    assert list(notes.values()) == ["next"] * 2


def test_time_held_back_by_a_full_mailbox_counts(place: ProcMesh, worker: ActorMesh[Worker]) -> None:
    running = worker.block.call_one("full")
    data = np.zeros(_MIB, np.uint8)
    num = _WINDOW_BYTES // _MIB - 1
    for _ in range(num):
        worker.take.broadcast(data)
    held = worker.take.options(timeout=_SOON_S).call_one(data)
    with pytest.raises(CallTimeout) as caught:
        held.get(_PATIENCE_S)
    assert caught.value.__notes__ == ["not sent to ranks 0: their mailboxes were full all the time"]
    with pytest.raises(CallTimeout, match=r"no answer within 0\.2 s from actor worker"):
        worker.take.options(timeout=_SOON_S).broadcast(data)
    runtime = current_runtime()
    assert len(runtime._slots) == 1  # the blocking call's
    open_gate(place, "full")
    running.get(_PATIENCE_S)
    # Cancelled calls neither block others nor answer late.
    worker.take.options(timeout=_PATIENCE_S).call_one(data).get(_PATIENCE_S)
    assert noted(worker) == ["begin full", "end full False", *["took 1"] * (num + 1)]


def test_one_full_mailbox_delays_no_other_rank(procs: ProcMesh) -> None:
    workers = procs.spawn("worker", Worker)
    workers.noted.call().get(_PATIENCE_S)
    data = np.zeros(_MIB, np.uint8)
    first = workers.slice(gpus=0)
    running = first.block.call_one("one")
    for _ in range(_WINDOW_BYTES // _MIB - 1):
        first.take.broadcast(data)
    partial = workers.take.options(timeout=25 * _SOON_S, on_error="collect").call(data).get(_PATIENCE_S)
    assert [point.rank for point, _ in partial.failures().items()] == [0]
    noted(workers.slice(gpus=1), "took 1")
    open_gate(procs.slice(gpus=0), "one")
    running.get(_PATIENCE_S)


def test_a_coroutine_that_is_held_back_gives_up_too(procs: ProcMesh) -> None:
    worker = procs.slice(gpus=0).spawn("worker", Worker)
    noted(worker)
    running = worker.block.call_one("loop")
    data = np.zeros(_MIB, np.uint8)

    async def main() -> None:
        for _ in range(_WINDOW_BYTES // _MIB - 1):
            worker.take.broadcast(data)
        with pytest.raises(CallTimeout):
            await worker.take.options(timeout=0.01).call_one(data)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.take.call_one(data).as_asyncio(), 0.01)

    asyncio.run(main())
    open_gate(procs.slice(gpus=0), "loop")
    running.get(_PATIENCE_S)
    assert noted(worker).count("took 1") == _WINDOW_BYTES // _MIB


class Slow:
    """Takes longer to pickle than the time limit of its call."""

    def __reduce__(self) -> tuple[object, ...]:
        current_runtime().engine.wait(lambda: False, _SOON_S)
        return Slow, ()


def test_the_time_may_be_over_before_anything_is_sent(procs: ProcMesh) -> None:
    workers = procs.spawn("worker", Worker)
    workers.noted.call().get(_PATIENCE_S)
    note = workers.note.options(timeout=_SOON_S / 10)
    text: Any = Slow()
    with pytest.raises(CallTimeout):
        note.call(text).get(_PATIENCE_S)
    for future in note.stream(text):
        with pytest.raises(CallTimeout):
            future.get(_PATIENCE_S)
    assert not any(workers.noted.call().get(_PATIENCE_S).values())
