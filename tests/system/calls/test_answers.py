"""Every call is answered, and every death of an actor reported, whatever an endpoint raises or returns."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import (
    Accumulator,
    Actor,
    ActorDied,
    ActorError,
    ActorFailed,
    ActorMesh,
    Channel,
    HostMesh,
    MeshFailure,
    ProcMesh,
    concurrent_endpoint,
    endpoint,
)
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.mesh.calls.send import send
from monarch_hpc.testing import wait_until
from tests.hostile import DEADLY, ERRORS, make_error
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0
_MIB = 2**20


class Coded(Exception):
    """An exception class with a common mistake."""

    def __str__(self) -> str:
        return f"code {self.args[0]:d}"


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no name")


class Unsettled:
    """Pickles, but cannot be unpickled."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __setstate__(self, state: dict[str, str]) -> None:
        raise make_error(state["error"])


def huge() -> Exception:
    return ValueError("x" * (70 * _MIB))


def heavy() -> Exception:
    error = ValueError("with an array")
    error.data = np.ones(80 * _MIB // 8)  # type: ignore[attr-defined]
    return error


MADE: dict[str, Callable[[], BaseException]] = {"coded": lambda: Coded("no number"), "huge": huge, "heavy": heavy}


class Victim(Actor):
    """Raises and returns values on request."""

    def __init__(self, raised: str = "") -> None:
        if raised:
            raise MADE[raised]()

    @endpoint
    def alive(self) -> bool:
        return True

    @endpoint
    def fail(self, made: str) -> None:
        raise MADE[made]()

    @endpoint
    async def fail_waiting(self, made: str) -> None:
        raise MADE[made]()

    @concurrent_endpoint
    async def fail_beside(self, made: str) -> None:
        raise MADE[made]()

    @endpoint(explicit_response_port=True)
    def fail_later(self, port: ResponsePort, made: str) -> None:
        port.exception(MADE[made]())

    @endpoint
    def interrupt(self, name: str) -> None:
        raise make_error(name)

    @endpoint
    async def interrupt_waiting(self, name: str) -> None:
        raise make_error(name)

    @endpoint
    def give_unpicklable(self) -> object:
        return {Silent(): threading.Lock()}

    @endpoint
    def give_unsettled(self, error: str) -> object:
        return Unsettled(error)

    @endpoint
    async def leave_a_task(self, error: str) -> None:
        async def fail() -> None:
            raise make_error(error)

        self.task = asyncio.create_task(fail())
        await asyncio.sleep(0)

    @endpoint
    async def stop_the_loop(self) -> None:
        asyncio.get_running_loop().stop()

    @endpoint
    async def break_the_loop(self) -> None:
        asyncio.get_running_loop().call_soon = None  # type: ignore[assignment,method-assign]

    @endpoint
    async def make_tasks_by(self, factory: Any) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    @endpoint
    def start_no_thread(self) -> None:
        """Make the process hit its limit of threads."""

        def refuse(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse  # type: ignore[method-assign, assignment]

    @endpoint
    def pickle_nothing(self) -> None:
        """Make memory too short for any answer that is not packed in advance."""

        def refuse(*_args: object) -> bytes:
            raise MemoryError

        pickle.dumps = refuse  # type: ignore[assignment]
        cloudpickle.Pickler = refuse

    @endpoint
    def close_stderr(self) -> None:
        sys.stderr.close()
        sys.stdout.close()

    @endpoint
    def strike_soon(self) -> None:
        """Raise an exception asynchronously in this actor's thread."""
        ident = threading.get_ident()

        def strike() -> None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(KeyboardInterrupt))

        threading.Timer(0.1, strike).start()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class Owner(Actor):
    """Calls another actor of its process."""

    def __init__(self) -> None:
        self.neighbour = monarch_hpc.this_proc().spawn("neighbour", Victim)

    @endpoint
    def ask(self, made: str) -> tuple[str, bool]:
        error = self.neighbour.fail.call_one(made).exception(_PATIENCE_S)
        return type(error).__name__, self.neighbour.alive.call_one().get(_PATIENCE_S)


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.spawn_procs()
    settle(procs)
    return procs.slice(hosts=0)


@pytest.fixture
def victim(procs: ProcMesh, faults: list[MeshFailure]) -> Iterator[ActorMesh[Victim]]:
    victim = procs.spawn("victim", Victim)
    yield victim
    victim.stop().get(_PATIENCE_S)


@pytest.mark.parametrize("way", ["fail", "fail_waiting", "fail_beside", "fail_later"])
def test_an_exception_that_cannot_be_described_is_answered(victim: ActorMesh[Victim], way: str) -> None:
    error = getattr(victim, way).call_one("coded").exception(_PATIENCE_S)
    assert isinstance(error, ActorError)
    assert isinstance(error, Coded) and error.args == ("no number",)
    assert "Coded: <exception str() failed>" in error.__notes__[0]
    (collected,) = getattr(victim, way).options(on_error="collect").call("coded").get(_PATIENCE_S).values()
    assert isinstance(collected, Coded)
    assert victim.alive.call_one().get(_PATIENCE_S)


@pytest.mark.slow  # exceptions of 70 and 80 MiB
@pytest.mark.parametrize("made", ["huge", "heavy"])
def test_a_large_exception_arrives_whole(victim: ActorMesh[Victim], made: str) -> None:
    """One that is too large even for this is described: see tests/property/test_hostile.py."""
    error = victim.fail.call_one(made).exception(_PATIENCE_S)
    assert isinstance(error, ValueError) and isinstance(error, ActorError)
    assert len(str(error)) == 70 * _MIB or error.data.nbytes == 80 * _MIB  # type: ignore[attr-defined]
    assert len(error.__notes__[0]) < 200_000
    assert victim.alive.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("made", ["coded", pytest.param("huge", marks=pytest.mark.slow)])
def test_a_constructor_that_raises_it_is_told(procs: ProcMesh, faults: list[MeshFailure], made: str) -> None:
    victim = procs.spawn(f"born {made}", Victim, made)
    with pytest.raises(ActorDied, match="its constructor raised"):
        victim.alive.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert failure.mesh_name == f"born {made}" and len(failure.report()) < 200_000


def test_a_broadcast_that_meets_it_is_told(victim: ActorMesh[Victim], faults: list[MeshFailure]) -> None:
    victim.fail.broadcast("coded")
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert "endpoint fail raised Coded: <str() of Coded raised ValueError>" in failure.cause
    with pytest.raises(ActorDied, match="endpoint fail raised Coded"):
        victim.alive.call_one().get(_PATIENCE_S)


def test_a_result_that_cannot_be_named_is_answered(victim: ActorMesh[Victim]) -> None:
    with pytest.raises(TypeError, match=r"the result\[<repr\(\) of Silent raised RuntimeError>\], a lock, cannot be"):
        victim.give_unpicklable.call_one().get(_PATIENCE_S)
    assert victim.alive.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("way", ["interrupt", "interrupt_waiting"])
@pytest.mark.parametrize("name", [name for name in ERRORS if name not in DEADLY])
def test_all_that_can_be_raised_arrives_as_an_error(victim: ActorMesh[Victim], way: str, name: str) -> None:
    error = getattr(victim, way).call_one(name).exception(_PATIENCE_S)
    assert isinstance(error, Exception)
    if not issubclass(ERRORS[name], Exception):
        assert isinstance(error, ActorFailed) and error.type_name == name
    assert victim.alive.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("name", [name for name in ERRORS if name not in ("KeyboardInterrupt", "SystemExit")])
def test_a_result_that_cannot_be_rebuilt_is_an_error(victim: ActorMesh[Victim], name: str) -> None:
    error = victim.give_unsettled.call_one(name).exception(_PATIENCE_S)
    assert isinstance(error, Exception)
    assert victim.alive.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit"])
def test_one_that_interrupts_its_reader_interrupts_no_other_thread(victim: ActorMesh[Victim], name: str) -> None:
    future = victim.give_unsettled.call_one(name)
    errors: list[BaseException | None] = []
    reader = threading.Thread(target=lambda: errors.append(future.exception(_PATIENCE_S)))
    reader.start()
    reader.join(_PATIENCE_S)
    (error,) = errors
    assert isinstance(error, ActorFailed) and error.type_name == name


@pytest.mark.parametrize("name", ["GeneratorExit", "ValueError"])
def test_a_task_that_nobody_awaits_does_not_end_the_loop(victim: ActorMesh[Victim], name: str) -> None:
    victim.leave_a_task.call_one(name).exception(_PATIENCE_S)
    assert isinstance(victim.fail_waiting.call_one("coded").exception(_PATIENCE_S), Coded)


def test_a_loop_that_was_stopped_goes_on(victim: ActorMesh[Victim]) -> None:
    victim.stop_the_loop.call_one().get(_PATIENCE_S)
    assert isinstance(victim.fail_waiting.call_one("coded").exception(_PATIENCE_S), Coded)


def test_an_actor_that_has_broken_its_loop_is_told_of(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs() as procs:
        victim = procs.spawn("victim", Victim)
        victim.break_the_loop.call_one().get(_PATIENCE_S)
        for _ in range(2):
            with pytest.raises(ActorDied, match=r"NoneType.*not callable"):
                victim.fail_waiting.call_one("coded").get(_PATIENCE_S)
        wait_until("the report of the actor's end", lambda: list(faults))
        assert "its event loop failed" in faults.pop().cause


@pytest.mark.parametrize("refuses", [True, False])
def test_the_task_factory_of_a_user_makes_the_users_tasks(hosts: HostMesh, refuses: bool) -> None:
    def refuse(*_args: object, **_kwargs: object) -> asyncio.Task[object]:
        raise RuntimeError("no tasks")

    def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, object, object]) -> asyncio.Task[object]:
        return asyncio.Task(coroutine, loop=loop)  # takes no context, like factories written before Python 3.11

    with hosts.spawn_procs() as procs:
        victim = procs.spawn("victim", Victim)
        victim.make_tasks_by.call_one(refuse if refuses else make).get(_PATIENCE_S)
        assert isinstance(victim.fail_waiting.call_one("coded").exception(_PATIENCE_S), Coded)
        assert isinstance(victim.fail_beside.call_one("coded").exception(_PATIENCE_S), Coded)


def test_an_actor_without_a_thread_is_told_of(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)  # UCX starts with a thread
        greedy = procs.spawn("greedy", Victim)
        greedy.slice(gpus=1).start_no_thread.call_one().get(_PATIENCE_S)
        sharing = procs.spawn("sharing", Victim)  # there is one thread, which serves both
        assert all(sharing.alive.call().get(_PATIENCE_S).values())
        assert all(greedy.alive.call().get(_PATIENCE_S).values())
        for mesh in (greedy, sharing):
            mesh.stop().get(_PATIENCE_S)
        late = procs.spawn("late", Victim)
        (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
        assert (failure.mesh_name, failure.rank) == ("late", 1)
        with pytest.raises(ActorDied, match="can't start new thread"):
            late.slice(gpus=1).alive.call_one().get(_PATIENCE_S)
        assert late.slice(gpus=0).alive.call_one().get(_PATIENCE_S)


def test_an_actor_that_cannot_be_rebuilt_is_told_of_by_name_and_rank(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        procs.spawn("lost", Victim, Unsettled("OSError"))
        wait_until("both failures", lambda: len(faults), accept=lambda seen: seen == 2)
        assert sorted((failure.mesh_name, failure.rank) for failure in faults) == [("lost", 0), ("lost", 1)]


def test_where_nothing_can_be_pickled_a_constant_is_the_answer(hosts: HostMesh) -> None:
    with hosts.spawn_procs() as procs:
        victim = procs.spawn("victim", Victim)
        victim.pickle_nothing.call_one().exception(_PATIENCE_S)
        assert isinstance(victim.alive.call_one().exception(_PATIENCE_S), ActorFailed)


def test_a_thread_that_is_struck_dead_leaves_no_caller(victim: ActorMesh[Victim], faults: list[MeshFailure]) -> None:
    victim.strike_soon.call_one().get(_PATIENCE_S)
    (failure,) = wait_until("the failure", lambda: list(faults), accept=bool)
    assert "its thread failed: KeyboardInterrupt" in failure.cause
    with pytest.raises(ActorDied, match="its thread failed"):
        victim.alive.call_one().get(_PATIENCE_S)


def test_a_constructor_is_told_of_where_nothing_can_be_printed(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.spawn_procs() as procs:
        procs.spawn("closing", Victim).close_stderr.call_one().get(_PATIENCE_S)
        with pytest.raises(ActorDied, match="its constructor raised"):
            procs.spawn("born", Victim, "coded").alive.call_one().get(_PATIENCE_S)
        wait_until("the failure", lambda: [fault.mesh_name for fault in faults], accept=lambda seen: seen == ["born"])


def test_neighbours_are_answered_too(procs: ProcMesh) -> None:
    assert procs.spawn("owner", Owner).ask.call_one("coded").get(_PATIENCE_S) == ("Coded", True)


def test_what_goes_to_a_port_arrives(victim: ActorMesh[Victim]) -> None:
    port, receiver = Channel.open()
    send(victim.fail, ("coded",), {}, port)
    assert isinstance(receiver.recv().exception(_PATIENCE_S), Coded)
    send(victim.give_unsettled, ("KeyboardInterrupt",), {}, port)
    assert isinstance(receiver.recv().exception(_PATIENCE_S), ActorFailed)
    for made in MADE.values():
        port.exception(made())
        assert isinstance(receiver.recv().exception(_PATIENCE_S), ActorError)
    receiver.close()


def test_what_combines_may_fail_in_any_way(victim: ActorMesh[Victim]) -> None:
    def refuse(_so_far: int, _more: object) -> int:
        raise Coded("no number")

    assert isinstance(Accumulator(victim.alive, 0, refuse).accumulate().exception(_PATIENCE_S), Coded)
