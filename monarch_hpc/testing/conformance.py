"""Behaviour that every fabric must have, as tests that run over a channel between two processes.

A test module makes a class of its fabric's tests, and gives it two fixtures::

    class TestMyFabric(FabricConformance):
        @pytest.fixture
        def joined(self) -> Iterator[Joined]: ...  # with a process that the test may kill

        @pytest.fixture
        def shared(self) -> Iterator[Joined]: ...  # with a process that other tests use, too

The other process handles frames with `Commands`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from monarch_hpc.core.errors import ChannelClosed, PeerLost, TransportError
from monarch_hpc.core.errors.transport import NO_MEMORY
from monarch_hpc.testing.waiting import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame, Kind

__all__ = [
    "ECHO",
    "HOLD",
    "LEAVE",
    "MEMORY",
    "PATIENCE_S",
    "Commands",
    "FabricConformance",
    "Joined",
    "pour",
    "rss_bytes",
]

PATIENCE_S = 60.0 * float(os.environ.get("PATIENCE") or 1)
"""Limit of every wait; the variable multiplies it, for emulated machines."""

ECHO, LEAVE, HOLD, MEMORY = 1, 2, 3, 4
"""Commands to the other process, in a frame's `reply`: send the frame back; close the channel; stop reading until there
is another line on stdin; send the key of `dest` bytes of memory filled with sevens."""


class Commands:
    """Handler of a node's channels that carries out the commands of the tests.

    Attributes:
        nodes: the nodes of the process; the first one lends its memory.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def on_channel(self, channel: FrameChannel) -> None:
        """Nothing to do."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Carry out the command of a frame."""
        with contextlib.suppress(TransportError):
            if frame.reply == ECHO:
                channel.send(
                    Frame(frame.kind, frame.dest, 0, bytes(frame.body), [bytes(part) for part in frame.buffers])
                )
            elif frame.reply == LEAVE:
                channel.close("it was told to")
            elif frame.reply == HOLD:
                sys.stdin.readline()
            elif frame.reply == MEMORY:
                # Not on the driver: UCX may have to start first.
                threading.Thread(target=self._lend, args=(channel, frame.dest), daemon=True).start()

    def _lend(self, channel: FrameChannel, num_bytes: int) -> None:
        memory = self.nodes[0].register(bytearray(b"\7" * num_bytes))
        channel.send(Frame(Kind.RESULT, 0, 0, memory.key))

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Nothing to do: clients come and go."""


class Client(Protocol):
    """This process: a node, and a record of its events.

    Attributes:
        frames: the frames that arrived.
        lost: the errors of channels that ended.
        on_frame_hook: called for each frame; it may raise.
    """

    @property
    def node(self) -> Node: ...

    frames: list[Frame]
    lost: list[TransportError]
    on_frame_hook: Callable[[FrameChannel, Frame], object]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which may change with any event."""
        ...


class Server(Protocol):
    """The other process, which carries out `Commands`.

    Attributes:
        process: the process.
        rss_bytes: its resident memory.
    """

    process: subprocess.Popen[str]

    @property
    def rss_bytes(self) -> int: ...

    def go_on(self) -> None:
        """End a HOLD."""
        ...


class Joined(NamedTuple):
    """A channel of the tested fabric, and its ends.

    Attributes:
        client: the end in this process.
        channel: the client's channel.
        server: the end in the other process.
    """

    client: Client
    channel: FrameChannel
    server: Server


def pour(channel: FrameChannel, size: int, failure: list[BaseException]) -> threading.Thread:
    """Start a thread that sends frames of *size* bytes until the channel ends, and appends the error to *failure*."""

    def main() -> None:
        try:
            while True:
                channel.send(Frame(Kind.RESULT, 0, 0, b"", [bytes(size)]))
        except TransportError as error:
            failure.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    return thread


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _echo(client: Client, channel: FrameChannel, num: int) -> None:
    """Send *num* frames and wait for their echoes, in order."""
    before = len(client.frames)
    for number in range(num):
        channel.send(Frame(Kind.RESULT, number, ECHO, b"x" * number))
    client.until(lambda: len(client.frames) == before + num)
    assert [frame.dest for frame in client.frames[before:]] == list(range(num))


def _lend(client: Client, channel: FrameChannel, num_bytes: int) -> bytes:
    """Return a key for *num_bytes* of memory of the other process, filled with sevens."""
    channel.send(Frame(Kind.RESULT, num_bytes, MEMORY))
    client.until(lambda: bool(client.frames))
    return bytes(client.frames.pop().body)


@contextlib.contextmanager
def _log_messages() -> Iterator[list[str]]:
    """Collect the messages that are logged meanwhile."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger().removeHandler(handler)


class FabricConformance:
    """Tests of one fabric; a subclass provides the fixtures `joined` and `shared`."""

    def test_an_idle_peer_that_is_killed_is_lost_at_once(self, joined: Joined) -> None:
        client, channel, server = joined
        _echo(client, channel, 3)
        server.process.kill()
        client.until(lambda: bool(client.lost))
        assert isinstance(client.lost[0], PeerLost)
        try:
            channel.send(Frame(Kind.RESULT))
        except PeerLost:
            pass
        else:
            raise AssertionError("a frame was sent to a lost peer")
        assert not client.node.channels

    def test_a_sender_of_small_frames_to_a_killed_peer_is_told(self, joined: Joined) -> None:
        self._sender_is_told(joined, 100)

    def test_a_sender_of_large_frames_to_a_killed_peer_is_told(self, joined: Joined) -> None:
        self._sender_is_told(joined, 3 * 2**20)

    def _sender_is_told(self, joined: Joined, size: int) -> None:
        client, channel, server = joined
        failure: list[BaseException] = []
        server.process.send_signal(signal.SIGSTOP)  # so that all queues fill up
        thread = pour(channel, size, failure)
        wait_until("frames to wait", lambda: channel.queued_bytes, PATIENCE_S)
        server.process.kill()
        thread.join(PATIENCE_S)
        assert isinstance(failure[0], PeerLost)
        client.until(lambda: bool(client.lost))

    def test_frames_behind_one_that_cannot_be_handled_arrive(self, shared: Joined) -> None:
        client, channel, _ = shared

        def refuse(_channel: FrameChannel, frame: Frame) -> None:
            if frame.dest == 1:
                raise ValueError("not this one")

        client.on_frame_hook = refuse
        with _log_messages() as messages:
            _echo(client, channel, 4)
        assert any("could not be handled" in message for message in messages)

    def test_a_frame_that_there_is_no_memory_to_handle_ends_its_channel_only(self, joined: Joined) -> None:
        client, channel, _ = joined

        def lack(_channel: FrameChannel, _frame: Frame) -> None:
            raise MemoryError

        client.on_frame_hook = lack
        channel.send(Frame(Kind.RESULT, 1, ECHO))
        client.until(lambda: bool(client.lost))
        assert NO_MEMORY in str(channel.error)

    def test_a_stopped_peer_that_goes_on_has_missed_nothing(self, shared: Joined) -> None:
        client, channel, server = shared
        _echo(client, channel, 3)
        client.frames.clear()
        server.process.send_signal(signal.SIGSTOP)
        sizes = [10, 0, 100_000, 1_000, 3_000_000] * 4

        def send() -> None:
            for number, size in enumerate(sizes):
                channel.send(Frame(Kind.RESULT, number, ECHO, b"", [bytes(size)]))

        thread = threading.Thread(target=send)
        thread.start()
        wait_until("frames to wait", lambda: channel.queued_bytes, PATIENCE_S)
        server.process.send_signal(signal.SIGCONT)
        client.until(lambda: len(client.frames) == len(sizes))
        thread.join(PATIENCE_S)
        assert [(frame.dest, len(frame.buffers[0])) for frame in client.frames] == list(enumerate(sizes))
        assert channel.error is None

    def test_a_peer_that_leaves_says_so_after_all_its_frames(self, shared: Joined) -> None:
        client, channel, _ = shared
        for number in range(50):
            channel.send(Frame(Kind.RESULT, number, ECHO, b"", [bytes(number * 5_000)]))
        channel.send(Frame(Kind.RESULT, 0, LEAVE))
        client.until(lambda: bool(client.lost))
        assert [frame.dest for frame in client.frames] == list(range(50))
        assert isinstance(client.lost[0], PeerLost)
        assert "it was told to" in str(client.lost[0])

    def test_leaving_while_both_send_ends_both(self, shared: Joined) -> None:
        client, channel, _ = shared
        failure: list[BaseException] = []
        thread = pour(channel, 200_000, failure)
        echo_failure: list[BaseException] = []
        channel.send(Frame(Kind.RESULT, 0, ECHO, b"", [bytes(10**6)]))
        client.until(lambda: bool(client.frames))
        channel.close("enough")
        thread.join(PATIENCE_S)
        client.until(lambda: bool(client.lost))
        assert isinstance(failure[0], ChannelClosed)
        assert isinstance(client.lost[0], ChannelClosed)
        assert not echo_failure

    def test_a_channel_closed_before_anything_was_sent(self, shared: Joined) -> None:
        client, channel, _ = shared
        channel.close("it was not needed")
        client.until(lambda: bool(client.lost))
        assert isinstance(client.lost[0], ChannelClosed)
        assert not client.node.channels

    def test_memory_of_another_process_is_read_and_written(self, shared: Joined) -> None:
        client, channel, _ = shared
        key = _lend(client, channel, 5_000_000)
        got = bytearray(5_000_000)
        channel.get(key, 0, got).wait(PATIENCE_S)
        assert set(got) == {7}
        channel.put(key, 1_000, os.urandom(4_000_000)).wait(PATIENCE_S)
        channel.put(key, 1_000, bytes(4_000_000)).wait(PATIENCE_S)
        channel.get(key, 0, got).wait(PATIENCE_S)
        assert [got.count(value) for value in (7, 0)] == [1_000_000, 4_000_000]

    def test_a_transfer_with_a_peer_that_stops_and_dies_ends(self, joined: Joined) -> None:
        client, channel, server = joined
        key = _lend(client, channel, 64 * 2**20)
        server.process.send_signal(signal.SIGSTOP)
        transfers = [channel.get(key, 0, bytearray(64 * 2**20)), channel.put(key, 0, bytes(32 * 2**20))]
        server.process.kill()
        for transfer in transfers:
            wait_until("the transfer to end", partial(getattr, transfer, "done"), PATIENCE_S)
        assert all(isinstance(transfer.error, PeerLost | None) for transfer in transfers)
        client.until(lambda: bool(client.lost))

    def test_what_a_sleeping_receiver_does_not_take_fills_neither_side(self, shared: Joined) -> None:
        client, channel, server = shared
        _echo(client, channel, 3)
        channel.send(Frame(Kind.RESULT, 0, HOLD))
        piece = bytearray(2**20)
        total = 600
        sent = 0

        def send() -> None:
            nonlocal sent
            for _ in range(total):
                channel.send(Frame(Kind.RESULT, 1, 0, b"", [piece]))
                sent += 1
            channel.send(Frame(Kind.RESULT, 2, ECHO))

        before_here, before_server = rss_bytes(), server.rss_bytes
        thread = threading.Thread(target=send)
        thread.start()
        # The sender counts as blocked when it has made no progress for a while.
        seen, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < 0.5:
            time.sleep(0.01)  # a spinning thread would hold the GIL
            if sent != seen:
                seen, since_s = sent, time.monotonic()
        grown = rss_bytes() - before_here, server.rss_bytes - before_server
        assert sent < total
        # Kernel buffers and windows of some megabytes each; 64 MiB of eager messages may wait in a stopped process.
        assert max(grown) <= 96 * 2**20, f"after {sent} MiB, sender and receiver have grown by {grown} bytes"
        server.go_on()
        client.until(lambda: len(client.frames) == 4)
        thread.join(PATIENCE_S)
        assert sent == total

    def test_a_fork_of_this_process_harms_no_channel(self, shared: Joined) -> None:
        client, channel, _ = shared
        _echo(client, channel, 20)
        for _ in range(3):
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            _echo(client, channel, 20)
        channel.send(Frame(Kind.RESULT, 0, ECHO, b"", [bytes(2**20)]))
        client.until(lambda: any(frame.buffers for frame in client.frames))
