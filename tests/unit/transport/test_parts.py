"""Frames that were cut into parts are put together again, or refused, whatever the parts say."""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.parts import PartReader, Step, cut
from monarch_hpc.wire.frames import (
    HEAD_BYTES,
    MAX_BUFFERS,
    Buffer,
    Frame,
    Kind,
    RefusedBuffers,
    bytes_of,
    pack_head,
    parse_head,
)

_OVERHEAD_BYTES = HEAD_BYTES + 8 * MAX_BUFFERS
"""A part's header may have so many bytes."""

_SIZES = st.lists(st.integers(0, 300), max_size=6)


def _frame(sizes: Iterable[int], body_bytes: int = 20) -> Frame:
    source = random.Random(7)
    return Frame(Kind.CALL, 3, 4, source.randbytes(body_bytes), [source.randbytes(size) for size in sizes])


def _same(one: Frame, other: Frame) -> bool:
    heads = (one.kind, one.dest, one.reply, bytes(one.body)) == (other.kind, other.dest, other.reply, bytes(other.body))
    return heads and [bytes(buffer) for buffer in one.buffers] == [bytes(buffer) for buffer in other.buffers]


def _arrive(reader: PartReader, part: Frame, *, lands: bool) -> Frame | None:
    """Deliver *part* as a channel does: in places that the reader chose, or in memory of its own."""
    head = parse_head(pack_head(part), 1 << 62)
    targets = reader.land(head) if lands else None
    if targets is None:
        arrived: list[Buffer] = [bytearray(buffer) for buffer in part.buffers]
        return reader.on_part(Frame(part.kind, part.dest, part.reply, bytes(part.body), arrived))
    for target, buffer in zip(targets, part.buffers, strict=True):
        target[:] = buffer
    return reader.on_part(Frame(part.kind, part.dest, part.reply, bytes(part.body), targets))


@given(sizes=_SIZES, body_bytes=st.integers(0, 100), part_bytes=st.integers(1, 200), lands=st.lists(st.booleans()))
@example(sizes=[], body_bytes=0, part_bytes=1, lands=[])
@example(sizes=[0, 0], body_bytes=0, part_bytes=1, lands=[True])
def test_the_parts_of_two_frames_make_two_frames(
    sizes: list[int], body_bytes: int, part_bytes: int, lands: list[bool]
) -> None:
    sent = [_frame(sizes, body_bytes), _frame(reversed(sizes), body_bytes)]
    limit_bytes = _OVERHEAD_BYTES + part_bytes
    streams = [cut(frame, number, limit_bytes) for number, frame in enumerate(sent)]
    reader = PartReader()
    came: list[Frame] = []
    ways = itertools.chain(lands, itertools.repeat(True))
    for part in itertools.chain.from_iterable(itertools.zip_longest(*streams)):
        if part is not None:
            assert bytes_of(part) <= limit_bytes
            whole = _arrive(reader, part, lands=next(ways))
            came += [whole] if whole is not None else []
    assert len(came) == 2 and all(_same(one, other) for one, other in zip(came, sent, strict=True))


def test_nothing_is_copied_by_the_sender() -> None:
    data = bytearray(1000)
    begin, *parts = cut(Frame(Kind.RESULT, 1, 0, b"", [data]), 1, _OVERHEAD_BYTES + 300)
    assert begin.reply == Step.BEGIN and len(parts) == 4
    data[:] = b"x" * 1000
    assert b"".join(bytes(buffer) for part in parts for buffer in part.buffers) == data


def test_a_frame_that_cannot_be_held_is_refused_and_the_next_one_is_not() -> None:
    """It announces more bytes than any machine has; so many need not come to see what is kept of them: nothing."""
    reader = PartReader()
    head = bytearray(pack_head(Frame(Kind.CALL, 1, 2, b"body", [b"x" * 50])))
    head[-8:-1] = (1 << 50).to_bytes(7, "little")
    assert reader.on_part(Frame(Kind.PART, 1, Step.BEGIN, bytes(head))) is None
    assert reader.on_part(Frame(Kind.PART, 1, Step.DATA, b"", [b"body"])) is None
    for _ in range(3):
        assert reader.on_part(Frame(Kind.PART, 1, Step.DATA, b"", [b"x" * 50])) is None
    begin, *parts = cut(_frame([10]), 2, 1 << 30)
    reader.on_part(begin)
    assert [reader.on_part(part) is None for part in parts] == [True, False]


def test_a_refused_frame_is_delivered_without_its_buffers() -> None:
    reader = PartReader()
    begin, body, _ = cut(_frame([40, 50]), 1, 1 << 30)
    reader.on_part(begin)
    reader.on_part(body)
    refused = RefusedBuffers((40, 50), "no room for them")
    whole = reader.on_part(Frame(Kind.PART, 1, Step.DATA, b"", refused))
    assert whole is not None and isinstance(whole.buffers, RefusedBuffers)
    assert (whole.buffers.sizes, whole.buffers.why) == ((40, 50), "no room for them")
    assert bytes(whole.body) == bytes(body.buffers[0])


def test_a_sender_that_gives_up_leaves_nothing() -> None:
    reader = PartReader()
    for _ in range(5000):
        reader.on_part(next(cut(_frame([10]), 1, 1 << 30)))
        assert reader.on_part(Frame(Kind.PART, 1, Step.GIVE_UP)) is None


def _begin(number: int = 1) -> Frame:
    return next(cut(_frame([10]), number, 1 << 30))


@pytest.mark.parametrize(
    "parts",
    [
        [Frame(Kind.PART, 1, Step.DATA, b"", [b"x"])],
        [Frame(Kind.PART, 1, Step.GIVE_UP)],
        [Frame(Kind.PART, 1, Step.BEGIN, b"no header")],
        [_begin(), _begin()],
        [_begin(), Frame(Kind.PART, 1, Step.DATA, b"", [b"x" * 31])],
        [_begin(), Frame(Kind.PART, 1, Step.DATA, b"", [b"x" * 25])],
        [_begin(number) for number in range(1025)],
    ],
    ids=["unknown", "unknown end", "no header", "twice", "too long", "across buffers", "too many"],
)
def test_parts_that_lie_are_refused(parts: list[Frame]) -> None:
    reader = PartReader()
    for part in parts[:-1]:
        reader.on_part(part)
    with pytest.raises(FrameError):
        reader.on_part(parts[-1])


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.binary(max_size=60), st.lists(st.binary(max_size=40))),
        max_size=12,
    )
)
def test_any_parts_give_frames_or_frame_errors(parts: list[tuple[int, int, bytes, list[bytes]]]) -> None:
    reader = PartReader()
    for number, step, body, buffers in [(1, Step.BEGIN, _begin().body, []), *parts]:
        try:
            whole = _arrive(reader, Frame(Kind.PART, number, step, body, buffers), lands=True)
        except FrameError:
            return
        assert whole is None or bytes_of(whole) >= HEAD_BYTES


def test_a_reader_of_a_channel_that_ended_holds_nothing_of_what_was_arriving() -> None:
    reader = PartReader()
    parts = list(cut(_frame([300, 300]), 1, 100 + _OVERHEAD_BYTES))
    _arrive(reader, parts[0], lands=False)
    targets = reader.land(parse_head(pack_head(parts[1]), 1 << 62))
    assert targets is not None and targets[0].obj is not None
    held = weakref.ref(targets[0])
    place = targets[0].obj
    del targets
    reader.clear()
    assert held() is None and sys.getrefcount(place) == 2, "by this test alone"
    with pytest.raises(FrameError, match="has not begun"):
        _arrive(reader, parts[1], lands=True)
