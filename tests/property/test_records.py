"""Sealed records open on the other side, in whatever pieces they arrive; anything else is a FrameError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.secure.noise import TAG_BYTES, Cipher
from monarch_hpc.transport.secure.records import CHUNK_BYTES, INLINE_BYTES, Bulk, RecordReader, RecordWriter
from monarch_hpc.wire.frames import Buffer, Frame, FrameHead, Kind, pack_frame, pack_head, parse_frame

_KEY = bytes(32)
_SIZES = st.sampled_from([0, 1, 100, 5000, INLINE_BYTES - 24, INLINE_BYTES, CHUNK_BYTES, CHUNK_BYTES + 1])
_FRAMES = st.lists(st.tuples(_SIZES, st.lists(_SIZES, max_size=3)), min_size=1, max_size=6)


def _fill(size: int, seed: int) -> bytes:
    return bytes([seed % 251]) * size


def _frame(number: int, body_bytes: int, sizes: list[int]) -> Frame:
    buffers = [memoryview(_fill(size, number + place)) for place, size in enumerate(sizes)]
    return Frame(Kind.CALL, number, 0, _fill(body_bytes, number), buffers)


def _sealed(frames: list[Frame]) -> bytes:
    outbox = RecordWriter(Cipher(_KEY))
    for frame in frames:
        packed = pack_frame(frame)
        outbox.queued.append(packed if len(packed) <= INLINE_BYTES else Bulk(frame, pack_head(frame), len(packed)))
    written = []
    while data := outbox.next_write():
        written.append(bytes(data))
    assert outbox.sealed_bytes == sum(len(pack_frame(frame)) for frame in frames)
    return b"".join(written)


def _feed(inbox: RecordReader, data: bytes, most: int) -> None:
    at = 0
    while at < len(data):
        room = inbox.room()
        size = min(len(room), most, len(data) - at)
        assert size, "no room"
        room[:size] = data[at : at + size]
        at += size
        inbox.arrived(size)


def _same(received: list[Frame], sent: list[Frame]) -> bool:
    """Whether the contents are the same; a small buffer may arrive in any container."""

    def contents(frame: Frame) -> tuple[object, ...]:
        return frame.kind, frame.dest, frame.reply, bytes(frame.body), [bytes(buffer) for buffer in frame.buffers]

    return list(map(contents, received)) == list(map(contents, sent))


@given(shapes=_FRAMES, most=st.sampled_from([7777, 2**15, 2**30]))
@settings(max_examples=60, deadline=None)
def test_frames_arrive_as_sent_in_whatever_pieces(shapes: list[tuple[int, list[int]]], most: int) -> None:
    sent = [_frame(number, *shape) for number, shape in enumerate(shapes)]
    received: list[Frame] = []
    _feed(RecordReader(Cipher(_KEY), 2**30, received.append), _sealed(sent), most)
    assert _same(received, sent)
    assert all(not memoryview(buffer).readonly for frame in received for buffer in frame.buffers)


def test_frames_arrive_as_sent_byte_by_byte() -> None:
    sent = [_frame(1, 10, []), _frame(2, 0, [5, 0, 7]), _frame(3, 9000, [INLINE_BYTES])]
    received: list[Frame] = []
    _feed(RecordReader(Cipher(_KEY), 2**30, received.append), _sealed(sent), 1)
    assert _same(received, sent)


def test_small_frames_that_wait_share_records() -> None:
    frames = [_frame(number, 64, []) for number in range(100)]
    assert len(_sealed(frames)) == sum(len(pack_frame(frame)) for frame in frames) + TAG_BYTES + 4


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_anywhere_is_a_frame_error_and_nothing_after_it_arrives(data: st.DataObject) -> None:
    sent = [_frame(number, 100, [1000]) for number in range(3)] + [_frame(3, 10, [INLINE_BYTES])]
    sealed = bytearray(_sealed(sent))
    place = data.draw(st.integers(0, len(sealed) - 1))
    sealed[place] ^= data.draw(st.integers(1, 255))
    received: list[Frame] = []
    # A corrupted length may wait for bytes that never arrive; the data is not delivered in any case.
    with contextlib.suppress(FrameError):
        _feed(RecordReader(Cipher(_KEY), 2**30, received.append), bytes(sealed), 2**30)
    assert len(received) < len(sent)
    assert _same(received, sent[: len(received)])


def test_large_buffers_go_where_the_landing_says() -> None:
    target = bytearray(3 * CHUNK_BYTES)
    asked: list[tuple[FrameHead, bytes | None]] = []

    def land(head: FrameHead, body: Buffer | None) -> list[memoryview] | None:
        asked.append((head, None if body is None else bytes(body)))
        return [memoryview(target)[CHUNK_BYTES : 2 * CHUNK_BYTES + 1]] if head.dest == 1 else None

    sent = [_frame(1, 30, [CHUNK_BYTES + 1]), _frame(2, 5000, [CHUNK_BYTES]), _frame(3, 30, [10])]
    received: list[Frame] = []
    inbox = RecordReader(Cipher(_KEY), 2**30, received.append)
    inbox.landing = land
    _feed(inbox, _sealed(sent), 2**30)
    assert _same(received, sent)
    assert [(head.dest, body) for head, body in asked] == [(1, _fill(30, 1)), (2, None)]
    assert target == bytes(CHUNK_BYTES) + _fill(CHUNK_BYTES + 1, 1) + bytes(CHUNK_BYTES - 1)


def test_a_frame_over_the_limit_is_refused_before_memory_is_found_for_it() -> None:
    sealed = _sealed([_frame(1, 0, [INLINE_BYTES * 2])])
    inbox = RecordReader(Cipher(_KEY), INLINE_BYTES, lambda _frame: None)
    with pytest.raises(FrameError, match="max_frame_bytes"):
        _feed(inbox, sealed, 2**30)


@given(data=st.binary(max_size=200), at=st.integers(0, 10))
def test_any_bytes_give_a_frame_or_none_or_a_frame_error(data: bytes, at: int) -> None:
    for given_as in (data, memoryview(bytearray(data))):
        try:
            parsed = parse_frame(given_as, at)
        except FrameError:
            continue
        if parsed is not None:
            frame, end = parsed
            assert pack_frame(frame) == data[at:end]


def _pieces_of(frames: list[Frame], key: bytes) -> list[bytes]:
    """The records and chunks of large frames, each sealed by itself."""
    outbox = RecordWriter(Cipher(key))
    outbox.queued.extend(Bulk(frame, pack_head(frame), len(pack_frame(frame))) for frame in frames)
    pieces = []
    while data := bytes(outbox.next_write()):
        step = CHUNK_BYTES + TAG_BYTES
        pieces += [data[at : at + step] for at in range(0, len(data), step)]
    return pieces


@st.composite
def _damages(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    pieces = _pieces_of(_LARGE, _KEY)
    what = draw(st.sampled_from(["cut", "lost", "doubled", "moved", "flipped", "of another session", "of the past"]))
    at = draw(st.integers(0, len(pieces) - 2))
    piece = pieces[at]
    if what == "cut":
        return what, [*pieces[:at], piece[: draw(st.integers(0, len(piece) - 1))]]
    if what == "lost":
        del pieces[at]
    elif what == "doubled":
        pieces.insert(at, piece)
    elif what == "moved":
        pieces.insert(draw(st.integers(at + 1, len(pieces) - 1)), pieces.pop(at))
    elif what == "flipped":
        place = draw(st.integers(0, len(piece) - 1))
        pieces[at] = piece[:place] + bytes([piece[place] ^ draw(st.integers(1, 255))]) + piece[place + 1 :]
    elif what == "of another session":
        pieces[at] = _pieces_of(_LARGE, b"k" * 32)[at]
    else:
        pieces[at + 1 :] = pieces
    return what, pieces


_LARGE = [
    Frame(Kind.CALL, number, 0, b"body", [bytes([number + 1, place + 1]) * CHUNK_BYTES for place in range(2)])
    for number in range(2)
]


@given(damage=_damages(), most=st.sampled_from([100_000, 2**30]))
@settings(max_examples=40, deadline=None)
def test_a_large_frame_with_a_damaged_chunk_never_arrives_nor_does_anything_after_it(
    damage: tuple[str, list[bytes]], most: int
) -> None:
    """Its memory has what was verified; where the damage is, nothing that somebody else chose."""
    what, pieces = damage
    received: list[Frame] = []
    targets: list[list[memoryview]] = []

    def land(head: FrameHead, _body: Buffer | None) -> list[memoryview]:
        targets.append([memoryview(bytearray(size)) for size in head.buffer_bytes])
        return targets[-1]

    inbox = RecordReader(Cipher(_KEY), 2**30, received.append)
    inbox.landing = land
    error: FrameError | None = None
    try:
        _feed(inbox, b"".join(pieces), most)
    except FrameError as raised:
        error = raised
    # A length that was altered may wait for more bytes than came, as a stream that was cut does.
    assert error is not None or what in ("cut", "flipped")
    assert len(received) < len(_LARGE) and _same(received, _LARGE[: len(received)])
    for frame, landed in zip(_LARGE, targets, strict=False):
        for target, buffer in zip(landed, frame.buffers, strict=True):
            for at in range(0, len(target), CHUNK_BYTES):
                chunk = target[at : at + CHUNK_BYTES]
                assert chunk == buffer[at : at + CHUNK_BYTES] or not any(bytes(chunk))
