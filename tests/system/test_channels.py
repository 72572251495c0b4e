"""Channels over real sockets: order, sizes, both ways at once, every way to end, and strangers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch_hpc.core.errors import (
    AuthenticationError,
    ChannelClosed,
    FrameError,
    PeerLost,
    TransportError,
)
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.transport.api import Channel, TransportLimits
from monarch_hpc.transport.engine import Engine, Signal
from monarch_hpc.transport.handshake import HELLO_BYTES, Dialing
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.noise import TAG_BYTES
from monarch_hpc.transport.relay import Relay
from monarch_hpc.transport.tcp import CHUNK_BYTES, INLINE_BYTES
from monarch_hpc.wire.frames import HEAD_BYTES, Frame, Kind

_ALLOCATION = new_allocation_id()
_KEY = os.urandom(32)
_LIMITS = TransportLimits(
    handshake_s=0.5,
    max_half_open=8,
    max_frame_bytes=2**30,
    send_queue_bytes=2**20,
    connect_s=5.0,
    relay_after_s=0.05,
    relay_s=5.0,
)
_PATIENCE_S = 20.0


_BLOCKED = "192.0.2.1"
"""Where nobody is: reserved for documentation. The relay of these tests takes it for loopback."""


class _Around:
    """A relay between two engines of this process, over the pipes that srun would offer."""

    def __init__(self, near: Engine, far: Engine) -> None:
        to_far, to_near = os.pipe(), os.pipe()
        self._near = near
        self._ends: list[Relay] = []
        self._over = [Signal(near), Signal(near)]
        made = Signal(near)

        def make_far() -> None:
            os.write(to_near[1], b"Loading modules ...\r\n")  # what a site's profile may print first
            Relay(far, to_far[0], to_near[1], far=True, over=lambda _reason: self._over[0].set())
            near.call_soon(make_near)

        def make_near() -> None:
            relay = Relay(near, to_near[0], to_far[1], far=False, over=lambda _reason: self._over[1].set())
            self._ends.append(relay)
            made.set()

        far.call_soon(make_far)
        assert made.wait(_PATIENCE_S)

    def open(self, address: str, failed: Callable[[str], None]) -> socket.socket:
        return self._ends[0].open(address.replace(_BLOCKED, "127.0.0.1"), failed)

    def close(self) -> None:
        self._near.call_soon(lambda: self._ends[0].close("the test ended"))
        assert all(over.wait(_PATIENCE_S) for over in self._over)


class _Party:
    """One process's worth of engine and node, which records what happens to it."""

    def __init__(self, role: Role = Role.PROC, key: bytes = _KEY, around: _Party | None = None) -> None:
        self.engine = Engine()
        self.engine.start()
        self.identity = Identity(_ALLOCATION, role, "here", new_incarnation())
        relay = None if around is None else _Around(self.engine, around.engine)
        self.node = Node(self.engine, self.identity, key, self, _LIMITS, relay)
        self.opened: list[Channel] = []
        self.frames: list[Frame] = []
        self.lost: list[TransportError] = []
        self.on_frame_hook: Callable[[Channel, Frame], None] = lambda _channel, _frame: None

    def on_channel(self, channel: Channel) -> None:
        self.opened.append(channel)
        self.engine.wake_waiters()

    def on_frame(self, channel: Channel, frame: Frame) -> None:
        self.frames.append(frame)
        self.on_frame_hook(channel, frame)
        self.engine.wake_waiters()

    def on_lost(self, channel: Channel, error: TransportError) -> None:
        self.lost.append(error)
        self.engine.wake_waiters()

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.engine.wait(condition, _PATIENCE_S), f"{len(self.frames)} frames, lost: {self.lost}"

    def close(self) -> None:
        self.node.close("the test ended")
        self.engine.close()


@pytest.fixture
def parties() -> Iterator[Callable[..., _Party]]:
    made: list[_Party] = []

    def make(**options: object) -> _Party:
        made.append(_Party(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for party in reversed(made):
        party.close()


@pytest.fixture(params=["tcp", "relay"])
def pair(parties: Callable[..., _Party], request: pytest.FixtureRequest) -> tuple[_Party, _Party, Channel]:
    """A listening party, a dialling one, and the dialling one's channel."""
    server = parties()
    addresses = server.node.listen(["127.0.0.1"])
    if request.param == "tcp":
        client = parties(role=Role.CONTROLLER)
        return server, client, client.node.connect(addresses)
    client = parties(role=Role.CONTROLLER, around=server)
    channel = client.node.connect([address.replace("127.0.0.1", _BLOCKED) for address in addresses])
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
    pair: tuple[_Party, _Party, Channel], sizes: list[int], body_bytes: int
) -> None:
    server, _, channel = pair
    sent = Frame(Kind.CALL, 3, 2**64 - 1, os.urandom(body_bytes), [os.urandom(size) for size in sizes])
    channel.send(sent)
    server.until(lambda: len(server.frames) == 1)
    assert _digest(server.frames[0]) == _digest(sent)
    assert all(not memoryview(buffer).readonly for buffer in server.frames[0].buffers)


def test_frames_arrive_in_the_order_sent_both_ways_at_once(pair: tuple[_Party, _Party, Channel]) -> None:
    server, client, channel = pair
    server.until(lambda: len(server.opened) == 1)
    dice = random.Random(1)
    plan = [dice.choice([0, 100, INLINE_BYTES + 1, 2 * CHUNK_BYTES]) for _ in range(300)]

    def pour(into: Channel) -> None:
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


def test_a_sent_buffer_may_be_changed_at_once(pair: tuple[_Party, _Party, Channel]) -> None:
    server, _, channel = pair
    buffer = bytearray(8 * CHUNK_BYTES)
    for value in range(8):
        buffer[:] = bytes([value]) * len(buffer)
        channel.send(Frame(Kind.CALL, value, 0, b"", [buffer]))
    server.until(lambda: len(server.frames) == 8)
    assert all(set(frame.buffers[0]) == {frame.dest} for frame in server.frames)


def test_closing_delivers_what_was_sent_and_tells_both_sides_why(pair: tuple[_Party, _Party, Channel]) -> None:
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


def test_giving_up_on_a_peer_is_its_loss_not_our_close(pair: tuple[_Party, _Party, Channel]) -> None:
    _, client, channel = pair
    channel.give_up("no heartbeat for 15 s")
    client.until(lambda: bool(client.lost))
    assert isinstance(channel.error, PeerLost) and "no heartbeat" in str(channel.error)


def test_a_frame_over_the_limit_is_refused_and_the_channel_lives_on(pair: tuple[_Party, _Party, Channel]) -> None:
    server, _, channel = pair
    with pytest.raises(FrameError, match="max_frame_bytes"):
        channel.send(Frame(Kind.CALL, 1, 0, b"", [memoryview(bytearray(2**20))] * 1025))
    channel.send(Frame(Kind.CALL, 2))
    server.until(lambda: len(server.frames) == 1)
    assert server.frames[0].dest == 2


def test_a_sender_waits_while_the_receiver_does_not_read(pair: tuple[_Party, _Party, Channel]) -> None:
    server, _, channel = pair
    gate = threading.Event()
    server.on_frame_hook = lambda _channel, _frame: (gate.wait(_PATIENCE_S), None)[1]
    sent = 0

    def pour() -> None:
        nonlocal sent
        for _ in range(4000):
            channel.send(Frame(Kind.CALL, 0, 0, bytes(60_000)))
            sent += 1

    thread = threading.Thread(target=pour)
    thread.start()
    deadline_s = time.monotonic() + _PATIENCE_S
    while channel.queued_bytes <= _LIMITS.send_queue_bytes:
        assert time.monotonic() < deadline_s, f"{sent} frames sent, nothing held the sender back"
    held_at = sent
    assert held_at < 4000
    gate.set()
    thread.join(_PATIENCE_S)
    server.until(lambda: len(server.frames) == 4000)


def test_a_killed_peer_is_lost_and_a_waiting_sender_told(parties: Callable[..., _Party]) -> None:
    client = parties(role=Role.CONTROLLER)
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            server = _Party()
            os.write(write_fd, server.node.listen(["127.0.0.1"])[0].encode())
            Signal(server.engine).wait(60)
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
                channel.send(Frame(Kind.CALL, 0, 0, b"", [bytes(2**20)]))
        except TransportError as error:
            failure.append(error)

    thread = threading.Thread(target=pour)
    thread.start()
    deadline_s = time.monotonic() + _PATIENCE_S
    while not channel.queued_bytes:
        assert time.monotonic() < deadline_s
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    thread.join(_PATIENCE_S)
    assert isinstance(failure[0], PeerLost)
    client.until(lambda: bool(client.lost))
    with pytest.raises(PeerLost):
        channel.send(Frame(Kind.CALL))


def test_whoever_lacks_the_key_is_refused_and_told_so(parties: Callable[..., _Party]) -> None:
    server, stranger = parties(), parties(key=os.urandom(32))
    addresses = server.node.listen(["127.0.0.1"])
    with pytest.raises(AuthenticationError):
        stranger.node.connect(addresses)
    assert not server.opened and server.node.num_refused == 1


def test_another_process_at_a_remembered_address_is_refused(pair: tuple[_Party, _Party, Channel]) -> None:
    server, client, _ = pair
    addresses = server.node.listen(["127.0.0.1"])
    with pytest.raises(AuthenticationError):
        client.node.connect(addresses, incarnation=12345)


def test_of_several_addresses_the_one_that_answers_wins(parties: Callable[..., _Party]) -> None:
    server, client = parties(), parties()
    stranger = parties(key=os.urandom(32))
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    addresses = [f"tcp://127.0.0.1:{port}", *stranger.node.listen(["127.0.0.1"]), *server.node.listen(["127.0.0.1"])]
    assert client.node.connect(addresses).peer.incarnation == server.identity.incarnation


def test_nobody_at_any_address_is_said_in_words(parties: Callable[..., _Party]) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    with pytest.raises(PeerLost, match="Connection refused"):
        parties().node.connect([f"tcp://127.0.0.1:{port}"])
    with pytest.raises(PeerLost, match="no address"):
        parties().node.connect([])


class _Bomb:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


@pytest.mark.parametrize("opening", ["nothing", "random", "bomb", "true greeting, then a bomb", "replay"])
def test_strangers_open_nothing_run_nothing_and_do_not_stay(
    parties: Callable[..., _Party], tmp_path: Path, opening: str
) -> None:
    server, client = parties(), parties(role=Role.CONTROLLER)
    addresses = server.node.listen(["127.0.0.1"])
    port = int(addresses[0].rpartition(":")[2])
    bomb = pickle.dumps(_Bomb(tmp_path / "exploded"))
    true = Dialing(client.identity, _KEY, 0, addresses[0]).hello
    data = {
        "nothing": b"",
        "random": os.urandom(4 * HELLO_BYTES),
        "bomb": bomb * (HELLO_BYTES // len(bomb) + 4),
        "true greeting, then a bomb": true + len(bomb).to_bytes(4, "little") + bomb * 10,
        "replay": true + os.urandom(100),
    }[opening]
    for _ in range(3 * _LIMITS.max_half_open):  # more than may be half open at once
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.settimeout(_PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
                if opening in ("random", "bomb"):
                    assert not sock.recv(1), "a stranger was answered"
    channel = client.node.connect(addresses)  # who belongs still gets in
    channel.send(Frame(Kind.CALL, 1))
    server.until(lambda: any(frame.dest == 1 for frame in server.frames))
    assert len(server.frames) == len(server.opened) == 1
    assert server.node.channels[client.identity.incarnation].error is None
    assert not (tmp_path / "exploded").exists()


def test_a_silent_connection_is_dropped_at_the_deadline(parties: Callable[..., _Party]) -> None:
    server = parties()
    (address,) = server.node.listen(["127.0.0.1"])
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as sock:
        sock.settimeout(_PATIENCE_S)
        sock.sendall(b"MNHP")
        assert sock.recv(1) == b""
    server.until(lambda: server.node.num_refused == 1)


def test_a_tampered_record_ends_the_channel(parties: Callable[..., _Party]) -> None:
    server, client = parties(), parties()
    (address,) = server.node.listen(["127.0.0.1"])
    proxy = socket.create_server(("127.0.0.1", 0))

    def flip() -> None:
        near, _ = proxy.accept()
        with near, socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as far:
            far.sendall(near.recv(HELLO_BYTES, socket.MSG_WAITALL))
            near.sendall(far.recv(4096))
            far.sendall(near.recv(4 + HEAD_BYTES + TAG_BYTES, socket.MSG_WAITALL))  # the proof
            record = bytearray(near.recv(4096))
            record[-1] ^= 1
            far.sendall(record)
            assert not far.recv(4096)  # the server hangs up

    thread = threading.Thread(target=flip)
    thread.start()
    channel = client.node.connect([f"tcp://127.0.0.1:{proxy.getsockname()[1]}"])
    channel.send(Frame(Kind.CALL, 1, 0, b"pay 1"))
    server.until(lambda: bool(server.lost))
    assert isinstance(server.lost[0], FrameError)
    assert not server.frames
    client.until(lambda: bool(client.lost))
    thread.join(_PATIENCE_S)
    proxy.close()


def test_a_relay_says_why_an_address_cannot_be_reached(parties: Callable[..., _Party]) -> None:
    server = parties()
    client = parties(role=Role.CONTROLLER, around=server)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    with pytest.raises(PeerLost, match=r"Connection refused|unreachable"):
        client.node.connect([f"tcp://{_BLOCKED}:{port}"])


def test_where_a_direct_way_has_worked_no_relay_is_tried(parties: Callable[..., _Party]) -> None:
    server = parties()
    client = parties(role=Role.CONTROLLER, around=server)
    (address,) = server.node.listen(["127.0.0.1"])
    assert client.node.connect([address]).peer.address == address
    begun_s = time.monotonic()
    with pytest.raises(PeerLost):
        client.node.connect([address.replace("127.0.0.1", _BLOCKED)])
    assert time.monotonic() - begun_s < _LIMITS.connect_s + 1
