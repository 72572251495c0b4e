"""Backpressure: a sender that outruns its receiver is slowed, memory stays bounded, and all other calls proceed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc import Actor, ActorDied, ActorMesh, DeliveryUnknown, HostMesh, ProcMesh, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.shape import Region
from monarch_hpc.testing import wait_until
from monarch_hpc.transport import credit
from monarch_hpc.transport.credit import PIECE_BYTES
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 120.0
_MIB = 2**20
_WINDOW_BYTES = 32 * _MIB
_SLACK_BYTES = 24 * _MIB
"""Memory beyond the window: one message in use, socket buffers, Python's own."""

_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    """Return a named event of this process."""
    return _gates.setdefault(name, threading.Event())


class Sink(Actor):
    """Takes messages once its gate is open."""

    def __init__(self) -> None:
        self.num = 0
        self.num_bytes = 0

    @endpoint
    def wait(self, name: str) -> None:
        gate(f"before {name}").set()
        assert gate(name).wait(_PATIENCE_S)

    @endpoint
    def take(self, data: np.ndarray) -> None:
        self.num += 1
        self.num_bytes += data.nbytes

    @endpoint
    def count(self, number: int) -> None:
        assert number == self.num
        self.num += 1

    @endpoint
    def taken(self) -> tuple[int, int]:
        return self.num, self.num_bytes

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Broken(Sink):
    """An actor whose constructor fails."""

    def __init__(self) -> None:
        raise ValueError("no")


class Opener(Actor):
    """Opens the gates of its proc, reports the calls that wait for them, and forwards calls."""

    @endpoint
    def reached(self, name: str) -> None:
        assert gate(f"before {name}").wait(_PATIENCE_S)

    @endpoint
    def open(self, name: str) -> None:
        gate(name).set()

    @endpoint
    def pass_on(self, way: list[ActorMesh[Opener]]) -> int:
        if not way:
            return 0
        return 1 + int(way[0].pass_on.call_one(way[1:]).get(_PATIENCE_S))

    @endpoint
    def pour(self, sink: ActorMesh[Sink], num: int) -> None:
        data = np.zeros(_MIB, np.uint8)
        for _ in range(num):
            sink.take.broadcast(data)

    @endpoint
    async def pour_from_a_coroutine(self, sink: ActorMesh[Sink], num: int) -> None:
        data = np.zeros(_MIB, np.uint8)
        for _ in range(num):
            sink.take.broadcast(data)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    config = replace(
        loaded,
        transport=replace(loaded.transport, mailbox_bytes=_WINDOW_BYTES),
        # Hosts whose heartbeats are held up are suspect, and stay so; on a busy machine all are for a moment.
        liveness=replace(loaded.liveness, heartbeat_s=0.1, suspect_s=0.4, dead_s=600.0),
    )
    with controlled(config) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.spawn_procs(per_host={"gpus": 1})
    settle(procs)
    return procs


@pytest.fixture
def first(procs: ProcMesh) -> ProcMesh:
    return procs.slice(hosts=0, gpus=0)


@pytest.fixture
def second(procs: ProcMesh) -> ProcMesh:
    return procs.slice(hosts=1, gpus=0)


def blocked_s(procs: ProcMesh) -> float:
    """Seconds for which calls to the only proc of *procs* have been blocked so far."""
    runtime = Runtime.current
    assert runtime is not None
    return runtime.node.channels[procs.procs[0].incarnation].blocked_s


def until_taken(sink: ActorMesh[Sink], num: int) -> None:
    """Wait until it has taken that many messages: other senders' messages may arrive after our query."""

    def taken() -> int:
        return int(sink.taken.call_one().get(_PATIENCE_S)[0])

    assert wait_until(f"{num} taken", taken, accept=lambda seen: seen >= num) == num


class Background(threading.Thread):
    """Sends to the only proc of *procs*, and counts its sends."""

    def __init__(self, procs: ProcMesh, step: Callable[[int], None], num: int) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self._procs = procs
        self._before_s = blocked_s(procs)
        self._step = step
        self._num = num
        self.start()

    def run(self) -> None:
        for number in range(self._num):
            self._step(number)
            self.done += 1

    def until_held(self) -> int:
        """Wait until it makes no progress; return the number of sends."""

        def held() -> tuple[bool, int]:
            return blocked_s(self._procs) > self._before_s + 0.1, self.done

        return wait_until("the sender is held back", held, accept=lambda seen: seen[0])[1]

    def finish(self) -> None:
        self.join(_PATIENCE_S)
        assert not self.is_alive(), f"held back after {self.done} of {self._num}"


class Memory:
    """Growth of the peak memory of some processes from now on."""

    def __init__(self, *pids: int) -> None:
        self._before = {pid: self._read(pid, "VmRSS") for pid in pids}
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # reset the peak

    def growth(self) -> list[int]:
        """Peak minus initial size of each process, in bytes."""
        return [self._read(pid, "VmHWM") - before for pid, before in self._before.items()]

    @staticmethod
    def _read(pid: int, field: str) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def states() -> list[object]:
    status = query_status(Path(os.environ[DIRECTORY_VARIABLE]), 60.0)
    return [host["state"] for host in status["hosts"]] if status else []


def test_600_mib_to_a_sleeper_grow_neither_side_by_more_than_the_window(first: ProcMesh) -> None:
    sink, opener = first.spawn("sink", Sink), first.spawn("opener", Opener)
    data = np.ones(_MIB, np.uint8)
    memory = Memory(os.getpid(), sink.pid.call_one().get(_PATIENCE_S))
    sink.wait.broadcast("sleeper")
    flood = Background(first, lambda _: sink.take.broadcast(data), 600)
    flood.until_held()
    opener.open.call_one("sleeper").get(_PATIENCE_S)
    flood.finish()
    assert sink.taken.call_one().get(_PATIENCE_S) == (600, 600 * _MIB)
    assert max(memory.growth()) < _WINDOW_BYTES + _SLACK_BYTES, memory.growth()


def test_a_flood_of_tiny_messages_is_bounded_and_keeps_its_order(first: ProcMesh) -> None:
    sink, opener = first.spawn("sink", Sink), first.spawn("opener", Opener)
    memory = Memory(os.getpid(), sink.pid.call_one().get(_PATIENCE_S))
    sink.wait.broadcast("tiny")
    flood = Background(first, lambda number: sink.count.broadcast(number), 100_000)
    held_at = flood.until_held()
    assert held_at < _WINDOW_BYTES / PIECE_BYTES
    assert max(memory.growth()) < _WINDOW_BYTES + _SLACK_BYTES, memory.growth()
    opener.open.call_one("tiny").get(_PATIENCE_S)
    flood.finish()
    assert sink.taken.call_one().get(_PATIENCE_S)[0] == 100_000
    assert max(memory.growth()) < _WINDOW_BYTES + _SLACK_BYTES, memory.growth()


def test_who_is_held_back_for_long_says_so(
    first: ProcMesh, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(credit, "_WARN_AFTER_S", 0.1)
    sink, opener = first.spawn("sink", Sink), first.spawn("opener", Opener)
    sink.wait.broadcast("complaint")
    flood = Background(first, lambda _: sink.take.broadcast(np.zeros(_MIB, np.uint8)), 100)
    words = "are held back: its mailbox is full (config key 'transport.mailbox_bytes'); one has waited for 0 s"
    wait_until("the complaint", lambda: caplog.text, accept=lambda text: words in text)
    opener.open.call_one("complaint").get(_PATIENCE_S)
    flood.finish()


def test_a_message_larger_than_the_window_passes(first: ProcMesh) -> None:
    sink = first.spawn("sink", Sink)
    for num in (3, 1, 2):
        sink.take.broadcast(np.zeros(num * _WINDOW_BYTES, np.uint8))
        sink.take.broadcast(np.zeros(1, np.uint8))
    assert sink.taken.call_one().get(_PATIENCE_S) == (6, 6 * _WINDOW_BYTES + 3)


@pytest.mark.parametrize("kind", ["stopped", "broken", "unknown"])
def test_an_actor_that_handles_nothing_keeps_no_credit(first: ProcMesh, kind: str, faults: list[MeshFailure]) -> None:
    mesh = first.spawn("gone", Broken if kind == "broken" else Sink)
    if kind == "stopped":
        mesh.stop()
    elif kind == "unknown":
        mesh = ActorMesh("unknown", 12345, Sink, Region.whole(first.extent), {0: first.procs[0]})
    for _ in range(3 * _WINDOW_BYTES // (8 * _MIB)):
        with pytest.raises((ActorDied, DeliveryUnknown)):
            mesh.take.call_one(np.zeros(8 * _MIB, np.uint8)).get(_PATIENCE_S)


def test_a_full_mailbox_holds_back_only_who_writes_to_it(first: ProcMesh, second: ProcMesh) -> None:
    """Both procs flood each other's full mailbox, and the controller floods both: all other calls proceed."""
    sinks = [mesh.spawn("sink", Sink) for mesh in (first, second)]
    pourers = [mesh.spawn("pourer", Opener) for mesh in (first, second)]
    openers = [mesh.spawn("opener", Opener) for mesh in (first, second)]
    others = [mesh.spawn("other", Opener) for mesh in (first, second)]
    data = np.zeros(_MIB, np.uint8)
    for sink in sinks:
        sink.wait.broadcast("full")
    for opener in openers:  # concurrent senders, whose calls are not ordered with ours
        opener.reached.call_one("full").get(_PATIENCE_S)
    poured = [pourers[0].pour.call_one(sinks[1], 100), pourers[1].pour.call_one(sinks[0], 100)]
    mine = [
        Background(mesh, lambda _, sink=sink: sink.take.broadcast(data), 100)  # type: ignore[misc]
        for mesh, sink in zip((first, second), sinks, strict=True)
    ]
    for flood in mine:
        assert flood.until_held() <= _WINDOW_BYTES / _MIB
    # A blocks in its endpoint on B, which waits for another actor of A's proc, and so on.
    way = [openers[1], others[0], others[1]]
    for _ in range(100):
        assert openers[0].pass_on.call_one(way).get(_PATIENCE_S) == 3
    assert not any(future.done() for future in poured)
    for opener in openers:
        opener.open.call_one("full").get(_PATIENCE_S)
    for flood in mine:
        flood.finish()
    for future in poured:
        future.get(_PATIENCE_S)
    for sink in sinks:
        until_taken(sink, 200)


def test_a_coroutine_is_slowed_but_never_stopped(first: ProcMesh, second: ProcMesh) -> None:
    """The loop that it would block may run the actor that its receiver waits for."""
    sink, opener = second.spawn("sink", Sink), second.spawn("opener", Opener)
    pourer = first.spawn("pourer", Opener)
    sink.wait.broadcast("coroutine")
    opener.reached.call_one("coroutine").get(_PATIENCE_S)
    begun_s = time.monotonic()
    pourer.pour_from_a_coroutine.call_one(sink, _WINDOW_BYTES // _MIB + 5).get(_PATIENCE_S)
    assert time.monotonic() - begun_s > 0.4
    opener.open.call_one("coroutine").get(_PATIENCE_S)
    until_taken(sink, _WINDOW_BYTES // _MIB + 5)


def test_who_is_held_back_hears_of_deaths_and_lives_on(hosts: HostMesh, first: ProcMesh) -> None:
    with hosts.slice(hosts=1).spawn_procs(per_host={"gpus": 1}) as procs:
        victim = procs.slice(gpus=0).spawn("victim", Sink)
        pid = victim.pid.call_one().get(_PATIENCE_S)
        waiting = victim.wait.call_one("never")
        full, opener = first.spawn("full", Sink), first.spawn("opener", Opener)
        full.wait.broadcast("held")
        data = np.zeros(_MIB, np.uint8)
        held = Background(first, lambda _: full.take.broadcast(data), 100)
        held.until_held()
        flood = Background(procs.slice(gpus=0), lambda _: victim.take.broadcast(data), 100)
        flood.until_held()
        os.kill(pid, signal.SIGKILL)
        begun_s = time.monotonic()
        with pytest.raises(ActorDied, match="signal 9"):
            waiting.get(_PATIENCE_S)
        assert time.monotonic() - begun_s < 30.0
        flood.finish()  # messages to a dead actor are lost, and block no sender
        assert held.is_alive()
        wait_until("both hosts", states, accept=lambda seen: seen == ["alive", "alive"])
        assert held.is_alive()
        opener.open.call_one("held").get(_PATIENCE_S)
        held.finish()
