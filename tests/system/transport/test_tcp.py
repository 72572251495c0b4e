"""Several threads and the driver on one socket: none waits for another, and each one's frames stay in order."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from monarch_hpc.core.errors import ChannelClosed, FrameError, PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport import node as node_module
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.channel import PeerChannel
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.secure.records import CHUNK_BYTES, INLINE_BYTES
from monarch_hpc.transport.sharing import copy_to_share
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import LIMITS, PATIENCE_S, Party, parties
from tests.system.support.programs import Programs, programs

__all__ = ["parties", "programs"]


@pytest.fixture
def pair(parties: Callable[..., Party]) -> tuple[Party, Party, FrameChannel]:
    """A listening party, a dialling party, and the latter's channel."""
    server = parties()
    addresses = server.node.listen(["127.0.0.1"])
    client = parties(role=Role.CONTROLLER)
    return server, client, client.node.connect(addresses)


def test_the_frames_of_each_thread_arrive_in_its_order(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    sizes = [0, 10, 5000, INLINE_BYTES + 1, 2 * CHUNK_BYTES + 3]
    num = 200

    def pour(sender: int) -> None:
        for number in range(num):
            size = sizes[(sender + number) % len(sizes)]
            channel.send(Frame(Kind.RESULT, sender, number, b"", [bytes([sender]) * size] if size else []))

    def pour_driving(number: int = 0) -> None:
        for part in range(number, min(number + 20, num)):
            channel.send(Frame(Kind.RESULT, 9, part))
        if number < num:
            client.engine.call_soon(lambda: pour_driving(number + 20))

    threads = [threading.Thread(target=pour, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    client.engine.call_soon(pour_driving)
    for thread in threads:
        thread.join(PATIENCE_S)
    server.until(lambda: len(server.frames) == 5 * num)
    arrived = defaultdict(list)
    for frame in server.frames:
        arrived[frame.dest].append(frame.reply)
        assert all(buffer == bytes([frame.dest]) * len(buffer) for buffer in frame.buffers)
    assert arrived == {sender: list(range(num)) for sender in (0, 1, 2, 3, 9)}


def test_the_driver_does_not_wait_for_a_thread_that_sends(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    gate = threading.Event()
    server.on_frame_hook = lambda _channel, _frame: (gate.wait(PATIENCE_S), None)[1]
    channel.send(Frame(Kind.RESULT, 1))  # its receiver sleeps from here on
    server_has = threading.Thread(target=channel.send, args=(Frame(Kind.RESULT, 2, 0, b"", [bytes(2**26)]),))
    server_has.start()
    sent = Flag(client.engine)

    def send() -> None:
        channel.send(Frame(Kind.RESULT, 3))
        sent.set()

    client.until(lambda: channel.queued_bytes > 2**20)
    client.engine.call_soon(send)
    assert sent.wait(PATIENCE_S)
    assert server_has.is_alive(), "the large frame is still in flight"
    gate.set()
    server_has.join(PATIENCE_S)
    server.until(lambda: len(server.frames) == 3)
    assert [frame.dest for frame in server.frames] == [1, 2, 3]


def test_answers_to_what_came_together_go_together(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    server.on_frame_hook = lambda back, frame: back.send(Frame(Kind.RESULT, frame.dest))
    for number in range(2000):
        channel.send(Frame(Kind.RESULT, number))
    client.until(lambda: len(client.frames) == 2000)
    assert [frame.dest for frame in client.frames] == list(range(2000))


WRITES_ON = """
import os, signal, sys
from monarch_hpc.core.ids import Role
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support import parties

to_client, from_server = os.pipe()
server = os.fork()
if not server:
    party = parties.Party()
    os.write(from_server, (party.node.listen(["127.0.0.1"])[0] + "\\n").encode())
    signal.alarm(60)
    signal.pause()
client = parties.Party(role=Role.CONTROLLER)
with open(to_client) as lines:
    channel = client.node.connect([lines.readline().strip()])

def write_on():
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)  # the kernel has closed its sockets
    for number in range(200):  # more than goes out in one write
        channel.send(Frame(Kind.RESULT, number, 0, bytes(50_000)))

client.engine.call_soon(write_on)
client.until(lambda: bool(client.lost))
print("lost:", client.lost[0])
client.close()
"""


def test_a_driver_that_writes_on_to_a_dead_peer_hears_of_its_end(programs: Programs) -> None:
    assert "lost: lost" in programs.run(WRITES_ON)


def test_ctrl_c_in_a_wait_for_credit_keeps_none(pair: tuple[Party, Party, FrameChannel]) -> None:
    server, client, channel = pair
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    call = Frame(Kind.CALL, 7, body=bytes(LIMITS.mailbox_bytes))
    try:
        channel.send(call)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 it may come before the wait
            client.engine.call_later(0.05, lambda: signal.raise_signal(signal.SIGINT))
            channel.send(call)
    finally:
        signal.signal(signal.SIGINT, before)
    server.until(lambda: len(server.frames) == 1)
    server.opened[0].consumed(7, cost_of(call))
    assert channel.send(call, end_s=client.engine.clock() + PATIENCE_S)
    server.until(lambda: len(server.frames) == 2)
    assert channel.blocked_s


@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.CALL])
def test_each_use_of_a_closed_channel_raises_its_error_without_the_frames_of_earlier_ones(
    pair: tuple[Party, Party, FrameChannel], kind: Kind
) -> None:
    _, client, channel = pair
    channel.close("enough")
    client.until(lambda: bool(client.lost))
    num_frames = set()
    for size in [0, 2 * CHUNK_BYTES] * 3:
        with pytest.raises(ChannelClosed) as raised:
            channel.send(Frame(kind, 7, buffers=[bytes(size)] if size else []))
        num_frames.add((size, len(raised.traceback)))
    assert len(num_frames) == 2


def test_bytes_that_are_no_frame_end_a_channel_and_are_not_the_fault_of_later_frames(
    pair: tuple[Party, Party, FrameChannel],
) -> None:
    _server, client, channel = pair
    assert isinstance(channel, PeerChannel)
    client.engine.call_soon(lambda: channel._wire._end(FrameError("a length of -1"), None))
    client.until(lambda: bool(client.lost))
    assert isinstance(channel.error, FrameError)
    for kind in (Kind.RESULT, Kind.CALL):
        with pytest.raises(PeerLost, match="a length of -1"):
            channel.send(Frame(kind, 7), end_s=client.engine.clock() + PATIENCE_S)


def test_a_call_in_shared_memory_that_cannot_be_sent_keeps_neither_credit_nor_memory(
    pair: tuple[Party, Party, FrameChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client, channel = pair
    assert isinstance(channel, PeerChannel)
    asked = Flag(client.engine)
    channel.sharing.ask(asked.set)
    assert asked.wait(PATIENCE_S) and channel.sharing.agreed
    call = Frame(Kind.CALL, 7, 0, b"", copy_to_share([memoryview(bytearray(LIMITS.mailbox_bytes + 1))[1:]]))

    def refuse(_frame: Frame) -> None:
        raise FrameError("not this one")

    with monkeypatch.context() as patched:
        patched.setattr(channel, "_send_whole", refuse)
        for _ in range(3):
            with pytest.raises(FrameError):
                channel.send(call, end_s=client.engine.clock() + PATIENCE_S)
    assert channel.send(call, end_s=client.engine.clock() + PATIENCE_S), "the credit is back"
    server.until(lambda: len(server.frames) == 1)
    client.until(lambda: not channel.sharing._given)  # the receiver has opened it; nothing is left of the others


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no memory"), MemoryError()], ids=["OSError", "MemoryError"])
def test_a_process_without_room_for_another_channel_keeps_those_it_has(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    server = parties()
    addresses = server.node.listen(["127.0.0.1"])
    client, second = parties(role=Role.CONTROLLER), parties(role=Role.CONTROLLER)
    channel = client.node.connect(addresses)
    server.until(lambda: len(server.opened) == 1)

    def fail(engine: Engine, *rest: Any, **options: Any) -> PeerChannel:
        if engine is server.engine:
            raise error
        return PeerChannel(engine, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(node_module, "PeerChannel", fail)
        with contextlib.suppress(PeerLost):  # it may be over so soon that there was no channel at all
            refused = second.node.connect(addresses)
            second.until(lambda: refused.error is not None)
    assert second.node.connect(addresses).error is None
    channel.send(Frame(Kind.RESULT, 1, 7))
    server.until(lambda: [frame.reply for frame in server.frames] == [7])
    assert server.engine.failure is None


def test_a_process_without_memory_to_read_loses_that_channel_only(
    parties: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = parties()
    addresses = server.node.listen(["127.0.0.1"])
    first, second = parties(role=Role.CONTROLLER), parties(role=Role.CONTROLLER)
    channels = [party.node.connect(addresses) for party in (first, second)]
    server.until(lambda: len(server.opened) == 2)

    def fail() -> memoryview:
        raise MemoryError

    opened = server.opened[0]
    assert isinstance(opened, PeerChannel)
    monkeypatch.setattr(opened._wire._inbox, "room", fail)
    for channel in channels:
        with contextlib.suppress(PeerLost):
            channel.send(Frame(Kind.RESULT, 1, 7))
    server.until(lambda: len(server.lost) == 1 and len(server.frames) == 1)
    assert "this process has no memory left to read" in str(opened.error)
    assert server.engine.failure is None
