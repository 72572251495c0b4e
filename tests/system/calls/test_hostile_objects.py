"""Every call ends with a value or an error, wherever a hostile object passes; an actor that dies reports the cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import monarch_hpc
from monarch_hpc import (
    Accumulator,
    Actor,
    ActorMesh,
    Channel,
    HostMesh,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    concurrent_endpoint,
    endpoint,
)
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.ports.port import Port
from monarch_hpc.config.load import load
from monarch_hpc.mesh.calls.send import send
from monarch_hpc.testing import wait_until
from tests.hostile import ERRORS, HUGE_CHARS, OBJECTS, Recipe, collected, make, recipes
from tests.system.support.controlling import controlled, settle

__all__ = ["collected"]

_PATIENCE_S = 60.0
_FRAME_BYTES = HUGE_CHARS // 3

pytestmark = [
    pytest.mark.slow,  # dozens of calls per case, and dying procs
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # raised in `__del__`
]


class Victim(Actor):
    """Makes hostile objects, and passes them in every way."""

    def __init__(self, recipe: Recipe | None = None, given: object = None) -> None:
        self.neighbour: ActorMesh[Victim] | None = None
        self.on_cleanup: Recipe | None = None
        if recipe is not None:
            raise make(recipe)

    def __supervise__(self, failure: MeshFailure) -> Any:
        return make(Recipe("object", ("__bool__",), "KeyError"))

    def __cleanup__(self, error: BaseException | None) -> None:
        if self.on_cleanup is not None:
            raise make(self.on_cleanup)

    @endpoint
    def alive(self) -> bool:
        return True

    @endpoint
    def take(self, value: object) -> None:
        pass

    @endpoint
    async def take_waiting(self, value: object) -> None:
        pass

    @concurrent_endpoint
    async def take_beside(self, value: object) -> None:
        pass

    @endpoint
    def give(self, recipe: Recipe) -> object:
        return make(recipe)

    @endpoint
    async def give_waiting(self, recipe: Recipe) -> object:
        return make(recipe)

    @concurrent_endpoint
    async def give_beside(self, recipe: Recipe) -> object:
        return make(recipe)

    @endpoint(explicit_response_port=True)
    def give_later(self, port: ResponsePort, recipe: Recipe) -> None:
        port.send(make(recipe))

    @endpoint
    def fail(self, recipe: Recipe) -> None:
        raise make(recipe)

    @endpoint
    async def fail_waiting(self, recipe: Recipe) -> None:
        raise make(recipe)

    @concurrent_endpoint
    async def fail_beside(self, recipe: Recipe) -> None:
        raise make(recipe)

    @endpoint(explicit_response_port=True)
    def fail_later(self, port: ResponsePort, recipe: Recipe) -> None:
        port.exception(make(recipe))

    @endpoint
    def say(self, port: Port[object], recipe: Recipe) -> None:
        (port.exception if recipe.base in ERRORS else port.send)(make(recipe))

    @endpoint
    def pass_on(self, way: str, recipe: Recipe) -> object:
        """Pass it between two actors of one process."""
        if self.neighbour is None:
            self.neighbour = monarch_hpc.this_proc().spawn("neighbour", Victim)
        return getattr(self.neighbour, way).call_one(recipe).get(_PATIENCE_S)

    @endpoint
    def fail_to_clean_up(self, recipe: Recipe) -> None:
        self.on_cleanup = recipe
        raise KeyError("in a broadcast")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    small = replace(loaded.transport, max_frame_bytes=_FRAME_BYTES, mailbox_bytes=_FRAME_BYTES)
    with controlled(replace(loaded, transport=small), num_hosts=1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


class Stage:
    """A victim, replaced whenever it has died."""

    def __init__(self, hosts: HostMesh, faults: list[MeshFailure]) -> None:
        self._hosts = hosts
        self._faults = faults
        self._procs: ProcMesh | None = None
        self._victim: ActorMesh[Victim] | None = None
        self._num = 0
        self.pool = ThreadPoolExecutor(1)
        """Reads answers on another thread: in the main thread, an error of unpickling might be Ctrl-C."""

    def victim(self) -> ActorMesh[Victim]:
        if self._procs is None:
            self._procs = self._hosts.spawn_procs().slice(hosts=0)
        if self._victim is None:
            self._num += 1
            self._victim = self._procs.spawn(f"victim{self._num}", Victim)
        return self._victim

    def spawn(self, *given: object) -> ActorMesh[Victim]:
        self.victim()
        assert self._procs is not None
        self._num += 1
        self._victim = self._procs.spawn(f"victim{self._num}", Victim, *given)
        return self._victim

    def ends(self, start: Callable[[], Any]) -> BaseException | None:
        """Return the error of a call; check that it can be caught as `Exception`, and is not our own timeout."""

        def read() -> BaseException | None:
            error: BaseException | None = start().exception(_PATIENCE_S)
            return error

        error = self.pool.submit(read).result(2 * _PATIENCE_S)
        assert error is None or issubclass(type(error), Exception)
        return error

    def look(self, *, died: bool = False) -> None:
        """Check that the actor answers or reports its death; replace it if it died."""
        assert self._victim is not None
        error = self.ends(self._victim.alive.call_one)
        if error is None:
            assert not died
            return
        assert isinstance(error, SupervisionError) and str(error)
        name, self._victim = f"victim{self._num}", None
        try:
            self.victim().alive.call_one().get(_PATIENCE_S)
        except SupervisionError:  # the proc ended
            self._procs = self._victim = None
            return
        wait_until("the report to the owner", lambda: [f.mesh_name for f in self._faults], accept=lambda s: name in s)

    def close(self) -> None:
        self.pool.shutdown()
        if self._procs is not None:
            self._procs.stop().get(_PATIENCE_S)


@pytest.fixture
def stage(hosts: HostMesh, faults: list[MeshFailure]) -> Iterator[Stage]:
    stage = Stage(hosts, faults)
    yield stage
    stage.close()


_relaxed = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
_few = settings(_relaxed, max_examples=8)

_ANY = recipes([*OBJECTS, *ERRORS])
_OBJECTS = recipes(list(OBJECTS))
_ERRORS = recipes(list(ERRORS))


@_relaxed
@given(way=st.sampled_from(["take", "take_waiting", "take_beside"]), recipe=_ANY)
def test_arguments(stage: Stage, way: str, recipe: Recipe) -> None:
    called = getattr(stage.victim(), way)
    try:
        future = called.call_one(make(recipe))
    except BaseException:  # noqa: BLE001 raised by its class here, a TypeError, or a limit
        pass
    else:
        stage.ends(lambda: future)
    stage.look()


@_relaxed
@given(way=st.sampled_from(["give", "give_waiting", "give_beside", "give_later"]), recipe=_ANY)
def test_results(stage: Stage, way: str, recipe: Recipe) -> None:
    stage.ends(lambda: getattr(stage.victim(), way).call_one(recipe))
    stage.look()


@_relaxed
@given(way=st.sampled_from(["fail", "fail_waiting", "fail_beside", "fail_later"]), recipe=_ERRORS)
def test_exceptions(stage: Stage, way: str, recipe: Recipe) -> None:
    victim = stage.victim()
    assert stage.ends(lambda: getattr(victim, way).call_one(recipe)) is not None
    if recipe.base != "SystemExit":
        stage.ends(lambda: getattr(victim, way).options(on_error="collect").call(recipe))
    stage.look()


@_few
@given(recipe=_ERRORS)
def test_constructors(stage: Stage, recipe: Recipe) -> None:
    victim = stage.spawn(recipe)
    assert isinstance(stage.ends(victim.alive.call_one), SupervisionError)
    stage.look(died=True)


@_few
@given(way=st.sampled_from(["fail", "fail_waiting", "fail_beside"]), recipe=_ERRORS)
def test_broadcasts(stage: Stage, way: str, recipe: Recipe) -> None:
    getattr(stage.victim(), way).broadcast(recipe)
    if way == "fail":  # with the others, a call may arrive before they have failed
        stage.look(died=True)
    else:
        wait_until("its end", lambda: stage.ends(stage.victim().alive.call_one), accept=bool)
        stage.look(died=True)


@_few
@given(recipe=_ERRORS)
def test_hooks(stage: Stage, recipe: Recipe) -> None:
    stage.victim().fail_to_clean_up.broadcast(recipe)
    stage.look(died=True)


@_relaxed
@given(way=st.sampled_from(["give", "give_waiting", "fail", "fail_waiting", "fail_later"]), recipe=_ERRORS)
def test_actors_of_one_process(stage: Stage, way: str, recipe: Recipe) -> None:
    stage.ends(lambda: stage.victim().pass_on.call_one(way, recipe))
    stage.look()


@_relaxed
@given(recipe=_ANY)
def test_ports(stage: Stage, recipe: Recipe) -> None:
    port, receiver = Channel.open()
    with receiver:
        if stage.ends(lambda: stage.victim().say.call_one(port, recipe)) is None:
            stage.ends(receiver.recv)
    stage.look()


@_few
@given(way=st.sampled_from(["give", "fail"]), recipe=_ERRORS)
def test_answers_that_go_to_a_port(stage: Stage, way: str, recipe: Recipe) -> None:
    port, receiver = Channel.open()
    with receiver:
        send(getattr(stage.victim(), way), (recipe,), {}, port)
        stage.ends(receiver.recv)
    stage.look()


@_few
@given(recipe=_ANY)
def test_reductions(stage: Stage, recipe: Recipe) -> None:
    def combine(_so_far: object, _more: object) -> object:
        if recipe.base in ERRORS:
            raise make(recipe)
        return make(recipe)

    if recipe.base not in ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "BaseException", "CancelledError"):
        stage.ends(lambda: Accumulator(stage.victim().alive, None, combine).accumulate())
        stage.look()
