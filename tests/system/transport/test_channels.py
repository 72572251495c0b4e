"""Channels over every fabric: order, sizes, both ways at once, and every way to end."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from monarch_hpc.core.errors import ChannelClosed, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.testing import wait_until
from monarch_hpc.transport import arrival
from monarch_hpc.transport import node as node_module
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.arrival import HUGE_BYTES
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.tcp.channel import CHUNK_BYTES, INLINE_BYTES
from monarch_hpc.wire.frames import Buffer, Frame, Kind, RefusedBuffers
from tests.system.support import parties as parties_of
from tests.system.support.parties import BLOCKED, LIMITS, PATIENCE_S, RDMA, UCX, Party, hasty, parties

__all__ = ["hasty", "parties"]

_SMALL_FRAME_BYTES = 1 << 21


@pytest.fixture(params=["tcp", "relay", "ucx-shm", "ucx-tcp", *RDMA])
def pair(parties: Callable[..., Party], request: pytest.FixtureRequest) -> tuple[Party, Party, FrameChannel]:
    """A listening party, a dialling one, and the dialling one's channel."""
    server = parties(ucx=UCX.get(request.param, ""))
    addresses = server.node.listen(["127.0.0.1"])
    if request.param in UCX:
        client = parties(role=Role.CONTROLLER, ucx=UCX[request.param])
        channel = client.node.connect(addresses)
        fabric = request.param.replace("-", "/")
        client.until(lambda: channel.fabric == fabric or bool(channel.why))
        server.until(lambda: bool(server.opened) and bool(server.opened[0].why))
        assert (channel.fabric, server.opened[0].fabric) == (fabric, fabric), channel.why
        return server, client, channel
    if request.param == "tcp":
        client = parties(role=Role.CONTROLLER)
        return server, client, client.node.connect(addresses)
    client = parties(role=Role.CONTROLLER, around=server)
    channel = client.node.connect([address.replace("127.0.0.1", BLOCKED) for address in addresses])
    assert channel.peer.address.startswith("relay+tcp://")
    return server, client, channel


def _digest(frame: Frame) -> tuple[int, int, str, list[str]]:
    hashes = [hashlib.sha256(part).hexdigest() for part in (frame.body, *frame.buffers)]
    return frame.dest, frame.reply, hashes[0], hashes[1:]


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1, 0, 1],
        [INLINE_BYTES],
        [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 0],
        [5 * CHUNK_BYTES + 7],
        [100] * 3000,
    ],
    ids=["none", "empty", "tiny", "at the inline limit", "around a chunk", "several chunks", "thousands"],
)
@pytest.mark.parametrize("body_bytes", [0, 10, 2 * CHUNK_BYTES + 3])
def test_frames_of_any_shape_arrive_whole(
    pair: tuple[Party, Party, FrameChannel], sizes: list[int], body_bytes: int
) -> None:
    server, _, channel = pair
    buffers = [memoryview(os.urandom(size)) for size in sizes]
    sent = Frame(Kind.CALL, 3, 2**64 - 1, os.urandom(body_bytes), buffers)
    channel.send(sent)
    server.until(lambda: len(server.frames) == 1)
    assert _digest(server.frames[0]) == _digest(sent)
    assert all(not memoryview(buffer).readonly for buffer in server.frames[0].buffers)


def test_frames_arrive_in_the_order_sent_both_ways_at_once(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    server.until(lambda: len(server.opened) == 1)
    dice = random.Random(1)
    plan = [dice.choice([0, 100, INLINE_BYTES + 1, 2 * CHUNK_BYTES]) for _ in range(300)]

    def pour(into: FrameChannel) -> None:
        for number, size in enumerate(plan):
            into.send(Frame(Kind.CALL, number, 0, b"", [bytes(size)]))

    threads = [threading.Thread(target=pour, args=(end,)) for end in (channel, server.opened[0])]
    for thread in threads:
        thread.start()
    for party in (server, client):
        party.until(lambda party=party: len(party.frames) == len(plan))  # type: ignore[misc]
        assert [frame.dest for frame in party.frames] == list(range(len(plan)))
        assert [len(frame.buffers[0]) for frame in party.frames] == plan
    for thread in threads:
        thread.join()


def test_a_sent_buffer_may_be_changed_at_once(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, _, channel = pair
    buffer = bytearray(8 * CHUNK_BYTES)
    for value in range(8):
        buffer[:] = bytes([value]) * len(buffer)
        channel.send(Frame(Kind.CALL, value, 0, b"", [buffer]))
    server.until(lambda: len(server.frames) == 8)
    assert all(set(frame.buffers[0]) == {frame.dest} for frame in server.frames)


def test_closing_delivers_what_was_sent_and_tells_both_sides_why(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    for number in range(100):
        channel.send(Frame(Kind.CALL, number, 0, bytes(1000)))
    channel.close("enough")
    with pytest.raises(ChannelClosed, match="enough"):
        channel.send(Frame(Kind.CALL))
    server.until(lambda: bool(server.lost))
    client.until(lambda: bool(client.lost))
    assert len(server.frames) == 100
    assert isinstance(server.lost[0], PeerLost) and "enough" in str(server.lost[0])
    assert isinstance(client.lost[0], ChannelClosed)
    assert not server.node.channels and not client.node.channels


def test_signals_interrupt_nothing(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    num_signals = 0

    def count(_signal: int, _frame: object) -> None:
        nonlocal num_signals
        num_signals += 1

    before = signal.signal(signal.SIGALRM, count)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        client.until(lambda: num_signals >= 20)  # this thread drives, and sleeps in the kernel in between
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    channel.send(Frame(Kind.RESULT, 5))
    server.until(lambda: len(server.frames) == 1)


def test_giving_up_on_a_peer_is_its_loss_not_our_close(pair: tuple[Party, Party, FrameChannel]) -> None:
    _, client, channel = pair
    channel.give_up("no heartbeat for 15 s")
    client.until(lambda: bool(client.lost))
    assert isinstance(channel.error, PeerLost) and "no heartbeat" in str(channel.error)


def test_large_buffers_arrive_in_the_containers_they_are_sent_in(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, _, channel = pair
    data = os.urandom(HUGE_BYTES + 1)
    channel.send(Frame(Kind.CALL, 1, 0, b"", [data, bytearray(data), memoryview(data)]))
    server.until(lambda: len(server.frames) == 1)
    one, other, view = server.frames[0].buffers
    assert (type(one), type(other)) == (bytes, bytearray) and one == other == data
    assert view == data and isinstance(view, memoryview) and not view.readonly
    assert hash(one) == hash(data)
    assert isinstance(other, bytearray)
    other.clear()  # nothing of the channel holds it


@pytest.fixture
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parties_of, "LIMITS", dataclasses.replace(LIMITS, max_frame_bytes=_SMALL_FRAME_BYTES))


def test_a_frame_over_the_limit_arrives_in_parts(small_frames: None, pair: tuple[Party, Party, FrameChannel]) -> None:
    """Sent by two threads at once, with small frames between the parts, and in the order of each thread."""
    server, _, channel = pair
    data: list[Buffer] = [
        os.urandom(3 * _SMALL_FRAME_BYTES // 2),
        b"",
        bytearray(os.urandom(_SMALL_FRAME_BYTES)),
        b"end",
    ]

    def pour(first: int) -> None:
        for number in range(first, first + 6, 2):
            channel.send(Frame(Kind.RESULT, number, 1, b"body", data))
            channel.send(Frame(Kind.RESULT, number + 1))

    threads = [threading.Thread(target=pour, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    server.until(lambda: len(server.frames) == 12)
    for thread in threads:
        thread.join(PATIENCE_S)
    for first in (0, 100):
        assert [frame.dest for frame in server.frames if first <= frame.dest < first + 6] == [*range(first, first + 6)]
    for frame in server.frames:
        if frame.buffers:
            assert (frame.reply, bytes(frame.body)) == (1, b"body")
            assert list(frame.buffers) == data and type(frame.buffers[0]) is bytes


@pytest.fixture(params=["whole", "in parts"])
def frames_of_any_limit(request: pytest.FixtureRequest) -> None:
    if request.param == "in parts":
        request.getfixturevalue("small_frames")


def test_a_frame_that_cannot_be_held_is_refused_and_the_channel_lives_on(
    frames_of_any_limit: None, pair: tuple[Party, Party, FrameChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says that there is no memory left: it is not taken from the machine."""
    server, _, channel = pair
    monkeypatch.setattr(arrival, "memory_left", lambda: 100 << 20)
    data = bytearray(70 << 20)
    channel.send(Frame(Kind.CALL, 1, 5, b"the call", [data, b"more"]))
    server.until(lambda: len(server.frames) == 1)
    frame = server.frames[0]
    assert isinstance(frame.buffers, RefusedBuffers) and frame.buffers.sizes == (len(data), 4)
    assert "100 MiB of memory left" in frame.buffers.why
    assert (frame.dest, frame.reply, bytes(frame.body)) == (1, 5, b"the call")
    server.opened[0].consumed(1, cost_of(frame))
    channel.send(Frame(Kind.CALL, 2, 0, b"", [data[: 1 << 20]]))
    server.until(lambda: len(server.frames) == 2)
    assert server.frames[1].buffers[0] == bytes(1 << 20)


def test_a_sender_waits_while_the_receiver_does_not_read(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, _, channel = pair
    gate = threading.Event()
    server.on_frame_hook = lambda _channel, _frame: (gate.wait(PATIENCE_S), None)[1]
    sent = 0

    def pour() -> None:
        nonlocal sent
        for _ in range(4000):
            channel.send(Frame(Kind.RESULT, 0, 0, bytes(60_000)))
            sent += 1

    thread = threading.Thread(target=pour)
    thread.start()
    wait_until("the sender to be held back", lambda: channel.queued_bytes > LIMITS.send_queue_bytes, PATIENCE_S)
    held_at = sent
    assert held_at < 4000
    gate.set()
    thread.join(PATIENCE_S)
    server.until(lambda: len(server.frames) == 4000)


def test_a_killed_peer_is_lost_and_a_waiting_sender_told(parties: Callable[..., Party]) -> None:
    client = parties(role=Role.CONTROLLER)
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            server = Party()
            os.write(write_fd, server.node.listen(["127.0.0.1"])[0].encode())
            Flag(server.engine).wait(60)
        os._exit(0)
    address = os.read(read_fd, 100).decode()
    os.close(read_fd)
    os.close(write_fd)
    channel = client.node.connect([address])
    os.kill(child, signal.SIGSTOP)  # so that the socket fills up
    failure: list[BaseException] = []

    def pour() -> None:
        try:
            while True:
                channel.send(Frame(Kind.RESULT, 0, 0, b"", [bytes(2**20)]))
        except TransportError as error:
            failure.append(error)

    thread = threading.Thread(target=pour)
    thread.start()
    wait_until("frames to wait", lambda: channel.queued_bytes, PATIENCE_S)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    thread.join(PATIENCE_S)
    assert isinstance(failure[0], PeerLost)
    client.until(lambda: bool(client.lost))
    with pytest.raises(PeerLost):
        channel.send(Frame(Kind.CALL))


@pytest.mark.usefixtures("hasty")
def test_a_relay_says_why_an_address_cannot_be_reached(parties: Callable[..., Party]) -> None:
    server = parties()
    client = parties(role=Role.CONTROLLER, around=server)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    with pytest.raises(PeerLost, match=r"Connection refused|unreachable"):
        client.node.connect([f"tcp://{BLOCKED}:{port}"])


@pytest.mark.usefixtures("hasty")
def test_where_a_direct_way_has_worked_no_relay_is_tried(parties: Callable[..., Party]) -> None:
    server = parties()
    client = parties(role=Role.CONTROLLER, around=server)
    (address,) = server.node.listen(["127.0.0.1"])
    assert client.node.connect([address]).peer.address == address
    with pytest.raises(PeerLost):  # the relay would reach it
        client.node.connect([address.replace("127.0.0.1", BLOCKED)])


def test_closing_a_node_ends_what_it_still_dials(parties: Callable[..., Party]) -> None:
    client = parties()
    begun = Flag(client.engine)
    outcome: list[object] = []

    def begin() -> None:
        # Nobody answers there; left alone it would go on for `connect_s`.
        client.node.dial([f"tcp://{BLOCKED}:9"], 0, outcome.append)
        begun.set()

    client.engine.call_soon(begin)
    assert begun.wait(PATIENCE_S)
    client.node.close("the test is over")
    assert isinstance(outcome[0], PeerLost)


def test_closing_a_node_waits_as_long_as_channels_go_on_ending(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = parties()
    monkeypatch.setattr(node_module, "LINGER_S", 0.05)
    wait = client.engine.wait

    class Slow:
        """A channel that does not end by itself."""

        def close(self, _reason: str) -> None: ...

        def end(self) -> None:
            still_open.discard(self)
            client.engine.wake_waiters()

    still_open: Any = client.node._open
    left = [Slow() for _ in range(4)]

    def end_one_meanwhile(condition: Callable[[], bool], timeout_s: float) -> bool:
        if not left:
            return wait(condition, timeout_s)
        slow = left.pop()
        client.engine.call_soon(slow.end)
        return wait(lambda: slow not in still_open, PATIENCE_S)

    still_open |= set(left)
    monkeypatch.setattr(client.engine, "wait", end_one_meanwhile)
    client.node.close("the test ended")
    assert not left and not still_open
