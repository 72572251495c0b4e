"""Response ports that are sent on, and those that answer several times."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch_hpc import Actor, ActorDied, ActorError, ActorMesh, Channel, HostMesh, PortClosed, ProcMesh, endpoint
from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.mesh.calls.send import send
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import SharedHosts, settle

_PATIENCE_S = 60.0

_lost: list[ResponsePort] = []
"""Ports that live longer than the actors that were called."""


class Clerk(Actor):
    """Answers for others, at once or when asked to."""

    def __init__(self) -> None:
        self.kept: list[ResponsePort] = []

    @endpoint
    def answer(self, port: ResponsePort, value: object) -> None:
        if isinstance(value, Exception):
            port.exception(value)
        else:
            port.send(value)

    @endpoint
    def keep(self, port: ResponsePort) -> None:
        self.kept.append(port)

    @endpoint
    def num_kept(self) -> int:
        return len(self.kept)

    @endpoint
    def answer_all(self, *values: object) -> None:
        for port in self.kept:
            for value in values:
                port.send(value)


class Front(Actor):
    """Has its calls answered by a clerk."""

    def __init__(self, clerk: ActorMesh[Clerk]) -> None:
        self.clerk = clerk
        self.refusals: list[str] = []

    @endpoint(explicit_response_port=True)
    def ask(self, port: ResponsePort, value: object) -> None:
        self.clerk.answer.call_one(port, value).get(_PATIENCE_S)

    @endpoint(explicit_response_port=True)
    async def defer(self, port: ResponsePort) -> None:
        await self.clerk.keep.call_one(port)

    @endpoint(explicit_response_port=True)
    def count(self, port: ResponsePort, num: int) -> None:
        for number in range(num):
            port.send(number)
        if not num:
            raise ValueError("nothing to count")

    @endpoint(explicit_response_port=True)
    def fumble(self, port: ResponsePort, how: str) -> None:
        try:
            match how:
                case "not sent":
                    self.clerk.keep.broadcast([port, threading.Lock()])
                case "pickled":
                    pickle.dumps(port)
                case "copied":
                    assert copy.copy(port) is port and copy.deepcopy(port) is port
        except TypeError as refused:
            self.refusals.append(str(refused))

    @endpoint(explicit_response_port=True)
    def misuse(self, port: ResponsePort, what: Any) -> None:
        try:
            port.exception(what)
        except TypeError as refused:
            port.send(str(refused))

    @endpoint(explicit_response_port=True)
    def misuse_unchecked(self, port: ResponsePort, what: Any) -> None:
        port._call.refuse(what)

    @endpoint
    def refused(self) -> list[str]:
        return self.refusals

    @endpoint(explicit_response_port=True)
    def lose(self, port: ResponsePort) -> None:
        _lost.append(port)

    @endpoint
    def fail(self) -> None:
        raise ValueError("no more")

    @endpoint
    def alive(self) -> bool:
        return True


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled(1) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        settle(procs)
        yield procs


@pytest.fixture
def clerk(procs: ProcMesh) -> ActorMesh[Clerk]:
    return procs.slice(hosts=0, gpus=0).spawn("clerk", Clerk)


@pytest.fixture
def fronts(procs: ProcMesh, clerk: ActorMesh[Clerk]) -> ActorMesh[Front]:
    return procs.spawn("front", Front, clerk)


def test_another_actor_answers(fronts: ActorMesh[Front]) -> None:
    assert fronts.ask.call("here").get(_PATIENCE_S).values() == ["here", "here"]
    error = fronts.slice(hosts=0, gpus=1).ask.call_one(LookupError("no answer")).exception(_PATIENCE_S)
    assert isinstance(error, LookupError) and isinstance(error, ActorError)


def test_it_answers_later_and_the_first_answer_counts(fronts: ActorMesh[Front], clerk: ActorMesh[Clerk]) -> None:
    calls = [fronts.slice(hosts=0, gpus=gpu).defer.call_one() for gpu in (0, 1)]
    wait_until("both ports", lambda: clerk.num_kept.call_one().get(_PATIENCE_S), accept=lambda num: num == 2)
    gc.collect()
    assert not any(call.done() for call in calls)
    clerk.answer_all.call_one("first", "second").get(_PATIENCE_S)
    assert [call.get(_PATIENCE_S) for call in calls] == ["first", "first"]
    assert fronts.alive.call().get(_PATIENCE_S).values() == [True, True]


def test_a_port_of_the_caller_gets_all_answers_with_their_ranks(fronts: ActorMesh[Front]) -> None:
    port, receiver = Channel.open_ranked()
    with receiver:
        send(fronts.count, (3,), {}, port)
        seen = [receiver.recv().get(_PATIENCE_S) for _ in range(6)]
        assert sorted(seen) == [(rank, number) for rank in (0, 1) for number in range(3)]
        send(fronts.count, (0,), {}, port)
        for _ in range(2):
            assert isinstance(receiver.recv().exception(_PATIENCE_S), ValueError)
        send(fronts.count, (1,), {}, port, selection="choose")
        assert receiver.recv().get(_PATIENCE_S)[1] == 0
        assert fronts.alive.call().get(_PATIENCE_S).values() == [True, True]
        with pytest.raises(TimeoutError):
            receiver.recv().get(0.01)


def test_another_actor_answers_a_port_of_the_caller_several_times(
    fronts: ActorMesh[Front], clerk: ActorMesh[Clerk]
) -> None:
    port, receiver = Channel.open_ranked()
    with receiver:
        send(fronts.defer, (), {}, port)
        wait_until("both ports", lambda: clerk.num_kept.call_one().get(_PATIENCE_S), accept=lambda num: num == 2)
        clerk.answer_all.call_one("a", "b").get(_PATIENCE_S)
        seen = [receiver.recv().get(_PATIENCE_S) for _ in range(4)]
        assert sorted(seen) == [(rank, text) for rank in (0, 1) for text in "ab"]


@pytest.mark.parametrize(
    ("how", "refusal"),
    [
        ("not sent", "argument 0[1], a lock, cannot be sent: TypeError: cannot pickle '_thread.lock' object"),
        ("pickled", "a response port can be sent in a message, but not pickled: pass the port itself"),
        ("copied", None),
    ],
)
def test_a_port_that_was_not_passed_on_is_dropped(fronts: ActorMesh[Front], how: str, refusal: str | None) -> None:
    front = fronts.slice(hosts=0, gpus=1)
    assert isinstance(front.fumble.call_one(how).exception(_PATIENCE_S), PortClosed)
    assert front.refused.call_one().get(_PATIENCE_S) == ([] if refusal is None else [refusal])


@pytest.mark.parametrize(
    ("what", "words"), [(ValueError, "<class 'ValueError'>"), (None, "None"), ("words", "'words', a str")]
)
def test_what_is_no_exception_is_refused_where_it_is_given(fronts: ActorMesh[Front], what: object, words: str) -> None:
    front = fronts.slice(hosts=0, gpus=1)
    refusal = f"error is {words}: give an exception, such as ValueError('why')"
    assert front.misuse.call_one(what).get(_PATIENCE_S) == refusal
    port, receiver = Channel.open()
    with receiver:
        send(front.misuse, (what,), {}, port)
        assert receiver.recv().get(_PATIENCE_S) == refusal
    assert isinstance(front.misuse_unchecked.call_one(what).exception(_PATIENCE_S), ActorError)
    assert front.alive.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("way", ["stop", "fail"])
@pytest.mark.parametrize("method", ["lose", "defer"])
def test_the_end_of_the_called_actor_ends_its_calls(
    procs: ProcMesh, clerk: ActorMesh[Clerk], faults: list[MeshFailure], way: str, method: str
) -> None:
    front = procs.slice(hosts=0, gpus=1).spawn("front", Front, clerk)
    call = getattr(front, method).call_one()
    assert front.alive.call_one().get(_PATIENCE_S)
    assert not call.done()
    if way == "stop":
        front.stop("closing time").get(_PATIENCE_S)
    else:
        front.fail.broadcast()
        wait_until("the report", lambda: faults)
    died = call.exception(_PATIENCE_S)
    assert type(died) is ActorDied
    assert ("closing time" if way == "stop" else "ValueError: no more") in died.cause
