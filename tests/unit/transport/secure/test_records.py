"""Heartbeats and credit overtake queued frames, but never split a large one."""

from __future__ import annotations

import os
import weakref

import pytest

from monarch_hpc.transport.secure import records
from monarch_hpc.transport.secure.noise import Cipher
from monarch_hpc.transport.secure.records import CHUNK_BYTES, Bulk, RecordReader, RecordWriter
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, RefusedBuffers, pack_frame, pack_head


def carry(outbox: RecordWriter, inbox: RecordReader) -> bool:
    """Transfer one write to the other side; False if there was none."""
    data = memoryview(outbox.next_write())
    num_bytes = len(data)
    while data:
        room = inbox.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        inbox.arrived(count)
        data = data[count:]
    return num_bytes > 0


def bulk(number: int, num_bytes: int) -> Bulk:
    frame = Frame(Kind.RESULT, number, 0, b"", [bytes(num_bytes)])
    return Bulk(frame, pack_head(frame), num_bytes)


def test_what_is_urgent_goes_before_what_waits_but_not_into_what_has_begun() -> None:
    key = os.urandom(32)
    outbox = RecordWriter(Cipher(key))
    came: list[tuple[Kind, int]] = []
    inbox = RecordReader(Cipher(key), 2**30, lambda frame: came.append((frame.kind, frame.dest)))
    outbox.queued.extend([bulk(1, 5 * CHUNK_BYTES), pack_frame(Frame(Kind.CALL, 2)), bulk(3, CHUNK_BYTES)])
    outbox.urgent.append(pack_frame(Frame(Kind.CREDIT, 4)))
    assert carry(outbox, inbox) and came == [(Kind.CREDIT, 4)]
    assert carry(outbox, inbox) and outbox.waiting
    outbox.urgent.extend(pack_frame(Frame(Kind.CREDIT, number)) for number in (5, 6))
    while carry(outbox, inbox):
        pass
    assert [dest for _, dest in came] == [4, 1, 5, 6, 2, 3]
    assert not outbox.waiting


def test_what_is_urgent_goes_alone_too() -> None:
    key = os.urandom(32)
    outbox = RecordWriter(Cipher(key))
    came: list[Frame] = []
    inbox = RecordReader(Cipher(key), 2**30, came.append)
    outbox.urgent.append(pack_frame(Frame(Kind.PING)))
    assert outbox.waiting
    assert carry(outbox, inbox)
    assert [frame.kind for frame in came] == [Kind.PING]
    assert not carry(outbox, inbox)


def test_a_frame_whose_sender_gives_up_owns_what_is_left_of_it() -> None:
    key = os.urandom(32)
    came: list[Frame] = []
    inbox, outbox = RecordReader(Cipher(key), 2**30, came.append), RecordWriter(Cipher(key))
    data = bytearray(b"7" * (5 * CHUNK_BYTES))
    frame = Frame(Kind.CALL, 1, 2, b"", [data])
    given_up = Bulk(frame, pack_head(frame), len(data))
    outbox.queued.append(given_up)
    assert carry(outbox, inbox) and carry(outbox, inbox) and outbox.waiting
    given_up.own()
    data[:] = bytes(len(data))
    while carry(outbox, inbox):
        pass
    assert [bytes(one.buffers[0]) for one in came] == [b"7" * len(data)]


@pytest.mark.parametrize("body_bytes", [0, 4096, 4097, 3_000_000])
def test_buffers_land_where_their_receiver_says_whatever_the_size_of_the_body(body_bytes: int) -> None:
    key = bytes(32)
    came: list[Frame] = []
    inbox, outbox = RecordReader(Cipher(key), 2**30, came.append), RecordWriter(Cipher(key))
    targets = [memoryview(bytearray(100_000)), memoryview(bytearray(0)), memoryview(bytearray(2_000_000))]
    bodies: list[int | None] = []

    def land(_head: FrameHead, body: Buffer | None) -> list[memoryview]:
        bodies.append(None if body is None else len(body))
        return list(targets)

    inbox.landing = land
    body, buffers = os.urandom(body_bytes), [os.urandom(len(target)) for target in targets]
    frame = Frame(Kind.CAST, 1, 2, body, buffers)
    outbox.queued.append(Bulk(frame, pack_head(frame), len(body) + sum(map(len, buffers))))
    while carry(outbox, inbox):
        pass
    assert bodies == [body_bytes if body_bytes <= 4096 else None]
    assert [bytes(target) for target in targets] == buffers
    assert bytes(came[0].body) == body and all(
        one is other for one, other in zip(came[0].buffers, targets, strict=True)
    )


def test_a_reader_that_is_closed_delivers_nothing_more_and_holds_no_memory() -> None:
    key = os.urandom(32)
    came: list[Frame] = []
    inbox, outbox = RecordReader(Cipher(key), 2**30, came.append), RecordWriter(Cipher(key))
    targets = [memoryview(bytearray(3 * CHUNK_BYTES))]
    held = weakref.ref(targets[0])
    inbox.landing = lambda _head, _body: list(targets)
    outbox.queued.extend([bulk(1, 3 * CHUNK_BYTES), pack_frame(Frame(Kind.CALL, 2))])
    assert carry(outbox, inbox) and carry(outbox, inbox) and outbox.waiting
    inbox.close()
    targets.clear()
    assert held() is None
    inbox.room()[:1] = b"x"
    inbox.arrived(1)
    assert not came


def test_a_reader_that_is_closed_by_its_frame_leaves_the_rest() -> None:
    key = os.urandom(32)
    came: list[int] = []

    def deliver(frame: Frame) -> None:
        came.append(frame.dest)
        inbox.close()

    for first in (pack_frame(Frame(Kind.CALL, 1)), bulk(1, 3 * CHUNK_BYTES)):
        came.clear()
        inbox, outbox = RecordReader(Cipher(key), 2**30, deliver), RecordWriter(Cipher(key))
        outbox.queued.extend([first, pack_frame(Frame(Kind.CALL, 2)), bulk(3, CHUNK_BYTES)])
        wire = b"".join(bytes(data) for data in iter(outbox.next_write, b""))
        while wire and not inbox.closed:
            room = inbox.room()
            count = min(len(room), len(wire))
            room[:count] = wire[:count]
            wire = wire[count:]
            inbox.arrived(count)
        assert came == [1]


def test_what_cannot_be_held_is_read_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    key = os.urandom(32)
    outbox = RecordWriter(Cipher(key))
    came: list[Frame] = []
    inbox = RecordReader(Cipher(key), 2**30, came.append)
    outbox.queued.extend([bulk(1, 3 * CHUNK_BYTES), bulk(2, CHUNK_BYTES)])
    with monkeypatch.context() as patch:
        patch.setattr(records, "allocate_all", lambda head, total: (RefusedBuffers(head.buffer_bytes, "none"), []))
        assert carry(outbox, inbox)
        patch.setattr(records, "bytearray", _refuse, raising=False)
        while not came:
            assert carry(outbox, inbox)
    while carry(outbox, inbox):
        pass
    assert [(frame.dest, type(frame.buffers) is RefusedBuffers) for frame in came] == [(1, True), (2, False)]
    assert came[1].buffers[0] == bytes(CHUNK_BYTES)


def _refuse(_size: int) -> bytearray:
    raise MemoryError
