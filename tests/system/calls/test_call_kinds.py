"""The adverbs that call a mesh: all ranks, one, any, as a stream; with time limits and partial results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
from collections.abc import Iterator

import pytest

import monarch_hpc
from monarch_hpc import (
    Accumulator,
    Actor,
    ActorDied,
    ActorMesh,
    CallTimeout,
    HostMesh,
    MeshError,
    ProcDied,
    ProcMesh,
    endpoint,
)
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0
_LIMIT_S = 5.0
"""Time limit of calls that some ranks answer, also on a busy machine, and others do not."""

_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    """Return a named event of this process."""
    return _gates.setdefault(name, threading.Event())


class Worker(Actor):
    """Answers once its gate opens, or fails."""

    def __init__(self) -> None:
        self.rank = monarch_hpc.context().proc.rank

    @endpoint
    def wait(self, name: str, *ranks: int) -> int:
        if self.rank in ranks:
            assert gate(name).wait(_PATIENCE_S)
        return self.rank

    @endpoint
    def fail(self, *ranks: int) -> int:
        if self.rank in ranks:
            raise KeyError(f"rank {self.rank}")
        return self.rank

    @endpoint
    def timeout(self, timeout: float, on_error: str) -> tuple[float, str]:
        """Endpoint with a parameter named like an option."""
        return timeout, on_error

    @endpoint
    def place(self) -> tuple[int, dict[str, int]]:
        return self.rank, dict(monarch_hpc.current_rank())

    @endpoint
    def leave(self) -> None:
        os._exit(3)

    @endpoint
    async def idle(self) -> None:
        await asyncio.sleep(_PATIENCE_S)

    # Endpoints with names that a mesh must leave to them.
    @endpoint
    def where(self) -> str:
        return "where"

    @endpoint
    def load(self) -> str:
        return "load"

    @endpoint
    def choose(self) -> str:
        return "choose"

    @endpoint
    def send(self) -> str:
        return "send"


class Opener(Actor):
    """Opens the gates of its proc."""

    @endpoint
    def open(self, name: str) -> None:
        gate(name).set()


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled() as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    settle(procs)
    return procs


@pytest.fixture
def workers(procs: ProcMesh) -> Iterator[ActorMesh[Worker]]:
    mesh = procs.spawn("worker", Worker)
    mesh.place.call().get(_PATIENCE_S)  # the actors exist, so that the time limit covers only the call
    yield mesh
    mesh.stop()


@pytest.fixture(scope="module")
def openers(procs: ProcMesh) -> ActorMesh[Opener]:
    return procs.spawn("opener", Opener)


@pytest.mark.slow
def test_all_ranks_that_are_late_are_named_whoever_counts_faster(workers: ActorMesh[Worker]) -> None:
    # The callees know the limit too: their timeout errors must not arrive before the caller's own.
    for _ in range(20):
        with pytest.raises(CallTimeout) as caught:
            workers.idle.options(timeout=0.05).call().get(_PATIENCE_S)
        assert caught.value.others == (1, 2, 3)


@pytest.mark.slow
def test_a_call_that_takes_too_long_says_who_was_asked_for_what(
    workers: ActorMesh[Worker], openers: ActorMesh[Opener]
) -> None:
    waiting = workers.wait.options(timeout=_LIMIT_S).call("slow", 1, 3)
    with pytest.raises(
        CallTimeout,
        match=r"no answer within 5 s from actor worker\[1\] on local0, endpoint wait, nor from ranks 3$",
    ) as caught:
        waiting.get(_PATIENCE_S)
    assert isinstance(caught.value, TimeoutError) and caught.value.others == (3,)
    one = workers.slice(hosts=1, gpus=1)
    with pytest.raises(TimeoutError, match=r" 5 s from actor worker\[3\] on local1, endpoint wait$"):
        one.wait.options(timeout=_LIMIT_S).call_one("slow").get(_PATIENCE_S)
    with pytest.raises(
        TimeoutError, match=r"in 0\.05 s from \d actors: worker\[\d\] on local\d and \d more, endpoint wait; the"
    ):
        workers.wait.call("slow", 1, 3).get(0.05)
    openers.open.call("slow").get(_PATIENCE_S)
    assert list(workers.fail.options(timeout=_PATIENCE_S).call().get().values()) == [0, 1, 2, 3]


def test_a_failure_comes_before_the_time_limit(workers: ActorMesh[Worker], openers: ActorMesh[Opener]) -> None:
    with pytest.raises(KeyError, match="rank 2"):
        workers.fail.options(timeout=_PATIENCE_S).call(2).get()
    begun_s = time.monotonic()
    with pytest.raises(MeshError):
        workers.fail.options(timeout=_PATIENCE_S).call(1, 2).get()
    assert time.monotonic() - begun_s < _PATIENCE_S / 2


@pytest.mark.slow
def test_partial_results_have_the_failures_in_their_places(
    workers: ActorMesh[Worker], openers: ActorMesh[Opener]
) -> None:
    values = workers.fail.options(on_error="collect").call(0, 3).get(_PATIENCE_S)
    kinds = [type(value).__name__ for value in values.values()]
    assert kinds == ["KeyError", "int", "int", "KeyError"]
    assert {point.rank: str(error) for point, error in values.failures().items()} == {0: "'rank 0'", 3: "'rank 3'"}
    assert "remote traceback" in values.item(hosts=0, gpus=0).__notes__[0]
    assert [point.rank for point in values.slice(hosts=1).failures()] == [1]
    late = workers.wait.options(on_error="collect", timeout=_LIMIT_S).call("collect", 2).get(_PATIENCE_S)
    assert [late.item(hosts=host, gpus=gpu) for host, gpu in ((0, 0), (0, 1), (1, 1))] == [0, 1, 3]
    (missing,) = late.failures().values()
    assert missing is late.item(hosts=1, gpus=0)
    assert str(missing) == "no answer within 5 s from actor worker[2] on local1, endpoint wait"
    openers.open.call("collect").get(_PATIENCE_S)
    whole = workers.fail.options(on_error="collect").call().get(_PATIENCE_S)
    assert list(whole.values()) == [0, 1, 2, 3] and whole.failures() == {}
    one = workers.slice(hosts=0, gpus=0).fail.options(on_error="collect")
    assert isinstance(one.call_one(0).get(_PATIENCE_S), KeyError) and one.call_one().get(_PATIENCE_S) == 0


def test_options_are_not_arguments_and_wrong_ones_are_refused(workers: ActorMesh[Worker]) -> None:
    one = workers.slice(hosts=0, gpus=0)
    assert one.timeout.options(timeout=90.0).call_one(timeout=1.0, on_error="x").get(_PATIENCE_S) == (1.0, "x")
    assert [getattr(one, name).call_one().get(_PATIENCE_S) for name in ("where", "load", "choose", "send")] == [
        "where",
        "load",
        "choose",
        "send",
    ]
    with pytest.raises(ValueError, match="timeout is 0 s: give more than 0"):
        workers.fail.options(timeout=0)
    with pytest.raises(ValueError, match="on_error is 'ignore'; it is 'raise' or 'collect'"):
        workers.fail.options(on_error="ignore")  # type: ignore[call-overload]


def test_choose_takes_who_is_least_busy(workers: ActorMesh[Worker], openers: ActorMesh[Opener]) -> None:
    busy = workers.slice(hosts=0).wait.call("choose", 0, 1)  # through a slice, not by choose: it counts as load
    chosen = [workers.wait.choose("choose", 2, 3) for _ in range(2)]
    more = [workers.wait.choose("choose", 0, 1, 2, 3) for _ in range(4)]
    openers.open.call("choose").get(_PATIENCE_S)
    assert sorted(future.get(_PATIENCE_S) for future in chosen) == [2, 3]
    assert sorted(future.get(_PATIENCE_S) for future in more) == [0, 1, 2, 3]
    busy.get(_PATIENCE_S)
    places = [workers.place.choose().get(_PATIENCE_S) for _ in range(4)]
    assert sorted(place[0] for place in places) == [0, 1, 2, 3]
    assert all(rank == 2 * place["hosts"] + place["gpus"] for rank, place in places)
    with pytest.raises(TimeoutError, match=r"from actor worker\[\d\] on local\d, endpoint wait$"):
        workers.wait.options(timeout=0.05).choose("nobody opens", 0, 1, 2, 3).get(_PATIENCE_S)
    openers.open.call("nobody opens").get(_PATIENCE_S)


@pytest.mark.slow
@pytest.mark.usefixtures("faults")
def test_choose_leaves_out_the_dead(hosts: HostMesh) -> None:
    with hosts.spawn_procs(per_host={"gpus": 1}) as procs:
        mesh = procs.spawn("worker", Worker)
        with pytest.raises(ActorDied):
            mesh.slice(hosts=0).leave.call_one().get(_PATIENCE_S)
        assert [mesh.fail.choose().get(_PATIENCE_S) for _ in range(6)] == [1] * 6
        # Failed sends are answered on this thread, the others on the driver: concurrently.
        collecting = mesh.fail.options(on_error="collect", timeout=_PATIENCE_S)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            calls = list(pool.map(lambda _: collecting.call(), range(200)))
            streams = list(pool.map(lambda _: collecting.stream(), range(200)))
        for call in calls:
            assert [type(value) for value in call.get(_PATIENCE_S).values()] == [ProcDied, int]
        for stream in streams:
            assert {type(value) for _, value in stream.items()} == {ProcDied, int}


def test_a_stream_gives_futures_in_the_order_of_the_answers(
    workers: ActorMesh[Worker], openers: ActorMesh[Opener]
) -> None:
    stream = workers.wait.stream("stream", 0, 2)
    first, second, third, fourth = stream
    assert len(stream) == 4
    assert {first.get(_PATIENCE_S), second.get(_PATIENCE_S)} == {1, 3} and not third.done() and not fourth.done()
    openers.slice(hosts=1).open.call("stream").get(_PATIENCE_S)
    assert third.get(_PATIENCE_S) == 2
    openers.open.call("stream").get(_PATIENCE_S)
    assert {future.result() for future in concurrent.futures.as_completed(stream, _PATIENCE_S)} == {0, 1, 2, 3}
    assert fourth.get(_PATIENCE_S) == 0


@pytest.mark.slow
def test_the_items_of_a_stream_say_who_answered(workers: ActorMesh[Worker], openers: ActorMesh[Opener]) -> None:
    for point, value in workers.fail.stream().items():
        assert point.rank == value
    items = workers.fail.stream(1).items()
    seen: list[object] = []
    while True:
        try:
            seen.append(next(items)[1])
        except StopIteration:
            break
        except KeyError as error:
            seen.append(error.args[0])
    assert set(seen) == {0, "rank 1", 2, 3}
    limited = workers.wait.options(timeout=_LIMIT_S, on_error="collect").stream("items", 1, 2)
    answers = {point.rank: value for point, value in limited.items()}
    assert (answers[0], answers[3]) == (0, 3)
    assert str(answers[2]) == "no answer within 5 s from actor worker[2] on local1, endpoint wait"
    openers.open.call("items").get(_PATIENCE_S)


def test_coroutines_stream_too(workers: ActorMesh[Worker]) -> None:
    async def main() -> tuple[dict[int, int], set[int], list[object]]:
        items = {point.rank: value async for point, value in workers.fail.stream().items()}
        futures = {await future for future in workers.fail.stream()}
        failed = workers.fail.options(on_error="collect").stream(0, 1, 2, 3).items()
        with pytest.raises(KeyError):
            await anext(aiter(workers.fail.stream(0, 1, 2, 3).items()))
        return items, futures, [isinstance(value, KeyError) async for _, value in failed]

    assert asyncio.run(main()) == ({0: 0, 1: 1, 2: 2, 3: 3}, {0, 1, 2, 3}, [True] * 4)


def test_a_cancelled_call_is_over_here_and_harms_nobody(workers: ActorMesh[Worker], openers: ActorMesh[Opener]) -> None:
    waiting = workers.wait.call("cancel", 0)
    assert waiting.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.get(_PATIENCE_S)
    openers.open.call("cancel").get(_PATIENCE_S)
    assert list(workers.fail.call().get(_PATIENCE_S).values()) == [0, 1, 2, 3]


def test_the_first_failure_ends_a_wait_for_one(workers: ActorMesh[Worker], openers: ActorMesh[Opener]) -> None:
    calls = [workers.fail.call(1), workers.wait.call("first", 0)]
    done, left = concurrent.futures.wait(calls, _PATIENCE_S, concurrent.futures.FIRST_EXCEPTION)
    assert (done, left) == ({calls[0]}, {calls[1]})
    openers.open.call("first").get(_PATIENCE_S)


def test_an_accumulator_combines_results_in_the_order_of_ranks(
    workers: ActorMesh[Worker], openers: ActorMesh[Opener]
) -> None:
    total = Accumulator(workers.fail, 100, lambda sum_, rank: sum_ + rank)
    assert total.accumulate().get(_PATIENCE_S) == total.accumulate().get(_PATIENCE_S) == 106
    ranks: Accumulator[..., int, list[int]] = Accumulator(workers.fail, [], lambda seen, rank: [*seen, rank])
    assert ranks.accumulate().get(_PATIENCE_S) == [0, 1, 2, 3]
    assert asyncio.run(_awaited(ranks)) == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="rank 1"):
        total.accumulate(1).get(_PATIENCE_S)
    with pytest.raises(CallTimeout):
        Accumulator(workers.wait.options(timeout=0.05), 0, max).accumulate("never", 0).get(_PATIENCE_S)
    openers.open.call("never").get(_PATIENCE_S)
    with pytest.raises(ZeroDivisionError):
        Accumulator(workers.fail, 1, lambda a, b: a // (b * 0)).accumulate().get(_PATIENCE_S)
    with pytest.raises(ValueError, match="call collect"):
        Accumulator(workers.fail.options(on_error="collect"), 0, lambda a, _: a)


async def _awaited(accumulator: Accumulator[..., int, list[int]]) -> list[int]:
    return await accumulator.accumulate()
