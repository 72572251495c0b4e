"""Faults of the connections between two processes: what is late or slow arrives whole, what is silent is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from monarch_hpc.core.ids import Role
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.testing.faults import FaultyWire
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import Party


class Joined(NamedTuple):
    """A channel that passes through a faulty wire."""

    client: Party
    server: Party
    channel: FrameChannel
    wire: FaultyWire


@pytest.fixture
def joined() -> Iterator[Joined]:
    with ExitStack() as resources:
        server, client = Party(), Party(role=Role.CONTROLLER)
        resources.callback(server.close)
        resources.callback(client.close)
        wire = resources.enter_context(FaultyWire(server.node.listen(["127.0.0.1"])[0]))
        channel = client.node.connect([wire.address])
        server.until(lambda: bool(server.opened))
        yield Joined(client, server, channel, wire)


def watch(party: Party, channel: FrameChannel, found: list[Liveness]) -> Heartbeat:
    """Watch a channel by heartbeats that notice silence soon; call it on the party's driver."""
    lease = Lease(0.5, 1.0)
    return Heartbeat(party.node.engine, 0.1, lease, lambda _channel, life: found.append(life))


def numbers(party: Party) -> list[int]:
    return [frame.dest for frame in party.frames if frame.kind is Kind.RESULT]


def test_what_is_late_and_slow_arrives_whole_and_in_order(joined: Joined) -> None:
    joined.wire.delay_s, joined.wire.bytes_per_s = 0.02, 4e6
    for number in range(20):
        joined.channel.send(Frame(Kind.RESULT, number, 0, b"x" * 20_000))
        joined.server.opened[0].send(Frame(Kind.RESULT, number, 0, b"y" * 20_000))
    joined.server.until(lambda: len(numbers(joined.server)) == 20)
    joined.client.until(lambda: len(numbers(joined.client)) == 20)
    assert numbers(joined.server) == numbers(joined.client) == list(range(20))
    assert not joined.client.lost and not joined.server.lost


def test_a_wire_that_flaps_loses_nothing_and_does_nothing_twice(joined: Joined) -> None:
    for number in range(10):
        joined.wire.hold(held=number % 2 == 0)
        joined.channel.send(Frame(Kind.RESULT, number, 0, b"x"))
    joined.wire.hold(held=False)
    joined.server.until(lambda: len(numbers(joined.server)) == 10)
    assert numbers(joined.server) == list(range(10)) and not joined.client.lost


@pytest.mark.parametrize("direction", ["there", "back"])
def test_the_deaf_side_of_a_one_way_wire_notices(joined: Joined, direction: str) -> None:
    deaf, speaker = (joined.server, joined.client) if direction == "there" else (joined.client, joined.server)
    ends = {id(joined.client): joined.channel, id(joined.server): joined.server.opened[0]}
    found: list[Liveness] = []
    told: list[Liveness] = []

    def begin(party: Party, into: list[Liveness]) -> None:
        pulse = watch(party, ends[id(party)], into)
        pulse.watch(ends[id(party)], judged=party is deaf)

    setattr(joined.wire, f"holds_{direction}", True)
    for party, into in ((deaf, found), (speaker, told)):
        party.node.engine.call_soon(lambda party=party, into=into: begin(party, into))  # type: ignore[misc]
    deaf.until(lambda: bool(deaf.lost))
    assert found == [Liveness.SUSPECT, Liveness.DEAD]
    assert "no heartbeat for" in str(deaf.lost[0])


def test_a_cut_wire_ends_the_channel_on_both_sides(joined: Joined) -> None:
    joined.wire.cut()
    joined.client.until(lambda: bool(joined.client.lost))
    joined.server.until(lambda: bool(joined.server.lost))
