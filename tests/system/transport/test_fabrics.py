"""A fabric other than UCX: what carries frames through this process's memory takes the same path through node and
channel."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest

from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Fabric, FabricKind, FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.memory_fabric import MemoryFabric, MemoryLane
from tests.system.support.parties import PATIENCE_S, Party, parties

__all__ = ["parties"]

Parties = Callable[..., Party]


class Joined:
    """Two parties of one process, the channel between them, and their fabrics."""

    def __init__(self, make: Parties, client_fabric: Callable[[Engine], MemoryFabric] = MemoryFabric) -> None:
        self.fabrics: list[MemoryFabric] = []

        def kept(fabric: Callable[[Engine], MemoryFabric], engine: Engine) -> Fabric:
            self.fabrics.append(fabric(engine))
            return self.fabrics[-1]

        self.server = make(fabric=partial(kept, MemoryFabric))
        addresses = self.server.node.listen(["127.0.0.1"])
        self.client = make(role=Role.CONTROLLER, fabric=partial(kept, client_fabric))
        self.channel = self.client.node.connect(addresses)
        self.client.until(lambda: bool(self.channel.why))
        self.server.until(lambda: bool(self.server.opened) and bool(self.back.why))

    @property
    def back(self) -> FrameChannel:
        """The server's end of the channel."""
        return self.server.opened[0]

    @property
    def lanes(self) -> list[MemoryLane]:
        """The lanes of the server and the client."""
        return [fabric.opened[0] for fabric in self.fabrics]


@pytest.fixture
def joined(parties: Parties) -> Joined:
    return Joined(parties)


def check_frames(joined: Joined) -> None:
    """Send frames of all sizes both ways, and check that they arrive whole and in order."""
    sizes = [0, 1, 1000, 100_000, 3_000_000, 5]
    for channel, receiver in ((joined.channel, joined.server), (joined.back, joined.client)):
        payloads = [os.urandom(size) for size in sizes]
        for number, payload in enumerate(payloads):
            assert channel.send(Frame(Kind.RESULT, number, 0, b"body", [payload]))
        receiver.until(lambda: len(receiver.frames) == len(sizes))  # noqa: B023 asked at once
        assert [frame.dest for frame in receiver.frames] == [*range(len(sizes))]
        assert [bytes(frame.buffers[0]) for frame in receiver.frames] == payloads


def test_a_fabric_that_both_have_is_chosen_and_carries_the_frames(joined: Joined) -> None:
    assert {joined.channel.fabric, joined.back.fabric} == {"ucx/rdma"}
    assert {joined.channel.why, joined.back.why} == {"both have RDMA, queue"}
    check_frames(joined)
    assert all(lane.kind is FabricKind.UCX_RDMA and lane.num_frames >= 6 for lane in joined.lanes)
    joined.client.until(lambda: not joined.channel.queued_bytes)
    assert joined.channel.received_s == max(joined.lanes[1].received_s, joined.channel.received_s) > 0


class LateFabric(MemoryFabric):
    """Starts once it is released. For the driver only."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._released = False
        self._waiting: list[Callable[[str], None]] = []

    def start(self, started: Callable[[str], None]) -> None:
        self._waiting.append(started)
        if self._released:
            self.release()

    def release(self) -> None:
        self._released = True
        for started in self._waiting:
            super().start(started)
        self._waiting.clear()


def test_frames_of_the_socket_come_before_those_of_the_fabric(parties: Parties) -> None:
    server = parties(fabric=MemoryFabric)
    addresses = server.node.listen(["127.0.0.1"])
    late: list[LateFabric] = []

    def make(engine: Engine) -> Fabric:
        late.append(LateFabric(engine))
        return late[0]

    client = parties(role=Role.CONTROLLER, fabric=make)
    channel = client.node.connect(addresses)
    num, last = 0, 0
    while num < (last or num + 1):
        channel.send(Frame(Kind.RESULT, num, 0, bytes(1000)))
        num += 1
        if num == 100:
            client.engine.call_soon(late[0].release)
        if channel.why and not last:
            last = num + 100
    server.until(lambda: len(server.frames) == num)
    assert [frame.dest for frame in server.frames] == [*range(num)]
    assert 0 < sum(lane.num_frames for lane in MemoryFabric.lanes.values()) < num


def test_the_fabric_moves_memory(joined: Joined) -> None:
    client, server = joined.client, joined.server
    buffer = bytearray(os.urandom(200_000))
    with server.node.register(buffer) as memory:
        got = bytearray(100_000)
        joined.channel.get(memory.key, 50_000, got).wait(PATIENCE_S)
        assert got == buffer[50_000:150_000]
        data = os.urandom(30_000)
        joined.channel.put(memory.key, 7, data).wait(PATIENCE_S)
        assert buffer[7:30_007] == data
        assert [fabric.moved_bytes for fabric in joined.fabrics] == [0, 130_000]
        with pytest.raises(MemoryAccessError, match=r"bytes 190000 to 290000 of a memory of 200000 bytes"):
            joined.channel.get(memory.key, 190_000, got).wait(PATIENCE_S)
    assert not MemoryFabric.memories and not client.frames and not server.frames


def test_memory_that_the_fabric_does_not_serve_is_reached_by_frames(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryFabric, "register", lambda _self, _memory: None)
    buffer = bytearray(1000)
    with joined.server.node.register(buffer) as memory:
        joined.channel.put(memory.key, 10, b"x" * 500).wait(PATIENCE_S)
        assert buffer.count(b"x") == 500
    assert joined.fabrics[1].moved_bytes == 0


def test_a_lane_that_fails_ends_the_channel_on_both_sides(joined: Joined) -> None:
    lost = PeerLost("there", "the cable was cut")
    joined.client.engine.call_soon(partial(joined.lanes[1].listener.on_lane_error, lost))
    joined.client.until(lambda: bool(joined.client.lost))
    joined.server.until(lambda: bool(joined.server.lost))
    assert joined.client.lost == [lost] and joined.channel.error is lost
    assert isinstance(joined.server.lost[0], PeerLost)
    assert [lane.ended is not None and lane.ended[1] for lane in joined.lanes] == [True, True]
    with pytest.raises(PeerLost, match="the cable was cut"):
        joined.channel.send(Frame(Kind.RESULT))
    with pytest.raises(PeerLost, match="the cable was cut"):
        joined.channel.get(Key(bytes(16), 10, False).pack(), 0, bytearray(10)).wait(PATIENCE_S)
    assert not MemoryFabric.lanes and not joined.client.node.channels


def test_a_peer_that_leaves_has_not_died(joined: Joined) -> None:
    joined.channel.send(Frame(Kind.RESULT, 3))
    joined.channel.close("enough")
    joined.client.until(lambda: bool(joined.client.lost))
    joined.server.until(lambda: bool(joined.server.lost))
    assert [frame.dest for frame in joined.server.frames] == [3]
    assert isinstance(joined.client.lost[0], ChannelClosed) and "enough" in str(joined.server.lost[0])
    assert [lane.ended is not None and lane.ended[1] for lane in joined.lanes] == [False, False]


def test_the_peer_answers_a_probe_on_the_lane_and_then_on_the_socket(joined: Joined) -> None:
    lane = joined.lanes[1]
    joined.client.engine.call_soon(partial(lane.listener.probe, 4711))
    joined.client.until(lambda: lane.answers == [4711] and lane.num_frames > 0)
    assert not joined.client.frames


def test_a_peer_without_a_lane_answers_a_probe_and_vouches_for_none(parties: Parties) -> None:
    joined = Joined(parties, partial(MemoryFabric, unreachable=True))
    asked_s = joined.server.engine.clock()
    joined.server.engine.call_soon(partial(joined.back.probe, 4711))
    joined.server.until(lambda: joined.back.received_s > asked_s)
    joined.channel.send(Frame(Kind.RESULT, 3))  # behind the answer
    joined.server.until(lambda: bool(joined.server.frames))
    assert [lane.answers for lane in joined.lanes] == [[], []]


def test_a_fabric_that_does_not_start_leaves_the_channel_on_its_socket(parties: Parties) -> None:
    joined = Joined(parties, partial(MemoryFabric, problem="no driver"))
    assert (joined.channel.fabric, joined.channel.why) == ("tcp", "no driver")
    assert (joined.back.fabric, joined.back.why) == ("tcp", "there: no driver")
    check_frames(joined)


def test_a_side_that_the_fabric_does_not_reach_sends_on_its_socket(parties: Parties) -> None:
    joined = Joined(parties, partial(MemoryFabric, unreachable=True))
    assert joined.channel.fabric == "tcp" and "no route through memory" in joined.channel.why
    assert joined.back.fabric == "ucx/rdma"
    check_frames(joined)


def test_the_node_closes_its_fabric(joined: Joined) -> None:
    joined.client.node.close("the test ended")
    assert [fabric.closed for fabric in joined.fabrics] == [False, True]
