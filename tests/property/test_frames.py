"""The frame parser is total, and reads back what was written."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.frames import HEAD_BYTES, MAX_BUFFERS, Frame, Kind, pack_head, parse_head

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


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4))
def test_promised_bytes_beyond_the_limit_are_refused_before_any_is_allocated(lengths: list[int]) -> None:
    head = bytearray(pack_head(Frame(Kind.CALL, buffers=[b""] * len(lengths))))
    for index, length in enumerate(lengths):
        head[HEAD_BYTES + 8 * index : HEAD_BYTES + 8 * index + 8] = length.to_bytes(8, "little")
    if sum(lengths) > 1000:
        with pytest.raises(FrameError, match="max_frame_bytes"):
            parse_head(head, max_frame_bytes=1000)
    else:
        assert parse_head(head, max_frame_bytes=1000).buffer_bytes == tuple(lengths)


def test_too_many_buffers_are_refused_by_the_sender() -> None:
    with pytest.raises(FrameError, match="fewer pieces"):
        pack_head(Frame(Kind.CALL, buffers=[b""] * (MAX_BUFFERS + 1)))
