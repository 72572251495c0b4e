from __future__ import annotations

from typing import cast

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.supervision import Lease, Liveness
from monarch_hpc.testing import ManualClock
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.frames import Frame, Kind


class Clockwork:
    """The part of an engine that `Heartbeat` uses, driven by the test."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.call_later = self.clock.call_later

    def beat(self, after_s: float = 1.0) -> None:
        """Run the next timer *after_s* seconds from now, however late that is."""
        self.clock.now_s += after_s
        self.clock.advance_to_next()


class Wire:
    """A channel that counts the frames sent."""

    def __init__(self, engine: Clockwork) -> None:
        self.received_s = engine.clock.now_s
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
def changes() -> list[Liveness]:
    return []


@pytest.fixture
def pulse(engine: Clockwork, changes: list[Liveness]) -> Heartbeat:
    return Heartbeat(cast(Engine, engine), 1.0, Lease(3.0, 6.0), lambda _channel, life: changes.append(life))


def test_a_silent_channel_is_suspect_and_then_given_up(
    engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]
) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    for _ in range(5):
        engine.beat()
    assert (wire.sent, changes, pulse.liveness(cast(FrameChannel, wire))) == (5, [Liveness.SUSPECT], Liveness.SUSPECT)
    for _ in range(3):
        engine.beat()
    assert (changes, wire.given_up) == ([Liveness.SUSPECT, Liveness.DEAD], "no heartbeat for 6.0 s")


def test_a_sign_of_life_restores_trust(engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    for _ in range(4):
        engine.beat()
    wire.received_s = engine.clock.now_s
    engine.beat()
    assert changes == [Liveness.SUSPECT, Liveness.ALIVE]


def test_who_slept_himself_condemns_nobody(engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    engine.beat(60.0)
    engine.beat()
    assert (changes, wire.given_up) == ([], "")
    for _ in range(6):
        engine.beat()
    assert changes == [Liveness.SUSPECT, Liveness.DEAD]


def test_who_was_stopped_for_less_than_it_takes_to_condemn_suspects_nobody(
    engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]
) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    engine.beat(2.5)
    engine.beat()
    assert changes == []
    engine.beat()
    assert changes == [Liveness.SUSPECT]


def test_who_is_always_late_finds_the_dead_all_the_same(
    engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]
) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    for _ in range(5):
        engine.beat(10.0)
    assert changes == [Liveness.SUSPECT]
    engine.beat(10.0)
    assert (changes, wire.given_up) == ([Liveness.SUSPECT, Liveness.DEAD], "no heartbeat for 60.0 s")


def test_a_channel_that_is_not_judged_only_hears_us(
    engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]
) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire), judged=False)
    for _ in range(9):
        engine.beat()
    assert (wire.sent, changes, wire.given_up) == (9, [], "")
    # Judged from here on.
    pulse.watch(cast(FrameChannel, wire))
    engine.beat()
    assert changes == [Liveness.DEAD]


def test_a_forgotten_channel_is_left_alone(engine: Clockwork, pulse: Heartbeat, changes: list[Liveness]) -> None:
    wire = Wire(engine)
    pulse.watch(cast(FrameChannel, wire))
    pulse.forget(cast(FrameChannel, wire))
    for _ in range(9):
        engine.beat()
    assert (wire.sent, changes) == (0, [])
    pulse.close()
    assert engine.clock.timers == []
