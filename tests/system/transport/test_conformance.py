"""Behaviour that all fabrics share when processes die, stop, leave, fork, or connect by the thousand."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from monarch_hpc.core.errors import ChannelClosed, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.testing import wait_until
from monarch_hpc.transport import channel as channel_module
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.far import ECHO, HOLD, LEAVE, MEMORY, Far, far
from tests.system.support.parties import BLOCKED, PATIENCE_S, UCX, Party, parties

__all__ = ["parties"]

FABRICS = ["tcp", "relay", "ucx-shm", "ucx-tcp"]
Joined = tuple[Party, FrameChannel, Far]
Parties = Callable[..., Party]


def settled(party: Party, channel: FrameChannel, fabric: str) -> None:
    """Wait until the channel uses the tested fabric."""
    if fabric in UCX:
        party.until(lambda: bool(channel.why))
        assert channel.fabric == fabric.replace("-", "/"), channel.why


def make_client(make: Parties, fabric: str) -> Party:
    around = make() if fabric == "relay" else None
    return make(role=Role.CONTROLLER, ucx=UCX.get(fabric, ""), around=around)


def dialled(address: str, fabric: str) -> list[str]:
    return [address.replace("127.0.0.1", BLOCKED) if fabric == "relay" else address]


@pytest.fixture(params=FABRICS)
def joined(parties: Parties, request: pytest.FixtureRequest) -> Iterator[Joined]:
    """A party here, its channel to a party in another process, and that process."""
    with far(request.param) as there:
        client = make_client(parties, request.param)
        channel = client.node.connect(dialled(there.addresses[0], request.param))
        settled(client, channel, request.param)
        yield client, channel, there


def echo(client: Party, channel: FrameChannel, num: int) -> None:
    before = len(client.frames)
    for number in range(num):
        channel.send(Frame(Kind.RESULT, number, ECHO, b"x" * number))
    client.until(lambda: len(client.frames) == before + num)
    assert [frame.dest for frame in client.frames[before:]] == list(range(num))


def pour(channel: FrameChannel, size: int, failure: list[BaseException]) -> threading.Thread:
    """Send until the channel ends."""

    def main() -> None:
        try:
            while True:
                channel.send(Frame(Kind.RESULT, 0, 0, b"", [bytes(size)]))
        except TransportError as error:
            failure.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    return thread


def test_an_idle_peer_that_is_killed_is_lost_at_once(joined: Joined) -> None:
    client, channel, there = joined
    echo(client, channel, 3)
    there.process.kill()
    client.until(lambda: bool(client.lost))
    assert isinstance(client.lost[0], PeerLost)
    with pytest.raises(PeerLost):
        channel.send(Frame(Kind.RESULT))
    assert not client.node.channels


@pytest.mark.parametrize("size", [100, 3 * 2**20])
def test_a_sender_to_a_killed_peer_is_told(joined: Joined, size: int) -> None:
    client, channel, there = joined
    failure: list[BaseException] = []
    there.process.send_signal(signal.SIGSTOP)  # so that all queues fill up
    thread = pour(channel, size, failure)
    wait_until("frames to wait", lambda: channel.queued_bytes, PATIENCE_S)
    there.process.kill()
    thread.join(PATIENCE_S)
    assert isinstance(failure[0], PeerLost)
    client.until(lambda: bool(client.lost))


@pytest.mark.parametrize("attempt", range(8))
def test_a_peer_killed_in_full_flow_keeps_nothing_here(parties: Parties, attempt: int) -> None:
    """libucp 1.13 may keep messages to such a peer until its own end, one time in six; see `no_leaks`."""
    with far("ucx-shm") as there:
        client = make_client(parties, "ucx-shm")
        channel = client.node.connect(there.addresses)
        settled(client, channel, "ucx-shm")
        failures: list[BaseException] = []
        senders = [pour(channel, size, failures) for size in (100_000, 70_000, 2_000, 10)]
        wait_until("all to send", lambda: channel.queued_bytes, PATIENCE_S, accept=lambda num: num > 400_000)
        there.process.kill()
        for sender in senders:
            sender.join(PATIENCE_S)
        assert len(failures) == 4 and all(isinstance(failure, PeerLost) for failure in failures), failures


def test_frames_behind_one_that_cannot_be_handled_arrive(
    joined: Joined, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, channel, _ = joined

    def refuse(_channel: FrameChannel, frame: Frame) -> None:
        if frame.dest == 1:
            raise ValueError("not this one")

    monkeypatch.setattr(client, "on_frame_hook", refuse)
    echo(client, channel, 4)
    assert any("could not be handled" in record.message for record in caplog.records)


def test_a_stopped_peer_that_goes_on_has_missed_nothing(joined: Joined) -> None:
    client, channel, there = joined
    echo(client, channel, 3)
    client.frames.clear()
    there.process.send_signal(signal.SIGSTOP)
    sizes = [10, 0, 100_000, 1_000, 3_000_000] * 4

    def send() -> None:
        for number, size in enumerate(sizes):
            channel.send(Frame(Kind.RESULT, number, ECHO, b"", [bytes(size)]))

    thread = threading.Thread(target=send)
    thread.start()
    wait_until("frames to wait", lambda: channel.queued_bytes, PATIENCE_S)
    there.process.send_signal(signal.SIGCONT)
    client.until(lambda: len(client.frames) == len(sizes))
    thread.join(PATIENCE_S)
    assert [(frame.dest, len(frame.buffers[0])) for frame in client.frames] == list(enumerate(sizes))
    assert channel.error is None


def test_a_peer_that_leaves_says_so_after_all_its_frames(joined: Joined) -> None:
    client, channel, _ = joined
    for number in range(50):
        channel.send(Frame(Kind.RESULT, number, ECHO, b"", [bytes(number * 5_000)]))
    channel.send(Frame(Kind.RESULT, 0, LEAVE))
    client.until(lambda: bool(client.lost))
    assert [frame.dest for frame in client.frames] == list(range(50))
    assert isinstance(client.lost[0], PeerLost)
    assert "it was told to" in str(client.lost[0])


def test_leaving_while_both_send_ends_both(joined: Joined) -> None:
    client, channel, _ = joined
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


def test_a_channel_closed_before_anything_was_sent(joined: Joined) -> None:
    client, channel, _ = joined
    channel.close("it was not needed")
    client.until(lambda: bool(client.lost))
    assert isinstance(client.lost[0], ChannelClosed)
    assert not client.node.channels


def lend(client: Party, channel: FrameChannel, num_bytes: int) -> bytes:
    """Return a key for *num_bytes* of memory of the other process, filled with sevens."""
    channel.send(Frame(Kind.RESULT, num_bytes, MEMORY))
    client.until(lambda: bool(client.frames))
    return bytes(client.frames.pop().body)


def test_memory_of_another_process_is_read_and_written(joined: Joined) -> None:
    client, channel, _ = joined
    key = lend(client, channel, 5_000_000)
    got = bytearray(5_000_000)
    channel.get(key, 0, got).wait(PATIENCE_S)
    assert set(got) == {7}
    channel.put(key, 1_000, os.urandom(4_000_000)).wait(PATIENCE_S)
    channel.put(key, 1_000, bytes(4_000_000)).wait(PATIENCE_S)
    channel.get(key, 0, got).wait(PATIENCE_S)
    assert [got.count(value) for value in (7, 0)] == [1_000_000, 4_000_000]


def test_a_transfer_with_a_peer_that_stops_and_dies_ends(joined: Joined) -> None:
    client, channel, there = joined
    key = lend(client, channel, 64 * 2**20)
    there.process.send_signal(signal.SIGSTOP)
    transfers = [channel.get(key, 0, bytearray(64 * 2**20)), channel.put(key, 0, bytes(32 * 2**20))]
    there.process.kill()
    for transfer in transfers:
        wait_until("the transfer to end", partial(getattr, transfer, "done"), PATIENCE_S)
    assert all(isinstance(transfer.error, PeerLost | None) for transfer in transfers)
    client.until(lambda: bool(client.lost))


def rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_what_a_sleeping_receiver_does_not_take_fills_neither_side(joined: Joined) -> None:
    client, channel, there = joined
    echo(client, channel, 3)
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

    before_here, before_there = rss_bytes(), there.rss_bytes
    thread = threading.Thread(target=send)
    thread.start()
    # The sender counts as blocked when it has made no progress for a while.
    seen, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < 0.5:
        time.sleep(0.01)  # a spinning thread would hold the GIL
        if sent != seen:
            seen, since_s = sent, time.monotonic()
    grown = rss_bytes() - before_here, there.rss_bytes - before_there
    assert sent < total
    # Kernel buffers and windows of some megabytes each; 64 MiB of eager messages may be queued in a stopped process.
    assert max(grown) <= 96 * 2**20, f"after {sent} MiB the sender has grown by {grown[0]}, the receiver by {grown[1]}"
    there.go_on()
    client.until(lambda: len(client.frames) == 4)
    thread.join(PATIENCE_S)
    assert sent == total


def test_a_fork_of_this_process_harms_nobody(joined: Joined) -> None:
    client, channel, _ = joined
    echo(client, channel, 20)
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        echo(client, channel, 20)
    channel.send(Frame(Kind.RESULT, 0, ECHO, b"", [bytes(2**20)]))
    client.until(lambda: any(frame.buffers for frame in client.frames))


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
def test_many_peers(parties: Parties, fabric: str) -> None:
    count = 1000 if fabric != "relay" else 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with far(fabric, count) as there:
            client = make_client(parties, fabric)
            channels = [client.node.connect(dialled(address, fabric)) for address in there.addresses]
            for channel in channels:
                settled(client, channel, fabric)
            for round_ in range(3):
                for number, channel in enumerate(channels):
                    channel.send(Frame(Kind.RESULT, number, ECHO))
                client.until(lambda due=(round_ + 1) * count: len(client.frames) == due)  # type: ignore[misc]
            assert sorted(frame.dest for frame in client.frames) == sorted([*range(count)] * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
def test_connecting_and_closing_again_and_again_leaves_nothing(
    parties: Parties, fabric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "FIRST_S", 0.0)  # else no channel would live long enough to move to UCX
    # Ten thousand in all; CYCLES=10000 runs them on each fabric, in two to ten minutes each.
    cycles = int(os.environ.get("CYCLES") or {"tcp": 5000, "relay": 3000, "ucx-shm": 1500, "ucx-tcp": 500}[fabric])
    with far(fabric) as there:
        client = make_client(parties, fabric)
        grown = []
        for _half in range(2):
            gc.collect()
            before = rss_bytes(), there.rss_bytes
            num_fds = len(os.listdir("/proc/self/fd")), there.num_fds
            for _ in range(cycles // 2):
                channel = client.node.connect(dialled(there.addresses[0], fabric))
                channel.send(Frame(Kind.RESULT, 7, ECHO))
                client.until(lambda: bool(client.frames))
                channel.close("again")
                client.until(lambda: bool(client.lost))
                assert isinstance(client.lost.pop(), ChannelClosed)
                client.frames.clear()
            gc.collect()
            grown.append((rss_bytes() - before[0], there.rss_bytes - before[1]))
            opened = len(os.listdir("/proc/self/fd")) - num_fds[0], there.num_fds - num_fds[1]
        # The first half also warms up; the second may grow by less than 2 KiB a cycle.
        assert max(grown[1]) < 2 * 1024 * cycles // 2, grown
        assert max(opened) < 10, opened
        print(f"{fabric}: {cycles} cycles, grown by {grown} bytes, descriptors {opened}")


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
def test_a_channel_that_ends_under_its_senders_tells_each_of_them(parties: Parties, fabric: str) -> None:
    """The end may come at any point of a send: a closed lane must not be used."""
    with far(fabric) as there:
        client = make_client(parties, fabric)
        for _ in range(60):
            channel = client.node.connect(dialled(there.addresses[0], fabric))
            settled(client, channel, fabric)
            failures: list[BaseException] = []
            senders = [pour(channel, size, failures) for size in (100_000, 70_000, 2_000, 10)]
            client.until(lambda: all(sender.is_alive() for sender in senders))  # noqa: B023 asked at once
            channel.give_up("in full flow")
            for sender in senders:
                sender.join(PATIENCE_S)
            assert len(failures) == 4 and all(isinstance(failure, TransportError) for failure in failures), failures
            client.until(lambda: bool(client.lost))
            client.lost.clear()
