"""Reductions on the hosts, by procs of the mesh: the same result as a fold at the caller, or an error."""

from __future__ import annotations

import operator
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Accumulator, Actor, ActorDied, ActorMesh, CallTimeout, HostMesh, MeshError, ProcMesh, endpoint
from monarch_hpc.testing import wait_until
from tests.system.support.casting import NUM, NUM_HOSTS, PATIENCE_S, PER_HOST, cast_sender, casting, procs, until_over
from tests.system.support.controlling import controlled

__all__ = ["procs"]


class Worker(Actor):
    """Returns results to combine."""

    @endpoint
    def rank(self) -> int:
        return monarch_hpc.context().proc.rank

    @endpoint
    def tag(self) -> str:
        return f"<{monarch_hpc.context().proc.rank}>"

    @endpoint
    def invert(self, offset: int) -> float:
        return 1 / (monarch_hpc.context().proc.rank - offset)

    @endpoint
    def ones(self, num: int) -> np.ndarray:
        return np.ones(num)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self, gate: str) -> int:
        wait_until("the gate to open", lambda: Path(gate).exists(), PATIENCE_S)
        return 1


def where_merged(so_far: frozenset[int], more: frozenset[int]) -> frozenset[int]:
    """Return both, and the process that combined them."""
    return so_far | more | {os.getpid()}


def linger(folder: Path, so_far: int, rank: int) -> int:
    """Add, but block forever on the third host."""
    if rank == 5:
        (folder / "combining").touch()
        threading.Event().wait()
    return so_far + rank


def refuse(so_far: int, rank: int) -> int:
    """Add, but fail at rank 7."""
    if rank == 7:
        raise LookupError(f"rank {rank} is not to be added")
    return so_far + rank


class Coded(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def fail_hostile(so_far: int, rank: int) -> int:
    """Add, but fail at rank 7 with an exception that cannot be described."""
    if rank == 7:
        raise Coded(rank)
    return so_far + rank


def exit_at(so_far: int, rank: int) -> int:
    """Add, but try to end the process at rank 7."""
    if rank == 7:
        raise SystemExit(7)
    return so_far + rank


def grow(so_far: object, rank: int) -> object:
    """Return a value that cannot be sent."""
    return threading.Lock() if rank == 7 else 0


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(casting(), NUM_HOSTS) as hosts:
        yield hosts


@pytest.fixture
def workers(procs: ProcMesh) -> Iterator[ActorMesh[Worker]]:
    workers = procs.spawn("worker", Worker)
    yield workers
    workers.stop().get(PATIENCE_S)


def test_the_order_of_ranks_is_kept(workers: ActorMesh[Worker]) -> None:
    before = cast_sender().num_sent
    names = Accumulator(workers.tag, "", operator.add, merge=operator.add)
    assert names.accumulate().get(PATIENCE_S) == "".join(f"<{rank}>" for rank in range(NUM))
    lists: Accumulator[[], int, list[int]] = Accumulator(
        workers.rank, [], lambda seen, rank: [*seen, rank], merge=operator.add
    )
    assert lists.accumulate().get(PATIENCE_S) == list(range(NUM))
    assert cast_sender().num_sent == before + 2
    views: list[tuple[ActorMesh[Worker], list[int]]] = [
        (workers.slice(gpus=1), [1, 3, 5, 7, 9]),
        (workers.slice(hosts=slice(4, None, -2)), [8, 9, 4, 5, 0, 1]),
        (workers.slice(hosts=2), [4, 5]),
    ]
    for view, ranks in views:
        some: Accumulator[[], int, list[int]] = Accumulator(
            view.rank, [], lambda seen, rank: [*seen, rank], merge=operator.add
        )
        assert some.accumulate().get(PATIENCE_S) == ranks
    until_over()


def test_procs_combine_and_the_caller_gets_one_answer(workers: ActorMesh[Worker]) -> None:
    pids = set(workers.pid.call().get(PATIENCE_S).values())
    until_over()
    before = cast_sender().in_flight.num_received
    none: frozenset[int] = frozenset()
    merged = Accumulator(workers.rank, none, lambda so_far, _rank: so_far | {os.getpid()}, merge=where_merged)
    found = merged.accumulate().get(PATIENCE_S)
    until_over()
    assert cast_sender().in_flight.num_received - before <= 3  # the answer, and DONE
    assert found - {os.getpid()} <= pids and len(found - {os.getpid()}) == NUM_HOSTS


def test_large_results_are_combined_where_they_are(workers: ActorMesh[Worker]) -> None:
    num = 1 << 18
    ones = Accumulator(workers.ones, np.zeros(()), np.add, merge=np.add)
    total = np.asarray(ones.accumulate(num).get(PATIENCE_S))
    assert total.tolist() == [NUM] * num
    until_over()


def test_actors_reduce_too(procs: ProcMesh, workers: ActorMesh[Worker]) -> None:
    class Asker(Actor):
        @endpoint
        def total(self, workers: ActorMesh[Worker]) -> int:
            return Accumulator(workers.rank, 0, operator.add, merge=operator.add).accumulate().get(PATIENCE_S)

    askers = procs.slice(hosts=slice(2, 4), gpus=1).spawn("asker", Asker)
    assert list(askers.total.call(workers).get(PATIENCE_S).values()) == [sum(range(NUM))] * 2
    askers.stop().get(PATIENCE_S)


def test_a_rank_that_fails_fails_the_call(workers: ActorMesh[Worker]) -> None:
    with pytest.raises(ZeroDivisionError) as one:
        Accumulator(workers.invert, 0.0, operator.add, merge=operator.add).accumulate(3).get(PATIENCE_S)
    assert "worker{'hosts': 1/5, 'gpus': 1/2}" in one.value.__notes__[0]
    with pytest.raises(MeshError) as every:
        Accumulator(workers.invert, 0.0, operator.add, merge=operator.add).accumulate("no number").get(PATIENCE_S)
    assert len(every.value.failures) > 1
    until_over()


@pytest.mark.parametrize(
    ("combine", "merge", "kind", "words"),
    [
        (refuse, operator.add, LookupError, "rank 7 is not to be added"),
        (operator.add, lambda a, b: a // (b * 0), ZeroDivisionError, "by zero"),
        (lambda a, b: lambda: a + b, operator.add, TypeError, "unsupported operand|cannot be sent"),
    ],
    ids=["combine", "merge", "unpicklable"],
)
def test_what_combining_raises_fails_the_call(
    workers: ActorMesh[Worker],
    combine: Callable[[int, int], int],
    merge: Callable[[int, int], int],
    kind: type[Exception],
    words: str,
) -> None:
    with pytest.raises((kind, MeshError)) as failed:
        Accumulator(workers.rank, 0, combine, merge=merge).accumulate().get(PATIENCE_S)
    error = failed.value
    for each in error.failures.values() if isinstance(error, MeshError) else [error]:
        assert isinstance(each, kind)
        assert "which combined results" in str(each.__notes__)
    # It leaves nothing behind.
    assert Accumulator(workers.rank, 0, operator.add, merge=operator.add).accumulate().get(PATIENCE_S) == 45
    until_over()


def test_what_cannot_travel_is_named(workers: ActorMesh[Worker]) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match="merge"):
        Accumulator(workers.rank, 0, operator.add, merge=lambda a, b: a + b if lock else a).accumulate()


def test_the_death_of_who_combines_ends_the_call(hosts: HostMesh, tmp_path: Path) -> None:
    procs = hosts.spawn_procs(per_host={"gpus": PER_HOST}, name="mortal")
    workers = procs.spawn("worker", Worker)
    pids = workers.pid.call().get(PATIENCE_S)
    total = Accumulator(workers.rank, 0, partial(linger, tmp_path), merge=operator.add).accumulate()
    wait_until("a proc to combine", (tmp_path / "combining").exists, PATIENCE_S)
    os.kill(pids.item(hosts=2, gpus=0), signal.SIGKILL)
    with pytest.raises(ActorDied, match="SIGKILL"):
        total.get(PATIENCE_S)
    until_over()
    procs.stop()


def test_a_call_that_is_late_or_cancelled_ends(workers: ActorMesh[Worker], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waiting = workers.wait.options(timeout=0.3)
    with pytest.raises(CallTimeout):
        Accumulator(waiting, 0, operator.add, merge=operator.add).accumulate(str(gate)).get(PATIENCE_S)
    left = Accumulator(workers.wait, 0, operator.add, merge=operator.add).accumulate(str(gate))
    assert left.cancel()
    gate.touch()
    in_time = Accumulator(workers.wait.options(timeout=PATIENCE_S), 0, operator.add, merge=operator.add)
    assert in_time.accumulate(str(gate)).get(PATIENCE_S) == NUM
    until_over()


@pytest.mark.parametrize("merge", [None, operator.add])
def test_ranks_that_failed_are_left_out_and_listed(workers: ActorMesh[Worker], merge: Any) -> None:
    ranks: Accumulator[[int], float, float] = Accumulator(workers.invert, 0.0, operator.add, merge)
    value, failures = ranks.collect(3).get(PATIENCE_S)
    assert value == pytest.approx(sum(1 / (rank - 3) for rank in range(NUM) if rank != 3))
    assert [dict(point) for point in failures] == [{"hosts": 1, "gpus": 1}]
    assert isinstance(next(iter(failures.values())), ZeroDivisionError)
    assert ranks.collect(100).get(PATIENCE_S)[1] == {}
    value, failures = ranks.collect("no number").get(PATIENCE_S)  # type: ignore[arg-type]  # of the user's own
    assert value == 0.0 and len(failures) == NUM
    until_over()


@pytest.mark.parametrize(("combine", "error"), [(fail_hostile, "Coded"), (exit_at, "ActorFailed"), (grow, "TypeError")])
def test_what_combines_may_fail_in_any_way(
    workers: ActorMesh[Worker], combine: Callable[[object, int], object], error: str
) -> None:
    total: Accumulator[[], int, object] = Accumulator(workers.rank, 0, combine, merge=lambda some, _more: some)
    raised = total.accumulate().exception(PATIENCE_S)
    assert error in [each.__name__ for each in type(raised).__mro__]
    assert list(workers.rank.call().get(PATIENCE_S).values()) == list(range(NUM))
    until_over()
