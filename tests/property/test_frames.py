"""The frame parser accepts any bytes without crashing, and reads back written frames."""

from __future__ import annotations

import ctypes
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.ucx.front import Front
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    MAX_BUFFERS,
    Buffer,
    Container,
    Frame,
    Kind,
    pack_frame,
    pack_head,
    parse_frame,
    parse_head,
)

_U64 = st.integers(0, 2**64 - 1)


@given(
    kind=st.sampled_from(Kind),
    dest=_U64,
    reply=_U64,
    body=st.binary(max_size=100),
    buffers=st.lists(st.binary(max_size=100), max_size=10),
)
def test_a_head_reads_back_as_written(kind: Kind, dest: int, reply: int, body: bytes, buffers: list[bytes]) -> None:
    packed = pack_head(Frame(kind, dest, reply, body, buffers))
    head = parse_head(packed + body + b"".join(buffers), max_frame_bytes=2**20)
    assert (head.kind, head.dest, head.reply) == (kind, dest, reply)
    assert head.body_bytes == len(body)
    assert head.buffer_bytes == tuple(map(len, buffers))
    assert head.size == len(packed) == HEAD_BYTES + 8 * len(buffers)
    assert pack_frame(Frame(kind, dest, reply, body, buffers)) == packed + body + b"".join(buffers)


@given(body=st.binary(max_size=100), buffers=st.lists(st.binary(min_size=1, max_size=100), max_size=10))
def test_buffers_arrive_writable_and_aligned_whatever_is_before_them(body: bytes, buffers: list[bytes]) -> None:
    frame = Frame(Kind.CALL, 1, 2, body, buffers)
    packed = bytearray(pack_frame(frame))
    head = parse_head(packed, max_frame_bytes=2**20)
    parsed = parse_frame(packed)
    assert parsed is not None
    for received in (parsed[0], Front(head, memoryview(packed), []).frame):
        assert [bytes(buffer) for buffer in received.buffers] == buffers
        for buffer in received.buffers:
            assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 16 == 0


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x01\x01" + b"\xff" * 40)
def test_any_bytes_give_a_head_or_a_frame_error(data: bytes) -> None:
    try:
        head = parse_head(data, max_frame_bytes=2**16)
    except FrameError:
        return
    assert head.size <= len(data)
    assert head.body_bytes + sum(head.buffer_bytes) <= 2**16


@st.composite
def _nearly_frames(draw: st.DrawFn) -> bytes:
    """A frame, cut anywhere or followed by anything, with a byte changed or not."""
    kind, dest, reply = draw(st.sampled_from(Kind)), draw(_U64), draw(_U64)
    body, buffers = draw(st.binary(max_size=20)), draw(st.lists(st.binary(max_size=20), max_size=4))
    data = bytearray(pack_frame(Frame(kind, dest, reply, body, buffers)))
    if draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=5))


@given(data=st.one_of(_nearly_frames(), st.binary(max_size=100)), at=st.integers(0, 3), readonly=st.booleans())
def test_a_frame_is_what_its_head_says(data: bytes, at: int, readonly: bool) -> None:
    """`parse_frame` agrees with `parse_head` and slices, for all bytes."""
    whole = bytes(at) + data if readonly else bytearray(bytes(at) + data)
    try:
        parsed = parse_frame(whole, at)
    except FrameError as error:
        with pytest.raises(FrameError, match=re.escape(str(error))):
            parse_head(data, max_frame_bytes=2**64)
        return
    try:
        head = parse_head(data, max_frame_bytes=2**70)
    except FrameError:
        assert parsed is None
        return
    total = head.size + head.body_bytes + sum(head.buffer_bytes)
    assert (parsed is None) == (total > len(data))
    if parsed is None:
        return
    frame, end = parsed
    assert end == at + total
    assert (frame.kind, frame.dest, frame.reply) == (head.kind, head.dest, head.reply)
    begin = head.size + head.body_bytes
    assert frame.body == data[head.size : begin]
    for buffer, size in zip(frame.buffers, head.buffer_bytes, strict=True):
        assert buffer == data[begin : begin + size]
        assert not memoryview(buffer).readonly
        begin += size


@given(st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=4))
def test_promised_bytes_beyond_the_limit_are_refused_before_any_is_allocated(lengths: list[int]) -> None:
    head = bytearray(pack_head(Frame(Kind.CALL, buffers=[b""] * len(lengths))))
    for index, length in enumerate(lengths):
        head[HEAD_BYTES + 8 * index : HEAD_BYTES + 8 * index + 8] = length.to_bytes(8, "little")
    if sum(lengths) > 1000:
        with pytest.raises(FrameError, match="max_frame_bytes"):
            parse_head(head, max_frame_bytes=1000)
    else:
        assert parse_head(head, max_frame_bytes=1000).buffer_bytes == tuple(lengths)


@given(st.lists(st.integers(0, 3), max_size=4))
def test_a_head_names_the_containers(places: list[int]) -> None:
    some: list[Buffer] = [b"x", bytearray(b"yy"), memoryview(b"zzz"), memoryview(bytearray(4))]
    buffers = [some[place] for place in places]
    head = parse_head(pack_head(Frame(Kind.CALL, buffers=buffers)), 1000)
    of_length = {1: Container.BYTES, 2: Container.BYTEARRAY, 3: Container.MEMORY, 4: Container.BYTEARRAY}
    assert head.containers == tuple(of_length[len(buffer)] for buffer in buffers)
    if buffers:
        with pytest.raises(FrameError, match="kind 3"):
            parse_head(pack_head(Frame(Kind.CALL, buffers=buffers))[:-1] + b"\xff", 2**70)


def test_too_many_buffers_are_refused_by_the_sender() -> None:
    with pytest.raises(FrameError, match="fewer pieces"):
        pack_head(Frame(Kind.CALL, buffers=[b""] * (MAX_BUFFERS + 1)))
