from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.supervision import Lease, Life
from monarch_hpc.transport.api import Channel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Pulse
from monarch_hpc.wire.frames import Frame, Kind


class Clockwork:
    """The part of an engine that a pulse uses, driven by the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: Callable[[], None] | None = None

    def clock(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Clockwork:
        self.due = callback
        return self

    def cancel(self) -> None:
        self.due = None

    def beat(self, after_s: float = 1.0) -> None:
        self.now_s += after_s
        assert self.due is not None
        self.due()


class Wire:
    """A channel that counts what is sent."""

    def __init__(self, engine: Clockwork) -> None:
        self.heard_s = engine.now_s
        self.sent = 0
        self.given_up = ""

    def send(self, frame: Frame) -> None:
        assert frame.kind is Kind.PING
        if self.given_up:
            raise PeerLost("it", self.given_up)
        self.sent += 1

    def give_up(self, reason: str) -> None:
        self.given_up = reason


@pytest.fixture
def engine() -> Clockwork:
    return Clockwork()


@pytest.fixture
def changes() -> list[Life]:
    return []


@pytest.fixture
def pulse(engine: Clockwork, changes: list[Life]) -> Pulse:
    return Pulse(cast(Engine, engine), 1.0, Lease(3.0, 6.0), lambda _channel, life: changes.append(life))


def test_a_silent_channel_is_suspect_and_then_given_up(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    for _ in range(5):
        engine.beat()
    assert (wire.sent, changes, pulse.life(cast(Channel, wire))) == (5, [Life.SUSPECT], Life.SUSPECT)
    for _ in range(3):
        engine.beat()
    assert (changes, wire.given_up) == ([Life.SUSPECT, Life.DEAD], "no heartbeat for 6.0 s")


def test_a_sign_of_life_restores_trust(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    for _ in range(4):
        engine.beat()
    wire.heard_s = engine.now_s
    engine.beat()
    assert changes == [Life.SUSPECT, Life.ALIVE]


def test_who_slept_himself_condemns_nobody(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    engine.beat(60.0)
    engine.beat()
    assert (changes, wire.given_up) == ([], "")
    for _ in range(6):
        engine.beat()
    assert changes == [Life.SUSPECT, Life.DEAD]


def test_who_was_stopped_for_less_than_it_takes_to_condemn_suspects_nobody(
    engine: Clockwork, pulse: Pulse, changes: list[Life]
) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    engine.beat(2.5)
    engine.beat()
    assert changes == []
    engine.beat()
    assert changes == [Life.SUSPECT]


def test_who_is_always_late_finds_the_dead_all_the_same(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    for _ in range(5):
        engine.beat(10.0)
    assert changes == [Life.SUSPECT]
    engine.beat(10.0)
    assert (changes, wire.given_up) == ([Life.SUSPECT, Life.DEAD], "no heartbeat for 60.0 s")


def test_a_channel_that_is_not_judged_only_hears_us(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire), judged=False)
    for _ in range(9):
        engine.beat()
    assert (wire.sent, changes, wire.given_up) == (9, [], "")
    # From now on it is.
    pulse.watch(cast(Channel, wire))
    engine.beat()
    assert changes == [Life.DEAD]


def test_a_forgotten_channel_is_left_alone(engine: Clockwork, pulse: Pulse, changes: list[Life]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(Channel, wire))
    pulse.forget(cast(Channel, wire))
    for _ in range(9):
        engine.beat()
    assert (wire.sent, changes) == (0, [])
    pulse.close()
    assert engine.due is None
