"""The programming model on two embedded hosts: calls, slices, errors, deaths, output."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, MeshError, ProcMesh, SpawnError, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class _Odd(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("odd")
        self.lock = threading.Lock()


class Probe(Actor):
    """Does whatever a test needs."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"start is {start}")
        self.value = start
        self.seen: list[int] = []

    @endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @endpoint
    def where(self) -> tuple[dict[str, int], dict[str, int], str, int, str]:
        context = monarch_hpc.context()
        rank = dict(monarch_hpc.current_rank())
        return rank, monarch_hpc.current_size(), context.proc.host, context.proc.rank, context.actor_name

    @endpoint
    def note(self, number: int) -> None:
        self.seen.append(number)

    @endpoint
    def noted(self) -> list[int]:
        return self.seen

    @endpoint
    def double(self, array: np.ndarray) -> np.ndarray:
        array *= 2  # the receiver owns its copy
        return array

    @endpoint
    async def nap(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return monarch_hpc.context().actor_name

    @endpoint
    def fail_on(self, rank: int) -> int:
        here = monarch_hpc.context().proc.rank
        if rank in (here, -1):
            raise KeyError(f"rank {here}")
        return here

    @endpoint
    def odd(self) -> None:
        raise _Odd

    @endpoint
    def lock(self) -> object:
        return threading.Lock()

    @endpoint
    def leave(self, code: int) -> None:
        sys.exit(code)

    @endpoint
    def crash(self) -> None:
        ctypes.string_at(0)

    @endpoint
    def say(self, text: str) -> None:
        print(text)
        print(text, file=sys.stderr)

    @endpoint
    def ask(self, other: ActorMesh[Probe], amount: int) -> list[int]:
        return list(other.add.call(amount).get(_PATIENCE_S).values())

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def mask(self) -> int:
        mask = os.umask(0)
        os.umask(mask)
        return mask

    @endpoint
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled() as hosts:
        yield hosts


@pytest.fixture(scope="module", autouse=True)
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.spawn_procs(per_host={"gpus": 2}, name="shared")
    settle(procs)
    return procs


@pytest.fixture
def probes(procs: ProcMesh) -> Iterator[ActorMesh[Probe]]:
    mesh = procs.spawn("probe", Probe, start=10)
    yield mesh
    mesh.stop()


def test_a_call_answers_from_every_rank_by_coordinate(probes: ActorMesh[Probe]) -> None:
    answers = probes.where.call().get(_PATIENCE_S)
    assert answers.sizes == {"hosts": 2, "gpus": 2}
    for point, (rank, size, host, proc_rank, name) in answers:
        assert rank == dict(point)
        assert size == {"hosts": 2, "gpus": 2}
        assert host == f"local{point['hosts']}"
        assert proc_rank == point.rank
        assert name == "probe"


def test_a_slice_is_called_alone_and_counts_its_own_ranks(probes: ActorMesh[Probe]) -> None:
    column = probes.slice(gpus=1)
    assert [value[0] for value in column.where.call().get(_PATIENCE_S).values()] == [{"hosts": 0}, {"hosts": 1}]
    rank, size, host, proc_rank, _ = column.slice(hosts=1).where.call_one().get(_PATIENCE_S)
    assert (rank, size, host, proc_rank) == ({}, {}, "local1", 3)
    column.add.call(5).get(_PATIENCE_S)
    assert list(probes.add.call(0).get(_PATIENCE_S).values()) == [10, 15, 10, 15]


def test_actors_on_a_slice_of_the_procs_know_their_place(procs: ProcMesh) -> None:
    mesh = procs.slice(hosts=1).spawn("half", Probe)
    ranks = [(value[0], value[3]) for value in mesh.where.call().get(_PATIENCE_S).values()]
    assert ranks == [({"gpus": 0}, 2), ({"gpus": 1}, 3)]


def test_messages_of_one_sender_are_handled_in_order(probes: ActorMesh[Probe]) -> None:
    one = probes.slice(hosts=0, gpus=0)
    for number in range(500):
        if number % 3:
            probes.note.broadcast(number)
        else:
            one.note.call_one(number)
    assert one.noted.call_one().get(_PATIENCE_S) == list(range(500))


def test_what_is_wrong_with_a_call_is_said_before_anything_is_sent(probes: ActorMesh[Probe], procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="slice it, or use call"):
        probes.add.call_one(1)
    with pytest.raises(TypeError, match="missing a required argument: 'amount'"):
        probes.add.call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'much'"):
        probes.add.call(1, much=1)
    with pytest.raises(AttributeError, match="no endpoint 'subtract'; it has: add, ask"):
        probes.subtract.call(1)
    with pytest.raises(KeyError, match="no dimension 'gpu'; there are: hosts, gpus"):
        probes.slice(gpu=1)
    with pytest.raises(TypeError, match=r"Probe\.__init__"):
        procs.spawn("bad", Probe, nothing=1)
    with pytest.raises(TypeError, match="subclass of Actor"):
        procs.spawn("bad", int)  # type: ignore[type-var]
    assert list(probes.add.call(0).get(_PATIENCE_S).values()) == [10] * 4


def test_arrays_travel_whole_and_belong_to_the_receiver(probes: ActorMesh[Probe]) -> None:
    array = np.arange(3_000_000, dtype=np.float64)
    answer = probes.slice(hosts=0, gpus=0).double.call_one(array).get(_PATIENCE_S)
    np.testing.assert_array_equal(answer, 2 * array)
    assert array[1] == 1 and answer.flags.writeable


def test_async_endpoints_run_and_know_their_context(probes: ActorMesh[Probe]) -> None:
    assert set(probes.nap.call(0.01).get(_PATIENCE_S).values()) == {"probe"}


def test_two_actors_of_a_proc_run_concurrently(procs: ProcMesh) -> None:
    one = procs.slice(hosts=0, gpus=0)
    slow, quick = one.spawn("slow", Probe), one.spawn("quick", Probe)
    waiting = slow.nap.call_one(600.0)
    assert quick.add.call_one(1).get(_PATIENCE_S) == 1
    assert not waiting.done()


def test_a_remote_exception_keeps_its_class_and_brings_traceback_rank_and_host(probes: ActorMesh[Probe]) -> None:
    with pytest.raises(KeyError, match="rank 3") as caught:
        probes.fail_on.call(3).get(_PATIENCE_S)
    (note,) = caught.value.__notes__
    assert "probe{'hosts': 1/2, 'gpus': 1/2} on local1, endpoint fail_on" in note
    assert "Traceback" in note and 'raise KeyError(f"rank {here}")' in note


def test_failures_of_many_ranks_come_as_one_error(probes: ActorMesh[Probe]) -> None:
    with pytest.raises(MeshError) as caught:
        probes.fail_on.call(-1).get(_PATIENCE_S)
    assert sorted(caught.value.failures) == [0, 1, 2, 3]
    assert "failed on 4 ranks; first rank 0: KeyError" in str(caught.value)


def test_what_cannot_be_pickled_fails_that_call_alone(probes: ActorMesh[Probe]) -> None:
    one = probes.slice(hosts=0, gpus=0)
    with pytest.raises(monarch_hpc.ActorFailed, match="could not be sent") as caught:
        one.odd.call_one().get(_PATIENCE_S)
    assert caught.value.type_name == "_Odd"
    with pytest.raises(TypeError, match="the result, a lock, cannot be sent") as refused:
        one.lock.call_one().get(_PATIENCE_S)
    assert "on local0, endpoint lock; remote traceback" in refused.value.__notes__[0]
    with pytest.raises(TypeError, match="pickle"):
        one.add.call_one(threading.Lock())
    assert one.add.call_one(0).get(_PATIENCE_S) == 10


def test_a_failing_constructor_shows_at_the_first_call(procs: ProcMesh, faults: list[MeshFailure]) -> None:
    mesh = procs.slice(hosts=0, gpus=0).spawn("broken", Probe, start=-1)
    for _ in range(2):
        with pytest.raises(ActorDied, match="constructor raised ValueError: start is -1"):
            mesh.add.call_one(1).get(_PATIENCE_S)
    wait_until("the failure", lambda: [failure.mesh_name for failure in faults], accept=lambda seen: seen == ["broken"])


def test_a_stopped_actor_says_so(procs: ProcMesh) -> None:
    mesh = procs.slice(hosts=0, gpus=0).spawn("short", Probe)
    mesh.add.broadcast(1)
    mesh.stop()
    with pytest.raises(ActorDied, match="it was stopped"):
        mesh.add.call_one(1).get(_PATIENCE_S)


def test_a_timed_out_get_leaves_the_future_usable(probes: ActorMesh[Probe]) -> None:
    future = probes.slice(hosts=0, gpus=0).nap.call_one(3.0)
    with pytest.raises(TimeoutError):
        future.get(0.01)
    assert future.get(_PATIENCE_S) == future.get() == "probe"
    assert isinstance(probes.fail_on.call(1).exception(_PATIENCE_S), KeyError)


def test_futures_are_awaited_in_coroutines(probes: ActorMesh[Probe]) -> None:
    async def main() -> list[int]:
        with pytest.warns(RuntimeWarning, match="await future"):
            probes.nap.call(0.05).get()
        answers = await asyncio.gather(*(probes.add.call(0) for _ in range(20)))
        with pytest.raises(KeyError):
            await probes.fail_on.call(2)
        return [next(iter(answer.values())) for answer in answers]

    assert asyncio.run(main()) == [10] * 20


def test_many_threads_may_call_at_once(probes: ActorMesh[Probe]) -> None:
    one = probes.slice(hosts=1, gpus=0)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: one.add.call_one(1).get(_PATIENCE_S), range(400)))
    assert sorted(answers) == list(range(11, 411))


def test_actors_call_actors_directly(probes: ActorMesh[Probe], procs: ProcMesh) -> None:
    others = procs.spawn("others", Probe, start=100)
    answers = probes.slice(hosts=0, gpus=0).ask.call_one(others.slice(hosts=1), 1).get(_PATIENCE_S)
    assert answers == [101, 101]
    # Both ways at once: each side drives its own I/O.
    futures = [probes.slice(hosts=h, gpus=0).ask.call_one(others, 1) for h in (0, 1)]
    values = [value for future in futures for value in future.get(_PATIENCE_S)]
    assert len(values) == 8 and max(values) == 103


def test_actors_of_one_proc_call_each_other(procs: ProcMesh) -> None:
    one = procs.slice(hosts=1, gpus=1)
    first, second = one.spawn("first", Probe), one.spawn("second", Probe)
    for amount in (1, 2, 3):
        assert first.ask.call_one(second, amount).get(_PATIENCE_S) == [sum(range(amount + 1))]


def test_a_killed_proc_fails_its_calls_with_the_cause_and_spares_the_others(hosts: HostMesh) -> None:
    with hosts.spawn_procs(per_host={"gpus": 1}) as procs:
        mesh = procs.spawn("victim", Probe)
        pids = list(mesh.pid.call().get(_PATIENCE_S).values())
        waiting = mesh.nap.call(600.0)
        os.kill(pids[1], signal.SIGKILL)
        begun_s = time.monotonic()
        with pytest.raises(ActorDied, match=r"signal 9"):
            waiting.get(_PATIENCE_S)
        assert time.monotonic() - begun_s < 30.0
        with pytest.raises(ActorDied, match=r"victim\[1\] on local1.* died: .*signal 9"):
            mesh.add.call(1).get(_PATIENCE_S)
        survivor = procs.slice(hosts=0).spawn("survivor", Probe)
        assert survivor.slice(gpus=0).add.call_one(1).get(_PATIENCE_S) == 1
        with pytest.raises(ActorDied, match=r"proc 1 on local1 died: signal 9"):
            procs.spawn("nowhere", Probe)


def test_of_a_crash_the_line_that_did_it_is_told(hosts: HostMesh) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs, pytest.raises(ActorDied, match=r"signal 11") as caught:
        procs.spawn("crasher", Probe).crash.call_one().get(_PATIENCE_S)
    assert "Segmentation fault" in str(caught.value)
    assert "in crash" in str(caught.value)


def test_an_actor_that_exits_dies_alone(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        other = procs.spawn("other", Probe)
        with pytest.raises(ActorDied, match="endpoint leave raised SystemExit: 7"):
            procs.spawn("leaver", Probe).leave.call_one(7).get(_PATIENCE_S)
        assert other.pid.call_one().get(_PATIENCE_S) == procs.procs[0].pid
        (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
        assert failure.mesh_name == "leaver"


def test_stopped_procs_are_gone_and_say_so(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    mesh = procs.spawn("probe", Probe)
    pids = list(mesh.pid.call().get(_PATIENCE_S).values())
    procs.stop().get(_PATIENCE_S)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with pytest.raises(ActorDied, match="it was stopped"):
        mesh.slice(hosts=1, gpus=0).add.call_one(1).get(_PATIENCE_S)
    procs.stop().get(_PATIENCE_S)  # a second stop is not an error


def test_procs_get_the_environment_and_the_shape_they_were_asked_for(hosts: HostMesh) -> None:
    with hosts.slice(hosts=slice(1, 2)).spawn_procs(per_host={"a": 2, "b": 1}, env={"COLOUR": "red"}) as procs:
        assert procs.sizes == {"hosts": 1, "a": 2, "b": 1}
        mesh = procs.spawn("probe", Probe)
        assert set(mesh.environment.call("COLOUR").get(_PATIENCE_S).values()) == {"red"}
        mask = os.umask(0o022)
        os.umask(mask)
        assert set(mesh.mask.call().get(_PATIENCE_S).values()) == {mask}  # the user's mask, not the agent's
        assert {value[2] for value in mesh.where.call().get(_PATIENCE_S).values()} == {"local1"}


def test_a_proc_that_cannot_start_is_an_error_with_its_words(hosts: HostMesh) -> None:
    with pytest.raises(SpawnError, match=r"no_such_module_anywhere"):
        hosts.spawn_procs(preload=["no_such_module_anywhere"]).initialized.get(_PATIENCE_S)
    with pytest.raises(ValueError, match="is 0: give at least 1"):
        hosts.spawn_procs(per_host={"gpus": 0})
    with pytest.raises(ValueError, match="per_host has 'hosts', a dimension of the hosts"):
        hosts.spawn_procs(per_host={"hosts": 2})


def test_prints_arrive_with_rank_and_host(hosts: HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not capfd: it may lose output that is written while it reads.
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with hosts.spawn_procs(name="choir") as procs:
        procs.logging_option(aggregate_window_sec=0).get(_PATIENCE_S)
        procs.spawn("singer", Probe).say.call("la la").get(_PATIENCE_S)
    expected = ["[choir r00 local0] la la", "[choir r01 local1] la la"]
    wait_until(
        "the lines of both ranks on both streams",
        lambda: [sorted(stream.getvalue().splitlines()) for stream in (out, err)],
        accept=lambda seen: seen == [expected, expected],
    )
