"""Two families of errors that do not overlap: what endpoints raise, and deaths."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from monarch_hpc import (
    Actor,
    ActorDied,
    ActorError,
    ActorFailed,
    ActorMesh,
    CallTimeout,
    HostMesh,
    MeshError,
    PortClosed,
    ProcDied,
    SpawnError,
    SupervisionError,
    current_rank,
    endpoint,
    this_proc,
)
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.core.errors import BootstrapFailed, MeshDied
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0


class Final(Exception):
    """Has no subclasses."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses of this")


class Child(Actor):
    @endpoint
    def leave(self) -> None:
        os._exit(3)

    @endpoint
    async def sleep(self) -> None:
        await asyncio.sleep(_PATIENCE_S)


class Fragile(Actor):
    def __init__(self) -> None:
        self.child: ActorMesh[Child] | None = None

    @endpoint
    def fail(self, made: str) -> None:
        match made:
            case "plain":
                raise Exception("plain")
            case "group":
                raise ExceptionGroup("two", [ValueError(1), KeyError(2)])
            case "final":
                raise Final("last")
            case "cause":
                try:
                    raise KeyError("root of it")
                except KeyError as error:
                    raise ValueError(f"rank {current_rank().rank}") from error

    @endpoint
    def fail_apart(self) -> None:
        """Fail half a second after rank 0 on the other ranks."""
        time.sleep(0.5 * bool(current_rank().rank))
        raise LookupError("no shard")

    @endpoint
    def own(self, child: ActorMesh[Child]) -> None:
        self.child = child

    @endpoint
    def lose_child(self) -> None:
        assert self.child is not None
        self.child.leave.call_one().get(_PATIENCE_S)

    @endpoint
    def outwait_child(self) -> None:
        this_proc().spawn("child", Child).sleep.options(timeout=0.01).call_one().get()

    @endpoint(explicit_response_port=True)
    def answer_not(self, port: ResponsePort) -> None:
        """Drop the port."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def _refuse() -> None:
    raise LookupError("no data here")


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.fixture(scope="module")
def pair(hosts: HostMesh) -> Iterator[ActorMesh[Fragile]]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield procs.spawn("fragile", Fragile)


@pytest.fixture
def first(pair: ActorMesh[Fragile]) -> ActorMesh[Fragile]:
    return pair.slice(hosts=0, gpus=0)


@pytest.mark.parametrize(
    ("made", "cls"), [("plain", Exception), ("group", ExceptionGroup), ("cause", ValueError), ("final", ActorFailed)]
)
def test_all_that_an_endpoint_raises_is_an_actor_error(first: ActorMesh[Fragile], made: str, cls: type) -> None:
    error = first.fail.call_one(made).exception(_PATIENCE_S)
    assert isinstance(error, ActorError) and isinstance(error, cls)
    assert isinstance(error.exception, Final if made == "final" else cls)
    assert first.pid.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("method", ["fail", "fail_apart"])
def test_the_error_of_several_ranks_has_one_class_whatever_the_timing(pair: ActorMesh[Fragile], method: str) -> None:
    future = pair.fail.call("cause") if method == "fail" else pair.fail_apart.call()
    expected = ValueError if method == "fail" else LookupError
    error = future.exception(_PATIENCE_S)
    assert isinstance(error, MeshError) and isinstance(error, expected) and isinstance(error, ActorError)
    assert isinstance(error.exception, expected) and error.exception is error.failures[min(error.failures)]


def test_the_remote_traceback_of_the_first_rank_has_its_causes(pair: ActorMesh[Fragile]) -> None:
    error = pair.fail.call("cause").exception(_PATIENCE_S)
    assert error is not None
    (note,) = error.__notes__
    assert "KeyError: 'root of it'" in note and "direct cause" in note and "in fail" in note


@pytest.mark.usefixtures("faults")
def test_what_an_endpoint_lets_escape_of_another_actors_death_is_not_its_own(hosts: HostMesh) -> None:
    with hosts.spawn_procs() as procs, hosts.spawn_procs() as others:
        mine = procs.spawn("fragile", Fragile)
        mine.own.call_one(others.spawn("child", Child)).get(_PATIENCE_S)
        error = mine.lose_child.call_one().exception(_PATIENCE_S)
        assert isinstance(error, ActorFailed) and not isinstance(error, SupervisionError)
        assert isinstance(error.exception, ProcDied) and "exit code 3" in str(error)
        assert mine.pid.call_one().get(_PATIENCE_S)


def test_a_time_limit_is_neither_unless_an_endpoint_raised_it(first: ActorMesh[Fragile]) -> None:
    inner = first.outwait_child.call_one().exception(_PATIENCE_S)
    assert isinstance(inner, CallTimeout) and isinstance(inner, ActorError)
    own = first.fail_apart.options(timeout=0.001).call_one().exception(_PATIENCE_S)
    assert isinstance(own, (CallTimeout, LookupError))
    if isinstance(own, CallTimeout):
        assert not isinstance(own, (ActorError, SupervisionError))


def test_a_dropped_response_port_is_a_fault_of_the_endpoint(first: ActorMesh[Fragile]) -> None:
    error = first.answer_not.call_one().exception(_PATIENCE_S)
    assert isinstance(error, PortClosed) and isinstance(error, ActorError)


@pytest.mark.usefixtures("faults")
def test_a_death_is_a_supervision_error(hosts: HostMesh) -> None:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        mesh = procs.spawn("fragile", Fragile)
        os.kill(mesh.slice(hosts=0, gpus=1).pid.call_one().get(_PATIENCE_S), signal.SIGKILL)
        one = mesh.slice(hosts=0, gpus=1).pid.call_one().exception(_PATIENCE_S)
        assert type(one) is ProcDied and isinstance(one, RuntimeError) and not isinstance(one, ActorError)
        # The other rank raises: what counts is that an actor is lost.
        both = mesh.fail.call("cause").exception(_PATIENCE_S)
        assert isinstance(both, MeshDied) and isinstance(both, ProcDied) and not isinstance(both, ActorError)
        assert "SIGKILL" in both.cause


@pytest.mark.usefixtures("faults")
def test_a_constructor_that_raises_leaves_a_dead_actor(hosts: HostMesh) -> None:
    class Unborn(Child):
        def __init__(self) -> None:
            raise ValueError("no")

    with hosts.spawn_procs() as procs:
        error = procs.spawn("unborn", Unborn).leave.call_one().exception(_PATIENCE_S)
        assert type(error) is ActorDied


def test_a_bootstrap_that_raises_is_an_actor_error(hosts: HostMesh) -> None:
    with pytest.raises(BootstrapFailed, match="no data here") as caught:
        hosts.spawn_procs(bootstrap=_refuse).initialized.get(_PATIENCE_S)
    assert isinstance(caught.value, ActorError) and isinstance(caught.value, SpawnError)
    assert isinstance(caught.value.exception, LookupError)
