"""Memory that others open by its identifier, and that its owner takes back: on every fabric."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable
from functools import partial

import pytest

from monarch_hpc.actor.messages.line import LoopbackLink
from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.memory.cma.cross_memory import CrossMemory
from monarch_hpc.transport.memory.framed.lists import ListedPiece, pack_list
from monarch_hpc.transport.memory.framed.operations import PIECE_BYTES
from monarch_hpc.transport.memory.key import ID_BYTES, pack_span
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.moves import Move, Moves
from monarch_hpc.transport.memory.remote import RemoteMemories
from monarch_hpc.transport.memory.requests import Change, MemoryStep, make_request
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import LIMITS, PATIENCE_S, RDMA, Party, join, parties

__all__ = ["parties"]

Link = FrameChannel | LoopbackLink


@pytest.fixture(params=["loopback", "tcp", "cma", "ucx-shm", "ucx-tcp", *RDMA])
def pair(parties: Callable[..., Party], request: pytest.FixtureRequest) -> tuple[Party, Party, Link]:
    """A party with memory, a party without, and the latter's channel; or one party, and its link to itself."""
    if request.param != "loopback":
        return join(parties, request.param)
    owner = parties()
    link = LoopbackLink(owner.engine, lambda _link, _frame: None, LIMITS.mailbox_bytes, owner.node.own_memory)
    return owner, owner, link


@pytest.fixture
def sockets(parties: Callable[..., Party]) -> tuple[Party, Party, FrameChannel]:
    """The same over tcp."""
    owner, asker = parties(), parties(role=Role.CONTROLLER)
    return owner, asker, asker.node.connect(owner.node.listen(["127.0.0.1"]))


def name_of(memory: Memory) -> bytes:
    return memory.parts.id


class Answer:
    """The answer to a request."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._came: list[bytes | TransportError] = []

    def take(self, answer: bytes | TransportError) -> None:
        self._came.append(answer)

    @property
    def here(self) -> bool:
        return bool(self._came)

    def wait(self) -> bytes | TransportError:
        self._party.until(lambda: self.here)
        (answer,) = self._came
        return answer


def revoked(owner: Party, memory: Memory, why: str) -> threading.Event:
    done = threading.Event()
    owner.node.own_memory.grants.revoke(name_of(memory), why, done.set)
    return done


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES + 5])
def test_memory_is_used_by_its_identifier_alone(pair: tuple[Party, Party, Link], size: int) -> None:
    owner, _, link = pair
    buffer, data = bytearray(os.urandom(size + 20)), os.urandom(size)
    memory = owner.node.register(buffer)
    first, second = bytearray(size), bytearray(size)
    transfers = [link.memory.move(name_of(memory), 10, into, write=False) for into in (first, second)]
    for transfer in transfers:
        transfer.wait(PATIENCE_S)
    assert first == second == buffer[10 : 10 + size]
    link.memory.move(name_of(memory), 20, data, write=True).wait(PATIENCE_S)
    assert buffer[20:] == data


def test_what_is_revoked_is_an_error_that_says_why(pair: tuple[Party, Party, Link]) -> None:
    owner, _, link = pair
    used, unused = owner.node.register(bytearray(100)), owner.node.register(bytearray(100))
    link.memory.move(name_of(used), 0, bytearray(100), write=False).wait(PATIENCE_S)
    for memory in (used, unused):
        assert revoked(owner, memory, "dropped by a[0]").wait(PATIENCE_S)
        for write in (False, True):
            with pytest.raises(MemoryAccessError, match=r"dropped by a\[0\]"):
                link.memory.move(name_of(memory), 0, bytearray(100), write=write).wait(PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="no such memory"):
        link.memory.move(bytes(ID_BYTES), 0, bytearray(1), write=False).wait(PATIENCE_S)


def test_anyone_may_drop_and_is_answered_when_it_is_done(pair: tuple[Party, Party, Link]) -> None:
    owner, asker, link = pair
    memory = owner.node.register(bytearray(100))
    link.memory.move(name_of(memory), 0, bytearray(100), write=False).wait(PATIENCE_S)
    first, second = Answer(asker), Answer(asker)
    link.memory.drop(name_of(memory), "dropped by b[1]", first.take)
    assert first.wait() == b""
    assert owner.node.own_memory.memories.find(name_of(memory)) is None
    link.memory.drop(name_of(memory), "dropped by c[2]", second.take)
    error = second.wait()
    assert isinstance(error, MemoryAccessError) and "dropped by b[1]" in str(error)


def test_nobody_reads_what_replaces_dropped_memory(pair: tuple[Party, Party, Link]) -> None:
    """Readers race with the drop: each gets all of the old contents, or an error."""
    owner, asker, link = pair
    for _ in range(20):
        buffer = bytearray(b"o" * 300_000)
        memory = owner.node.register(buffer)
        into = [bytearray(300_000) for _ in range(8)]
        transfers = [link.memory.move(name_of(memory), 0, one, write=False) for one in into[:4]]
        done = revoked(owner, memory, "dropped")
        transfers += [link.memory.move(name_of(memory), 0, one, write=False) for one in into[4:]]
        assert done.wait(PATIENCE_S)
        buffer[:] = b"n" * 300_000
        asker.until(lambda transfers=transfers: all(transfer.done for transfer in transfers))  # type: ignore[misc]
        for transfer, one in zip(transfers, into, strict=True):
            assert b"n" not in one
            assert transfer.error is None or isinstance(transfer.error, MemoryAccessError)


def test_a_drop_waits_for_transfers_in_progress(sockets: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = sockets
    memory = owner.node.register(bytearray(4 * PIECE_BYTES))
    channel.memory.move(name_of(memory), 0, bytearray(1), write=False).wait(PATIENCE_S)
    held: list[Frame] = []
    data = channel.memory.on_data  # type: ignore[attr-defined]
    channel.memory.on_data = held.append  # type: ignore[attr-defined]
    transfer = channel.memory.move(name_of(memory), 0, bytearray(4 * PIECE_BYTES), write=False)
    asker.until(lambda: len(held) == 4)
    done = revoked(owner, memory, "dropped")
    asker.until(lambda: not channel.memory._remotes)  # type: ignore[attr-defined]
    assert not done.is_set()
    for frame in held:
        asker.engine.call_soon(partial(data, frame))
    transfer.wait(PATIENCE_S)
    assert done.wait(PATIENCE_S)


def test_a_reader_that_is_gone_holds_nothing(sockets: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = sockets
    memory = owner.node.register(bytearray(100))
    channel.memory.move(name_of(memory), 0, bytearray(1), write=False).wait(PATIENCE_S)
    channel.memory.on_answer = lambda _frame: None  # type: ignore[attr-defined]  # it never releases
    done = revoked(owner, memory, "dropped")
    owner.until(lambda: not owner.node.own_memory.grants._holders)
    assert not done.is_set()
    channel.close("the end")
    assert done.wait(PATIENCE_S)
    for attempt in range(2):
        with pytest.raises((ChannelClosed, PeerLost)):
            channel.memory.move(name_of(memory), attempt, bytearray(1), write=False).wait(PATIENCE_S)
    answer = Answer(asker)
    channel.memory.drop(name_of(memory), "late", answer.take)
    assert isinstance(answer.wait(), ChannelClosed | PeerLost)


def test_a_transfer_that_is_stopped_writes_no_more(sockets: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = sockets
    memory = owner.node.register(bytearray(b"x" * (8 * PIECE_BYTES)))
    into = bytearray(8 * PIECE_BYTES)
    stopped: list[bool] = []
    transfer = channel.memory.move(name_of(memory), 0, into, write=False)
    asker.engine.call_soon(lambda: stopped.append(transfer.stop(MemoryAccessError("there", "given up"))))
    asker.until(lambda: bool(stopped))
    before = bytes(into)
    channel.memory.move(name_of(memory), 0, bytearray(8 * PIECE_BYTES), write=False).wait(PATIENCE_S)
    assert stopped == [True] and into == before
    with pytest.raises(MemoryAccessError, match="given up"):
        transfer.wait(0)


def test_numbers_are_changed_atomically(pair: tuple[Party, Party, Link]) -> None:
    owner, asker, link = pair
    buffer = bytearray(24)
    memory = owner.node.register(buffer)
    answers = [Answer(asker) for _ in range(100)]
    for answer in answers:
        link.memory.change(name_of(memory), Change(8, struct.pack("<q", -3)), answer.take)
    seen = sorted(
        struct.unpack("<q", one)[0] for one in (answer.wait() for answer in answers) if isinstance(one, bytes)
    )
    assert seen == list(range(-297, 1, 3))
    for compare, expected in ((5, -300), (-300, 77)):
        swapped = Answer(asker)
        change = Change(8, struct.pack("<q", 77), struct.pack("<q", compare))
        link.memory.change(name_of(memory), change, swapped.take)
        assert swapped.wait() == struct.pack("<q", -300)
        assert struct.unpack("<qqq", buffer) == (0, expected, 0)


@pytest.mark.parametrize(("offset", "problem"), [(20, "bytes 20 to 28 of a memory of 24"), (4, "no multiple of 8")])
def test_a_number_elsewhere_cannot_be_changed(pair: tuple[Party, Party, Link], offset: int, problem: str) -> None:
    owner, asker, link = pair
    answer = Answer(asker)
    link.memory.change(name_of(owner.node.register(bytearray(24))), Change(offset, bytes(8)), answer.take)
    error = answer.wait()
    assert isinstance(error, MemoryAccessError) and problem in str(error)


def test_a_request_for_a_key_that_was_interrupted_holds_up_nobody(parties: Callable[..., Party]) -> None:
    party = parties()
    sent: list[Frame] = []

    def send(frame: Frame) -> None:
        sent.append(frame)
        if len(sent) == 1:
            raise KeyboardInterrupt

    memories = RemoteMemories(
        *(party.engine, send, lambda: None, "another process", LIMITS),
        *(CrossMemory(party.engine), party.node.own_memory.devices, lambda: None),
    )
    with pytest.raises(KeyboardInterrupt):
        memories.move(bytes(ID_BYTES), 0, bytearray(4), write=False)
    party.until(lambda: not memories._remotes)
    memories.move(bytes(ID_BYTES), 0, bytearray(4), write=False)
    assert len(sent) == 2, "the next transfer did not ask for the key"


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.MEMORY, 77, 99, bytes(ID_BYTES)),
        Frame(Kind.MEMORY, MemoryStep.OPEN, 99, b"short"),
        make_request(MemoryStep.CHANGE, 99, bytes(ID_BYTES), b"short"),
        make_request(MemoryStep.OPENED, 99, bytes(ID_BYTES)),
        Frame(Kind.MEMORY, MemoryStep.OPEN, 99, bytes(ID_BYTES), [b"buffer"]),
        Frame(Kind.MEMORY, MemoryStep.REVOKE, 0, b"short"),
        Frame(Kind.GET, 0, 99, b"short"),
        Frame(Kind.GET_LIST, 0, 99, b"short"),
        Frame(Kind.PUT_LIST, 0, 99, pack_list([ListedPiece(bytes(ID_BYTES), 0, 4)]), [bytes(4)]),
        Frame(Kind.PUT_LIST, 0, 99, pack_list([ListedPiece(bytes(ID_BYTES), 0, 4)]), []),
        Frame(Kind.PUT, 0, 99, b"short", [bytes(4)]),
        Frame(Kind.PUT, 0, 99, pack_span(bytes(ID_BYTES), 0, 4), [bytes(4), bytes(4)]),
        Frame(Kind.DATA, 99, 0, b"", [bytes(4), bytes(4)]),
    ],
)
def test_a_malformed_request_is_refused_alone(sockets: tuple[Party, Party, FrameChannel], frame: Frame) -> None:
    owner, _, channel = sockets
    channel.send(frame)
    memory = owner.node.register(bytearray(4))
    channel.memory.move(name_of(memory), 0, bytearray(4), write=False).wait(PATIENCE_S)
    assert channel.error is None


@pytest.mark.parametrize("size", [0, ID_BYTES - 1, ID_BYTES + 1, 3 * ID_BYTES])
def test_a_forged_identifier_is_refused_alone(pair: tuple[Party, Party, Link], size: int) -> None:
    owner, asker, link = pair
    memory = owner.node.register(bytearray(8))
    forged = (name_of(memory) * 3)[:size]
    for write in (False, True):
        with pytest.raises(MemoryAccessError, match=r"identifier|no such memory"):
            link.memory.move(forged, 0, bytearray(4), write=write).wait(PATIENCE_S)
    for ask in (
        partial(link.memory.open, forged),
        partial(link.memory.drop, forged, "a thief"),
        partial(link.memory.change, forged, Change(0, bytes(8))),
    ):
        answer = Answer(asker)
        ask(answer.take)
        assert isinstance(answer.wait(), MemoryAccessError)
    link.memory.move(name_of(memory), 0, bytearray(4), write=False).wait(PATIENCE_S)


def test_a_list_of_transfers_ends_as_one_and_begins_again(pair: tuple[Party, Party, Link]) -> None:
    owner, _, link = pair
    sources = [owner.node.register(bytearray(os.urandom(6000))) for _ in range(5)]
    target, data = bytearray(3000), os.urandom(3000)
    written = owner.node.register(target)
    into = [memoryview(bytearray(2000)) for _ in range(2000)]
    moves = Moves(
        [Move(name_of(sources[at % 5]), at, memoryview(one), False) for at, one in enumerate(into)]
        + [Move(name_of(written), at, memoryview(data)[at : at + 500], True) for at in range(0, 3000, 500)]
    )
    for _ in range(2):
        link.memory.move_all(moves).wait(PATIENCE_S)
        assert all(one == bytes(sources[at % 5].view or b"")[at : at + 2000] for at, one in enumerate(into))
        assert target == data
        target[:] = bytes(len(target))
        for one in into:
            one[:] = bytes(len(one))
    assert revoked(owner, sources[3], "dropped by a[0]").wait(PATIENCE_S)
    with pytest.raises(MemoryAccessError, match=r"dropped by a\[0\]"):
        link.memory.move_all(moves).wait(PATIENCE_S)
    outside = Moves([Move(name_of(written), 2999, memoryview(bytearray(2)), False)])
    with pytest.raises(MemoryAccessError, match="bytes 2999 to 3001 of a memory of 3000"):
        link.memory.move_all(outside).wait(PATIENCE_S)
    link.memory.move_all(Moves([])).wait(PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="no such memory"):
        link.memory.move_all(Moves([Move(bytes(ID_BYTES), 0, memoryview(bytearray(2)), False)])).wait(PATIENCE_S)
