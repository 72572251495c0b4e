"""Casts: messages to many procs go through the agents' tree, with the same guarantees as direct messages."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, CallTimeout, HostMesh, MeshError, ProcMesh, endpoint
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.telemetry.views.picture import Row, draw
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.calls import CALLS
from tests.system.calls.test_backpressure import Memory
from tests.system.support.casting import (
    NUM,
    NUM_HOSTS,
    PATIENCE_S,
    PER_HOST,
    Log,
    cast_sender,
    casting,
    procs,
    until_over,
)
from tests.system.support.controlling import controlled

__all__ = ["procs"]

_MIB = 2**20
_WINDOW_BYTES = 8 * _MIB
_SLACK_BYTES = 24 * _MIB
"""Memory beyond the window: messages in use, socket buffers, Python's own."""


class Talker(Actor):
    """Calls other actors from a proc."""

    @endpoint
    def talk(self, logs: ActorMesh[Log], num: int) -> list[int]:
        for number in range(num):
            logs.write.broadcast(number)
            logs.slice(hosts=3, gpus=0).write.call_one(-number).get(PATIENCE_S)
        return list(logs.rank.call().get(PATIENCE_S).values())

    @endpoint
    def wait(self, logs: ActorMesh[Log], rank: int, name: str) -> None:
        logs.wait_unless.call(rank, name).get(PATIENCE_S)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(casting(mailbox_bytes=_WINDOW_BYTES), NUM_HOSTS) as hosts:
        yield hosts


@pytest.fixture
def logs(procs: ProcMesh) -> Iterator[ActorMesh[Log]]:
    logs = procs.spawn("log", Log)
    yield logs
    logs.stop().get(PATIENCE_S)


def test_every_rank_answers_through_the_tree(logs: ActorMesh[Log]) -> None:
    before = cast_sender().num_sent
    assert list(logs.rank.call().get(PATIENCE_S).values()) == list(range(NUM))
    assert cast_sender().num_sent == before + 1
    assert list(logs.slice(gpus=1).rank.call().get(PATIENCE_S).values()) == [1, 3, 5, 7, 9]
    backwards = logs.slice(hosts=slice(4, None, -2), gpus=0)
    assert list(backwards.rank.call().get(PATIENCE_S).values()) == [8, 4, 0]
    assert cast_sender().num_sent == before + 3
    until_over()


def test_casts_singles_and_slices_are_handled_in_the_order_sent(logs: ActorMesh[Log]) -> None:
    one, few, many = logs.slice(hosts=2, gpus=1), logs.slice(hosts=2), logs.slice(gpus=1)
    for number in range(0, 150, 5):
        logs.write.broadcast(number)
        one.write.broadcast(number + 1)
        many.write.broadcast(number + 2)
        few.write.broadcast(number + 3)
        last = logs.write.call(number + 4)
    last.get(PATIENCE_S)
    seen = logs.read.call().get(PATIENCE_S)
    assert seen.item(hosts=2, gpus=1) == list(range(150))
    assert seen.item(hosts=2, gpus=0) == [number for number in range(150) if number % 5 in (0, 3, 4)]
    assert seen.item(hosts=4, gpus=1) == [number for number in range(150) if number % 5 in (0, 2, 4)]
    assert seen.item(hosts=0, gpus=0) == [number for number in range(150) if number % 5 in (0, 4)]


def test_threads_keep_their_own_order(logs: ActorMesh[Log]) -> None:
    one = logs.slice(hosts=4, gpus=0)

    def tell(name: str) -> None:
        for number in range(60):
            (one if number % 3 else logs).write.broadcast((name, number))

    threads = [threading.Thread(target=tell, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    seen = one.read.call_one().get(PATIENCE_S)
    for name in "abc":
        assert [number for who, number in seen if who == name] == list(range(60))


def test_actors_cast_too_and_keep_their_order(procs: ProcMesh, logs: ActorMesh[Log]) -> None:
    talkers = procs.slice(hosts=slice(1, 3)).spawn("talker", Talker)
    for ranks in talkers.talk.call(logs, 10).get(PATIENCE_S).values():
        assert ranks == list(range(NUM))
    seen = logs.slice(hosts=3, gpus=0).read.call_one().get(PATIENCE_S)
    assert len(seen) == 4 * 2 * 10
    # Each of the four talkers sends 0, -0, 1, -1, 2, -2, ... and waits for every second answer.
    for number in range(1, 10):
        assert seen.count(number) == 4 and seen.count(-number) == 4


def test_failures_come_as_if_sent_directly(logs: ActorMesh[Log]) -> None:
    with pytest.raises(ZeroDivisionError) as one:
        logs.invert.call(3).get(PATIENCE_S)
    assert "log{'hosts': 1/5, 'gpus': 1/2}" in one.value.__notes__[0]
    values = logs.invert.options(on_error="collect").call(3).get(PATIENCE_S)
    assert values.item(hosts=2, gpus=0) == 1.0
    ((point, failure),) = values.failures().items()
    assert point.rank == 3 and isinstance(failure, ZeroDivisionError)
    with pytest.raises(MeshError) as every:
        logs.take.call(None).get(PATIENCE_S)
    assert len(every.value.failures) > 1


def test_answers_are_not_held_up_by_who_is_late(procs: ProcMesh, logs: ActorMesh[Log]) -> None:
    stream = logs.wait_unless.stream(6, "late")
    first = next(iter(stream))
    assert first.get(PATIENCE_S) == 6
    with pytest.raises(CallTimeout) as late:
        logs.rank.options(timeout=0.5).call().get(PATIENCE_S)
    assert "log[0]" in str(late.value) and "nor from ranks 1, 2, 3" in str(late.value)
    opener = procs.spawn("opener", Log)
    opener.open.call("late").get(PATIENCE_S)
    assert sorted(future.get(PATIENCE_S) for future in stream) == list(range(NUM))
    until_over()


def test_who_is_late_hears_that_nobody_waits_any_more(logs: ActorMesh[Log]) -> None:
    def interrupted() -> list[list[str]]:
        with pytest.raises(CallTimeout):
            logs.linger.options(timeout=0.3).call().get(PATIENCE_S)
        return list(logs.read.call().get(PATIENCE_S).values())

    # On a busy machine some have not begun by then, and do not.
    wait_until("all were interrupted while they ran", interrupted, accept=all)
    lingering = logs.linger.call()
    assert lingering.cancel()
    # It was cancelled where it ran, and never began elsewhere.
    for lines in logs.read.call().get(PATIENCE_S).values():
        assert set(lines) == {"cancelled"}
    until_over()


def test_large_arguments_and_large_results_arrive_whole(logs: ActorMesh[Log]) -> None:
    data = np.ones(3 * _MIB, np.uint8)
    assert list(logs.total.call(data).get(PATIENCE_S).values()) == [data.nbytes] * NUM
    for num_bytes in (100, 20_000, 2 * _MIB):
        results = list(logs.zeros.call(num_bytes).get(PATIENCE_S).values())
        assert [(int(result[-1]), result.nbytes) for result in results] == [(rank, num_bytes) for rank in range(NUM)]
    until_over()


def test_the_death_of_a_proc_ends_its_part_of_a_cast(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs(per_host={"gpus": PER_HOST}, name="mortal")
    logs = procs.spawn("log", Log)
    pids = logs.pid.call().get(PATIENCE_S)
    waiting = logs.wait_unless.options(on_error="collect").call(-1, "never")
    os.kill(pids.item(hosts=2, gpus=1), signal.SIGKILL)
    stream = logs.rank.options(on_error="collect").stream()
    opener = procs.slice(hosts=slice(3, 5)).spawn("opener", Log)
    opener.open.call("never").get(PATIENCE_S)
    others = procs.slice(hosts=slice(0, 2)).spawn("opener", Log)
    others.open.call("never").get(PATIENCE_S)
    procs.slice(hosts=2, gpus=0).spawn("opener", Log).open.call_one("never").get(PATIENCE_S)
    failures = waiting.get(PATIENCE_S).failures()
    assert [point.rank for point in failures] == [5]
    (death,) = failures.values()
    assert isinstance(death, ActorDied) and "SIGKILL" in str(death)
    answers = [future.exception(PATIENCE_S) or future.get() for future in stream]
    assert sum(isinstance(answer, ActorDied) for answer in answers) == 1
    # Likewise afterwards; and no failure is unhandled, because the calls report it.
    assert [point.rank for point in logs.rank.options(on_error="collect").call().get(PATIENCE_S).failures()] == [5]
    until_over()
    procs.stop()


def test_what_nobody_calls_for_fails_the_actor(procs: ProcMesh, faults: list[monarch_hpc.MeshFailure]) -> None:
    logs = procs.spawn("broken", Log)
    logs.invert.broadcast(4)
    wait_until("the news of the failure", lambda: faults, PATIENCE_S)
    (failure,) = faults
    assert failure.rank == 4 and "ZeroDivisionError" in failure.cause
    with pytest.raises(ActorDied):
        logs.rank.call().get(PATIENCE_S)


def test_a_mesh_is_stopped_after_what_it_has(procs: ProcMesh) -> None:
    logs = procs.spawn("log", Log)
    answers = logs.write.call(1)
    before = cast_sender().num_sent
    logs.stop().get(PATIENCE_S)
    assert cast_sender().num_sent == before + 1
    assert list(answers.get(PATIENCE_S).values()) == [1] * NUM
    with pytest.raises((ActorDied, MeshError)):
        logs.rank.call().get(PATIENCE_S)


def test_casts_to_a_sleeper_grow_nobody_by_more_than_the_window(hosts: HostMesh, procs: ProcMesh) -> None:
    sink, other = procs.spawn("sink", Log), procs.spawn("other", Log)
    data = np.ones(_MIB, np.uint8)
    other.rank.call().get(PATIENCE_S)
    pids = [entry.pid for entry in hosts.entries]
    memory = Memory(os.getpid(), *pids, *sink.pid.call().get(PATIENCE_S).values())
    sink.slice(hosts=1, gpus=0).wait.broadcast("pour")
    sent = 0

    def pour() -> None:
        nonlocal sent
        for _ in range(120):
            sink.take.broadcast(data)
            sent += 1

    pourer = threading.Thread(target=pour, daemon=True)
    pourer.start()
    wait_until("the sender is held back", lambda: cast_sender().num_waiting, PATIENCE_S)
    assert sent <= _WINDOW_BYTES / _MIB
    # No other sender is blocked.
    assert list(other.rank.call().get(PATIENCE_S).values()) == list(range(NUM))
    other.slice(hosts=1, gpus=0).open.call_one("pour").get(PATIENCE_S)
    pourer.join(PATIENCE_S)
    assert sent == 120
    assert all(len(lines) == 120 for lines in sink.read.call().get(PATIENCE_S).values())
    assert max(memory.growth()) < _WINDOW_BYTES + _SLACK_BYTES
    until_over()


def rows() -> dict[str, Row]:
    report = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), CALLS, PATIENCE_S)
    assert report is not None
    return {row.actor: row for row in draw(report.rows).rows}


def test_who_waits_for_a_call_through_the_tree_is_seen(procs: ProcMesh, logs: ActorMesh[Log]) -> None:
    talker = procs.slice(hosts=1, gpus=0).spawn("talker", Talker)
    waiting = threading.Thread(target=lambda: logs.wait_unless.call(3, "seen").get(PATIENCE_S))
    waiting.start()
    words = "log[0].wait_unless, log[1].wait_unless, log[2].wait_unless and 6 more"
    seen = wait_until("the program waits", rows, PATIENCE_S, accept=lambda seen: seen["program"].waits_for == words)
    assert seen["program"].state == "waiting"
    assert seen["log[0]"].caller.startswith("program on ")
    assert [seen["log[3]"].state, seen["log[3]"].num_queued] == ["idle", 0]
    asked = talker.wait.call_one(logs.slice(hosts=slice(1, 3)), 3, "seen")
    seen = wait_until("the actor waits", rows, PATIENCE_S, accept=lambda seen: seen["talker[0]"].waits_for)
    num = len(logs.slice(hosts=slice(1, 3)))
    assert seen["talker[0]"].waits_for == f"log.wait_unless of {num} ranks, which none runs"
    procs.spawn("opener", Log).open.call("seen").get(PATIENCE_S)
    waiting.join(PATIENCE_S)
    asked.get(PATIENCE_S)
    seen = wait_until("nobody waits", rows, PATIENCE_S, accept=lambda seen: seen["program"].state == "idle")
    assert [seen[name].waits_for for name in ("program", "talker[0]")] == ["", ""]
    talker.stop()
