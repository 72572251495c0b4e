"""A fabric other than UCX: what carries frames through this process's memory takes the same path through node and
channel."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import pytest

from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Capabilities, Fabric, FabricKind, FrameChannel, LaneListener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key, host_view
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, Kind, pack_frame, parse_frame
from tests.system.support.parties import PATIENCE_S, Party, parties

__all__ = ["parties"]

Parties = Callable[..., Party]

ADDRESS = b"this process"


class MemoryFabric:
    """Carries frames as bytes between two engines of this process.

    Attributes:
        problem: why it does not start.
        unreachable: whether no lane of it can be connected.
        connecting: what its lanes call once they are connected; None where they are at once.
        moved_bytes: what gets and puts have moved.
    """

    lanes: ClassVar[dict[bytes, MemoryLane]] = {}
    memories: ClassVar[dict[bytes, Memory]] = {}

    def __init__(self, engine: Engine, problem: str = "", unreachable: bool = False, waits: bool = False) -> None:
        self.engine = engine
        self.connecting: list[Callable[[], None]] | None = [] if waits else None
        self.problem = problem
        self.unreachable = unreachable
        self.moved_bytes = 0
        self.opened: list[MemoryLane] = []
        self.closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(rdma=True)

    @property
    def address(self) -> bytes:
        return ADDRESS

    def start(self, started: Callable[[str], None]) -> None:
        self.engine.call_soon(partial(started, self.problem))

    def open_lane(self, listener: LaneListener, peer: str, send_queue_bytes: int) -> MemoryLane:
        lane = MemoryLane(self, listener, peer, send_queue_bytes)
        self.lanes[lane.token] = lane
        self.opened.append(lane)
        return lane

    def register(self, memory: Memory) -> None:
        handle = os.urandom(8)
        self.memories[handle] = memory
        memory.attach(1, handle, partial(self.memories.__delitem__, handle))

    def close(self) -> None:
        self.closed = True


class MemoryLane:
    """One direction each way, through a queue that the receiver's engine empties."""

    def __init__(self, fabric: MemoryFabric, listener: LaneListener, peer: str, send_queue_bytes: int) -> None:
        self.token = os.urandom(16)
        self.transports = ("queue",)
        self.received_s = 0.0
        self.kind: FabricKind | None = None
        self.num_frames = 0
        self.answers: list[int] = []
        self.ended: tuple[TransportError, bool] | None = None
        self.listener = listener
        self._fabric = fabric
        self._peer = peer
        self._send_queue_bytes = send_queue_bytes
        self._inbox: deque[bytes] = deque()
        self._opened = False
        self._other: MemoryLane | None = None

    @property
    def pending_bytes(self) -> int:
        return 0 if self._other is None else sum(map(len, self._other._inbox))

    def connect(self, kind: FabricKind, address: bytes, token: bytes, connected: Callable[[], None]) -> None:
        if self._fabric.unreachable:
            raise PeerLost(self._peer, "no route through memory")
        assert address == ADDRESS
        self._other = self._fabric.lanes[token]
        self.kind = kind
        if self._fabric.connecting is None:
            connected()
        else:
            self._fabric.connecting.append(connected)

    def send(self, frame: Frame) -> None:
        if self.ended is not None:
            raise self.ended[0]
        other = self._other
        assert other is not None
        other._inbox.append(pack_frame(frame))
        other._fabric.engine.call_soon(other._deliver)
        if not self._fabric.engine.driving and self.pending_bytes > self._send_queue_bytes:
            self._fabric.engine.wait(lambda: self.ended is not None or not self.pending_bytes, PATIENCE_S)

    def move_all(self, _moves: Moves, _keys: Sequence[Key]) -> Transfer | None:
        return None

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        if not key.rkey:
            return None
        view = host_view(buffer, writable=not write)
        transfer = Transfer(self._fabric.engine, "a copy")
        memory = self._fabric.memories.get(key.rkey)
        try:
            if memory is None or memory.view is None:
                raise MemoryAccessError(self._peer, "closed")
            key.check(self._peer, offset, view.nbytes, write=write)
        except MemoryAccessError as error:
            transfer.finish(error)
            return transfer
        place = memory.view[offset : offset + view.nbytes]
        if write:
            place[:] = view
        else:
            view[:] = place
        self._fabric.moved_bytes += view.nbytes
        transfer.finish()
        return transfer

    def open(self) -> None:
        self._opened = True
        self._deliver()

    def _deliver(self) -> None:
        while self._opened and self._inbox and self.ended is None:
            data = self._inbox.popleft()
            parsed = parse_frame(data, 0)
            assert parsed is not None and parsed[1] == len(data)
            self.received_s = self._fabric.engine.clock()
            self.num_frames += 1
            self.listener.on_lane_frame(parsed[0])
        if self._other is not None:
            self._other._fabric.engine.wake_waiters()

    def answered(self, asked_us: int) -> None:
        self.answers.append(asked_us)
        self._fabric.engine.wake_waiters()

    def close(self, error: TransportError, *, peer_died: bool) -> None:
        assert self.ended is None, "closed twice"
        self.ended = (error, peer_died)
        del self._fabric.lanes[self.token]


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


class Waiting:
    """Two parties, of which one or both wait for their lane to be connected."""

    def __init__(self, make: Parties, *, both: bool) -> None:
        self.fabrics: list[MemoryFabric] = []

        def kept(waits: bool, engine: Engine) -> Fabric:
            self.fabrics.append(MemoryFabric(engine, waits=waits))
            return self.fabrics[-1]

        self.server = make(fabric=partial(kept, both))
        self.client = make(role=Role.CONTROLLER, fabric=partial(kept, True))
        self.channel = self.client.node.connect(self.server.node.listen(["127.0.0.1"]))
        self.client.until(lambda: bool(self.fabrics[1].connecting))
        self.server.until(lambda: bool(self.fabrics[0].connecting if both else self.server.opened[0].why))

    @property
    def lanes(self) -> list[MemoryLane]:
        """The lanes of the server and the client."""
        return [fabric.opened[0] for fabric in self.fabrics]

    def connect(self, which: int) -> None:
        """Let the lane of the server or the client be connected."""
        (connected,) = self.fabrics[which].connecting or []
        self.fabrics[which].engine.call_soon(connected)

    def exchange(self, number: int) -> None:
        """Send a frame with this number each way, and check that they arrive after those before."""
        for channel, receiver in ((self.channel, self.server), (self.server.opened[0], self.client)):
            channel.send(Frame(Kind.RESULT, number))
            receiver.until(lambda: bool(receiver.frames) and receiver.frames[-1].dest == number)  # noqa: B023 asked at once


def test_frames_stay_on_the_socket_until_the_fabric_reaches_the_peer(parties: Parties) -> None:
    waiting = Waiting(parties, both=False)
    waiting.exchange(1)
    assert [lane.num_frames for lane in waiting.lanes] == [0, 1]
    assert (waiting.channel.fabric, waiting.channel.why) == ("tcp", "")
    waiting.connect(1)
    waiting.client.until(lambda: waiting.channel.fabric == "ucx/rdma")
    waiting.exchange(2)
    assert [lane.num_frames for lane in waiting.lanes] == [1, 2]


def test_a_lane_that_fails_before_its_use_leaves_the_socket(parties: Parties) -> None:
    waiting = Waiting(parties, both=True)
    lane = waiting.lanes[1]
    waiting.client.engine.call_soon(partial(lane.listener.on_lane_error, PeerLost("there", "no route")))
    waiting.client.until(lambda: lane.ended is not None)
    waiting.exchange(1)
    assert waiting.channel.fabric == "tcp" and "no route" in waiting.channel.why
    assert not (waiting.client.lost or waiting.server.lost)
    waiting.connect(0)  # the other side does use it
    waiting.client.until(lambda: bool(waiting.client.lost))
    assert "it uses a lane that is not there: " in str(waiting.channel.error) and "no route" in str(
        waiting.channel.error
    )
    waiting.server.until(lambda: bool(waiting.server.lost))


def test_a_lane_that_fails_once_the_peer_uses_it_ends_the_channel(parties: Parties) -> None:
    waiting = Waiting(parties, both=False)
    waiting.exchange(1)
    waiting.client.engine.call_soon(partial(waiting.lanes[1].listener.on_lane_error, PeerLost("there", "no route")))
    waiting.client.until(lambda: bool(waiting.client.lost))
    waiting.server.until(lambda: bool(waiting.server.lost))


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
