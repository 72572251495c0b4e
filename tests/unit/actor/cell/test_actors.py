"""Messages to actors that are not here: those that come before their actor, and those that come too late."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_hpc.actor.cell.actors import Actors
from monarch_hpc.actor.cell.cancellation import LIMITED, limited
from monarch_hpc.core.errors import ActorDied, DeliveryUnknown
from monarch_hpc.wire.frames import Frame, Kind


class World:
    """A process with *actors*, whose timers end when a test says so.

    Attributes:
        handled: messages that actors have got, in order: (actor, body).
        failed: errors of calls, by number of the reply.
        returned: number of messages whose credit was returned.
    """

    def __init__(self) -> None:
        self.handled: list[tuple[int, bytes]] = []
        self.failed: dict[int, BaseException] = {}
        self.returned = 0
        self._timers: list[Callable[[], None]] = []
        self.actors = Actors(
            cast(Any, SimpleNamespace(call_later=lambda delay_s, then: self._timers.append(then))),
            cast(Any, SimpleNamespace(host="h", reply_failure=self._fail)),
            cast(Any, lambda channel, frame: SimpleNamespace(ended=False, put=self._put)),
            lambda: (),
        )

    def get(self, kind: Kind, actor: int, body: bytes = b"", reply: int = 0) -> None:
        self.actors.dispatch(cast(Any, self), Frame(kind, dest=actor, reply=reply, body=body))

    def let_time_pass(self) -> None:
        timers, self._timers = self._timers, []
        for timer in timers:
            timer()

    def consumed(self, dest: int, cost: int) -> None:
        self.returned += 1

    def retire(self, dest: int) -> None:
        pass

    def _put(self, channel: object, frame: Frame) -> None:
        self.handled.append((frame.dest, bytes(frame.body)))

    def _fail(self, channel: object, reply: int, where: str, error: BaseException) -> None:
        self.failed[reply] = error


@pytest.fixture
def world() -> World:
    return World()


def test_messages_that_overtake_their_actor_wait_for_it_and_keep_their_order(world: World) -> None:
    world.get(Kind.CALL, 7, b"told")
    world.get(Kind.CALL, 7, b"asked", reply=1)
    assert world.handled == [] and not world.failed
    world.get(Kind.SPAWN, 7)
    world.get(Kind.CALL, 7, b"later", reply=2)
    assert world.handled == [(7, b"told"), (7, b"asked"), (7, b"later")]
    world.let_time_pass()
    assert not world.failed and world.returned == 0


def test_a_call_that_is_cancelled_before_its_actor_is_here_does_not_begin(world: World) -> None:
    for reply, body in ((1, b"first"), (2, b"cancelled"), (3, b"last")):
        world.get(Kind.CALL, 7, body, reply)
    world.get(Kind.CALL, 7, limited(1.5, b"late"), LIMITED | 4)
    world.get(Kind.CANCEL, 7, reply=2)
    world.get(Kind.CANCEL, 7, reply=LIMITED | 4)
    world.get(Kind.CANCEL, 7, reply=9)
    world.get(Kind.CANCEL, 8, reply=1)
    assert [(reply, str(error)) for reply, error in world.failed.items()] == [
        (2, "no answer within 0 s from actor 7 on h"),
        (LIMITED | 4, "no answer within 1.5 s from actor 7 on h"),
    ]
    assert world.returned == 2
    world.get(Kind.SPAWN, 7)
    assert world.handled == [(7, b"first"), (7, b"last")]


def test_an_actor_that_does_not_come_is_given_up(world: World) -> None:
    world.get(Kind.CALL, 7, reply=1)
    world.get(Kind.CALL, 7)
    world.let_time_pass()
    assert isinstance(world.failed[1], DeliveryUnknown) and world.returned == 2
    world.get(Kind.SPAWN, 7)
    assert world.handled == []
    world.get(Kind.CALL, 7, b"new", reply=2)
    assert world.handled == [(7, b"new")]


def test_nobody_waits_for_an_actor_that_has_ended_or_a_port_that_is_closed(world: World) -> None:
    world.get(Kind.SPAWN, 7)
    world.actors.forget(7, "a on h", "it was stopped")
    world.get(Kind.CALL, 7, reply=1)
    assert isinstance(world.failed[1], ActorDied)
    world.actors.ports[8] = lambda channel, frame: None
    world.actors.close_port(8)
    world.get(Kind.CALL, 8)
    assert world.returned == 2
