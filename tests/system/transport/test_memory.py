"""Memory of another process, read and written without running its code, on every fabric."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable

import pytest

from monarch_hpc.actor.messages.line import LoopbackLink
from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.memory.framed.operations import PIECE_BYTES, WINDOW_BYTES
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import BLOCKED, LIMITS, PATIENCE_S, RDMA, UCX, Party, parties

__all__ = ["parties"]


Link = FrameChannel | LoopbackLink


def loopback(party: Party) -> LoopbackLink:
    return LoopbackLink(party.engine, lambda _link, _frame: None, LIMITS.mailbox_bytes, party.node.own_memory)


@pytest.fixture(params=["loopback", "tcp", "relay", "ucx-shm", "ucx-tcp", *RDMA])
def pair(parties: Callable[..., Party], request: pytest.FixtureRequest) -> tuple[Party, Party, Link]:
    """A party with memory, a party without, and the latter's channel; or one party, and its link to itself."""
    ucx = UCX.get(request.param, "")
    owner = parties(ucx=ucx)
    if request.param == "loopback":
        return owner, owner, loopback(owner)
    addresses = owner.node.listen(["127.0.0.1"])
    if request.param != "relay":
        asker = parties(role=Role.CONTROLLER, ucx=ucx)
        channel = asker.node.connect(addresses)
        asker.until(lambda: not ucx or bool(channel.why))
        assert channel.fabric == request.param.replace("-", "/")
        return owner, asker, channel
    asker = parties(role=Role.CONTROLLER, around=owner)
    return owner, asker, asker.node.connect([address.replace("127.0.0.1", BLOCKED) for address in addresses])


@pytest.fixture(params=["loopback", "tcp", "relay"])
def checked(parties: Callable[..., Party], request: pytest.FixtureRequest) -> tuple[Party, Party, Link]:
    """The same where the owner checks each access. UCX relies on the requester to stay within a key."""
    if request.param == "loopback":
        owner = parties()
        return owner, owner, loopback(owner)
    return join_by_frames(parties, request.param)


@pytest.fixture(params=["tcp", "relay"])
def framed(parties: Callable[..., Party], request: pytest.FixtureRequest) -> tuple[Party, Party, FrameChannel]:
    """The same where transfers are frames that the owner's engine answers; UCX answers on its own thread."""
    return join_by_frames(parties, request.param)


def join_by_frames(parties: Callable[..., Party], fabric: str) -> tuple[Party, Party, FrameChannel]:
    owner = parties()
    addresses = owner.node.listen(["127.0.0.1"])
    if fabric == "tcp":
        asker = parties(role=Role.CONTROLLER)
        return owner, asker, asker.node.connect(addresses)
    asker = parties(role=Role.CONTROLLER, around=owner)
    return owner, asker, asker.node.connect([address.replace("127.0.0.1", BLOCKED) for address in addresses])


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_what_was_put_is_there_and_what_is_there_is_got(pair: tuple[Party, Party, Link], size: int) -> None:
    owner, _, channel = pair
    buffer = bytearray(os.urandom(size + 20))
    expected = bytearray(buffer)
    data = os.urandom(size)
    expected[10 : 10 + size] = data
    with owner.node.register(buffer) as memory:
        channel.put(memory.key, 10, data).wait(PATIENCE_S)
        assert buffer == expected
        got = bytearray(size + 20)
        channel.get(memory.key, 0, got).wait(PATIENCE_S)
    assert got == expected
    assert not owner.frames, "transfers are invisible to the channel's user"


def test_many_transfers_run_at_once_and_each_is_told(pair: tuple[Party, Party, Link]) -> None:
    owner, asker, channel = pair
    dice = random.Random(1)
    buffer = bytearray(os.urandom(8 * PIECE_BYTES))
    memory = owner.node.register(buffer)
    told: list[Transfer] = []
    asked = []
    for _ in range(30):
        size = dice.choice([1, 5000, 200_000, PIECE_BYTES + 1])
        offset = dice.randrange(len(buffer) - size)
        into = bytearray(size)
        transfer = channel.get(memory.key, offset, into)
        transfer.on_done(told.append)
        asked.append((offset, into))
    asker.until(lambda: len(told) == len(asked))
    assert all(transfer.done and transfer.error is None for transfer in told)
    assert all(into == buffer[offset : offset + len(into)] for offset, into in asked)


def test_a_frame_does_not_wait_for_a_large_transfer(framed: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = framed
    memory = owner.node.register(bytearray(8 * WINDOW_BYTES), writable=False)
    done_at: list[bool] = []
    transfer = channel.get(memory.key, 0, bytearray(memory.nbytes))
    owner.on_frame_hook = lambda back, frame: back.send(Frame(Kind.RESULT, frame.dest))
    asker.on_frame_hook = lambda _channel, _frame: done_at.append(transfer.done)
    channel.send(Frame(Kind.RESULT, 7))
    asker.until(lambda: bool(asker.frames))
    assert done_at == [False], "it arrived after 8 windows"
    transfer.wait(PATIENCE_S)


def test_what_cannot_be_written_to_can_be_registered_to_be_read(pair: tuple[Party, Party, Link]) -> None:
    owner, _, channel = pair
    with pytest.raises(ValueError, match="cannot be written to: bytes"):
        owner.node.register(b"only read")
    got = bytearray(4)
    with owner.node.register(b"only read", writable=False) as memory:
        channel.get(memory.key, 5, got).wait(PATIENCE_S)
    assert got == b"read"


def _keys(memory: Memory) -> dict[str, bytes]:
    key = memory.key
    return {"forged": bytes(16) + key[16:], "no key": b"some text"}


@pytest.mark.parametrize("which", ["forged", "no key"])
def test_without_its_key_there_is_no_memory(checked: tuple[Party, Party, Link], which: str) -> None:
    owner, _, channel = checked
    memory = owner.node.register(bytearray(100))
    key = _keys(memory)[which]
    with pytest.raises(MemoryAccessError, match=r"no such memory|not a memory key"):
        channel.get(key, 0, bytearray(10)).wait(PATIENCE_S)
    assert not owner.lost


@pytest.mark.parametrize("size", [10, 200_000])
def test_what_lies_outside_or_may_only_be_read_stays_as_it_is(checked: tuple[Party, Party, Link], size: int) -> None:
    owner, _, channel = checked
    buffer = bytearray(300_000)
    readable = owner.node.register(buffer, writable=False)
    writable = owner.node.register(buffer)
    data = b"x" * size
    for forged in (False, True):
        # The requester's own check is a courtesy; the owner does not rely on it.
        key, outer = readable.key, writable.key
        if forged:
            key = key[:16] + (2**40).to_bytes(8, "little") + b"\x01" + key[25:]
            outer = outer[:16] + (2**40).to_bytes(8, "little") + outer[24:]
        with pytest.raises(MemoryAccessError, match="read only"):
            channel.put(key, 0, data).wait(PATIENCE_S)
        with pytest.raises(MemoryAccessError, match="of a memory of 300000 bytes"):
            channel.put(outer, 299_995, data).wait(PATIENCE_S)
        with pytest.raises(MemoryAccessError, match="of a memory of 300000 bytes"):
            channel.get(outer, 299_995, bytearray(size)).wait(PATIENCE_S)
    assert not any(buffer)
    channel.put(writable.key, 0, data).wait(PATIENCE_S)
    assert buffer.startswith(data)


def test_a_closed_memory_is_out_of_reach_and_untouched(framed: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = framed
    buffer = bytearray(4 * WINDOW_BYTES)
    memory = owner.node.register(buffer)
    running = channel.put(memory.key, 0, b"x" * len(buffer))
    asker.until(lambda: any(buffer[::PIECE_BYTES]))
    memory.close()
    then = bytes(buffer)
    with pytest.raises(MemoryAccessError, match="closed it"):
        running.wait(PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="closed it"):
        channel.get(memory.key, 0, bytearray(1)).wait(PATIENCE_S)
    assert buffer == then, "written to after it was closed"


def test_a_lost_peer_ends_all_transfers(framed: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = framed
    memory = owner.node.register(bytearray(b"x" * 4 * WINDOW_BYTES))
    key, into = memory.key, bytearray(memory.nbytes)
    given_up = threading.Event()

    def give_up() -> None:
        owner.opened[0].give_up("the test wants it so")
        given_up.set()

    def lose_it_amid_the_first() -> None:
        if not into[0]:
            asker.engine.call_later(0.001, lose_it_amid_the_first)
            return
        owner.engine.call_soon(give_up)
        given_up.wait(PATIENCE_S)  # the asker's engine fetches nothing meanwhile, so that none of them can end before

    transfers = [channel.get(key, 0, into) for _ in range(3)]
    asker.engine.call_soon(lose_it_amid_the_first)
    for transfer in transfers:
        with pytest.raises(PeerLost):
            transfer.wait(PATIENCE_S)
    asker.until(lambda: bool(asker.lost))
    with pytest.raises(PeerLost):
        channel.put(key, 0, b"late").wait(PATIENCE_S)


def test_closing_the_channel_here_ends_them_too(framed: tuple[Party, Party, FrameChannel]) -> None:
    owner, _, channel = framed
    gate, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        gate.wait(PATIENCE_S)

    owner.engine.call_soon(block)  # so that nothing is answered
    assert blocked.wait(PATIENCE_S)
    memory = owner.node.register(bytearray(10))
    transfer = channel.get(memory.key, 0, bytearray(10))
    with pytest.raises(TimeoutError, match="get of 10 bytes at 0"):
        transfer.wait(0.01)
    channel.close("enough")
    with pytest.raises(ChannelClosed, match="enough"):
        transfer.wait(PATIENCE_S)
    gate.set()


def test_a_buffer_that_cannot_be_used_is_refused_at_once(checked: tuple[Party, Party, Link]) -> None:
    owner, _, channel = checked
    key = owner.node.register(bytearray(100)).key
    with pytest.raises(ValueError, match="cannot be written to: bytes"):
        channel.get(key, 0, bytes(10))
    with pytest.raises(ValueError, match="not contiguous"):
        channel.put(key, 0, memoryview(bytes(10))[::2])
    with pytest.raises(TypeError):
        channel.put(key, 0, 5)


@pytest.mark.parametrize("size", [0, 10])
def test_closed_memory_is_refused_whatever_the_size(checked: tuple[Party, Party, Link], size: int) -> None:
    owner, _, channel = checked
    with owner.node.register(bytearray(100)) as memory:
        key = memory.key
        channel.get(key, 0, bytearray(size)).wait(PATIENCE_S)
    transfer = channel.get(key, 0, bytearray(size))
    with pytest.raises(MemoryAccessError, match="closed it"):
        transfer.wait(PATIENCE_S)
    assert transfer.done and isinstance(transfer.error, MemoryAccessError)


def test_closing_memory_ends_its_use_by_its_own_process(parties: Callable[..., Party]) -> None:
    """The threads of a process that copy are stopped between two pieces, and touch nothing after `close`."""
    owner = parties()
    link = loopback(owner)
    buffer = bytearray(4 * PIECE_BYTES)
    memory = owner.node.register(buffer)
    failures: list[MemoryAccessError] = []
    begun = threading.Semaphore(0)

    def pour(byte: bytes) -> None:
        data = byte * len(buffer)
        while True:
            begun.release()
            try:
                link.put(memory.key, 0, data).wait(PATIENCE_S)
            except MemoryAccessError as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=pour, args=(byte,)) for byte in (b"x", b"y")]
    for thread in threads:
        thread.start()
    for _ in range(6):
        assert begun.acquire(timeout=PATIENCE_S)
    memory.close()
    then = bytes(buffer)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(failures) == 2 and all("closed it" in str(failure) for failure in failures)
    assert buffer == then, "written to after it was closed"
