"""Shared memory that no longer delivers, because a process was killed while writing to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.testing.conformance import ECHO, LEAVE
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.ucx import hole_probe
from monarch_hpc.transport.ucx.lane import UcxLane
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.far import far
from tests.system.support.parties import PATIENCE_S, UCX, Party, parties

__all__ = ["parties"]

Parties = Callable[..., Party]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry per verdict of the probe, which comes sooner than in production."""
    found: list[None] = []
    judge = hole_probe.Probe._judge

    def look(self: hole_probe.Probe, asked_s: float, answered: hole_probe.ProbedLane) -> None:
        judge(self, asked_s, answered)
        found.append(None)

    monkeypatch.setattr(hole_probe, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(hole_probe.Probe, "_judge", look)
    return found


def test_it_is_noticed_and_channels_begin_anew_without_it(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, judged: list[None]
) -> None:
    with far("ucx-shm") as victim, far("ucx-shm") as other:
        client = parties(role=Role.CONTROLLER, ucx=UCX["ucx-shm"])
        channels = [client.node.connect(there.addresses) for there in (victim, other)]
        client.until(lambda: all(channel.why for channel in channels))
        assert [channel.fabric for channel in channels] == ["ucx/shm", "ucx/shm"]
        # As behind a hole in the queue that all of them write to: messages are not read.
        with monkeypatch.context() as hole:
            hole.setattr(UcxLane, "on_records", lambda *_: None)
            channels[1].send(Frame(Kind.RESULT, 1, ECHO))
            victim.process.kill()
            client.until(lambda: len(client.lost) == 2)
        assert isinstance(client.lost[1], PeerLost)
        assert hole_probe.STUCK in str(client.lost[1])
        again = client.node.connect(other.addresses)
        client.until(lambda: bool(again.why))
        assert again.fabric == "tcp", again.why
        client.frames.clear()
        again.send(Frame(Kind.RESULT, 2, ECHO))
        client.until(lambda: [frame.dest for frame in client.frames] == [2])


def test_of_a_death_that_left_no_hole_nobody_else_hears(parties: Parties, judged: list[None]) -> None:
    with far("ucx-shm") as victim, far("ucx-shm") as other:
        client = parties(role=Role.CONTROLLER, ucx=UCX["ucx-shm"])
        channels = [client.node.connect(there.addresses) for there in (victim, other)]
        client.until(lambda: all(channel.why for channel in channels))
        victim.process.kill()
        client.until(lambda: bool(judged))
        assert len(client.lost) == 1
        assert channels[1].error is None
        channels[1].send(Frame(Kind.RESULT, 2, ECHO))
        client.until(lambda: [frame.dest for frame in client.frames] == [2])


def test_late_answers_and_those_of_lanes_that_ended_tell_nothing(
    judged: list[None],
) -> None:
    class Lane:
        received_s = 0.0

        def __init__(self) -> None:
            self.words: list[int] = []

        def ask(self, word: int) -> None:
            self.words.append(word)

    engine, lane, ended = Engine(), Lane(), Lane()
    stuck: list[None] = []
    asked = hole_probe.Probe(engine, lambda: [lane], lambda: stuck.append(None))
    engine.call_soon(asked.suspect)
    assert engine.wait(lambda: len(lane.words) == 1, PATIENCE_S)
    lane.received_s = engine.clock()  # then the peer is stopped before it answers on its socket
    engine.call_soon(asked.suspect)
    assert engine.wait(lambda: len(lane.words) == 2, PATIENCE_S)
    asked.answered(lane.words[0], lane)
    assert engine.wait(lambda: len(judged) == 1, PATIENCE_S)
    assert not stuck
    asked.answered(lane.words[1], ended)
    assert engine.wait(lambda: len(judged) == 2, PATIENCE_S)
    assert not stuck  # a message on a lane that has ended meanwhile was dropped with it
    asked.answered(lane.words[1], lane)
    assert engine.wait(lambda: len(judged) == 3, PATIENCE_S)
    assert stuck
    engine.close()


def test_who_says_goodbye_leaves_no_doubt(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> None:
    suspected: list[None] = []
    monkeypatch.setattr(hole_probe.Probe, "suspect", lambda _self: suspected.append(None))
    with far("ucx-shm") as there:
        client = parties(role=Role.CONTROLLER, ucx=UCX["ucx-shm"])
        channel = client.node.connect(there.addresses)
        client.until(lambda: bool(channel.why))
        channel.send(Frame(Kind.RESULT, 0, LEAVE))
        client.until(lambda: len(client.lost) == 1)
        again = client.node.connect(there.addresses)
        client.until(lambda: bool(again.why))
        again.close("enough")
        client.until(lambda: len(client.lost) == 2)
    assert not suspected
