"""Values survive serialization, and large buffers are not copied."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.wire.frames import MAX_BODY_BYTES, MAX_BUFFERS
from monarch_hpc.wire.pieces import MIN_PIECE_BYTES
from monarch_hpc.wire.serializer import MIN_BUFFER_BYTES, dumps, loads

LONG = MIN_PIECE_BYTES
SIZES = [0, 1, 1 << 16, (1 << 16) + 1, 1 << 17, LONG - 1, LONG, 3 * LONG]


@pytest.mark.parametrize("value", [None, (1, "a", (2.5, b"x", True)), {"a": [1]}, range(3), (1, [2])])
def test_values_survive(value: object) -> None:
    body, buffers = dumps(value)
    assert buffers == []
    assert loads(body, buffers) == value


def test_large_arrays_travel_beside_the_body_and_share_the_memory_they_arrive_in() -> None:
    array = np.arange(MIN_BUFFER_BYTES, dtype=np.uint8)
    body, buffers = dumps(("call", array))
    assert len(body) < 1000
    assert [len(buffer) for buffer in buffers] == [array.nbytes]
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), array)
    arrived = bytearray(buffers[0])
    call = loads(body, [arrived])
    assert isinstance(call, tuple)
    read = call[1]
    read[0] = 99
    assert arrived[0] == 99


def test_small_and_strided_arrays_travel_in_the_body() -> None:
    small = np.arange(8)
    strided = np.arange(4 * MIN_BUFFER_BYTES, dtype=np.uint8)[::2]
    body, buffers = dumps((small, strided))
    assert buffers == []
    for read, sent in zip(loads(body), (small, strided), strict=True):  # type: ignore[call-overload]
        np.testing.assert_array_equal(read, sent)


LEAVES = st.one_of(
    st.integers(),
    st.sampled_from(SIZES).map(lambda size: b"b" * size),
    st.sampled_from(SIZES).map(lambda size: bytearray(b"a") * size),
    st.sampled_from(SIZES).map(lambda size: "\xe9" * size),
)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.tuples(inner, inner), max_leaves=12))
def test_long_values_survive_in_any_nesting(value: object) -> None:
    body, buffers = dumps(value)
    assert loads(body, [bytes(buffer) for buffer in buffers]) == value


@pytest.mark.parametrize(
    "value", [b"x" * LONG, bytearray(LONG), (1, {"a": [b"x" * LONG]}), np.zeros(2 * LONG, np.uint8)[::2]]
)
def test_long_values_travel_beside_the_body(value: object) -> None:
    body, buffers = dumps(value)
    assert len(body) < 1000 and [len(buffer) for buffer in buffers] == [LONG]


def test_bytes_are_not_copied_and_a_bytearray_cannot_shrink_on_its_way() -> None:
    data, changing = b"x" * LONG, bytearray(LONG)
    _, (first, second) = dumps((data, [changing]))
    assert isinstance(first, memoryview) and first.obj is data
    assert isinstance(second, memoryview) and second.obj is changing
    with pytest.raises(BufferError):
        changing.clear()


def test_one_value_in_two_places_travels_once() -> None:
    data = b"x" * LONG
    body, buffers = dumps([data, {"again": data}])
    assert len(buffers) == 1
    read = loads(body, buffers)
    assert isinstance(read, list) and read[0] is read[1]["again"]


def test_arrays_and_long_values_travel_together() -> None:
    array = np.arange(LONG, dtype=np.uint8)
    value = [b"x" * LONG, array, "y" * LONG, array[:10], array]
    body, buffers = dumps(value)
    assert len(body) < 1000 and len(buffers) == 3
    read = loads(body, buffers)
    assert isinstance(read, list) and read[1] is read[4]
    assert read[0] == value[0] and read[2] == value[2]
    np.testing.assert_array_equal(read[1], array)


def test_what_is_long_only_as_a_whole_does_not_fill_the_body() -> None:
    value = list(range(1 << 40, (1 << 40) + (2 << 20)))
    body, buffers = dumps(value)
    assert len(body) < MIN_PIECE_BYTES and sum(map(len, buffers)) > 16 << 20
    assert loads(body, buffers) == value


def test_more_long_values_than_a_frame_has_room_for_travel_in_the_body() -> None:
    value = [b"%7d" % number + b"x" * LONG for number in range(MAX_BUFFERS // 2 + 10)]
    body, buffers = dumps(value)
    assert len(buffers) == MAX_BUFFERS // 2 and 10 * LONG < len(body) < MAX_BODY_BYTES
    read = loads(body, buffers)
    assert read == value


@given(st.binary(max_size=40), st.integers(1, 3))
def test_a_damaged_body_is_refused(tail: bytes, num: int) -> None:
    with pytest.raises((pickle.UnpicklingError, EOFError, IndexError, ValueError, OverflowError, MemoryError)):
        loads(tail + b"\xff", [b"x"] * num)


def test_functions_made_on_the_spot_travel_by_value() -> None:
    offset = 3
    body, buffers = dumps(lambda x: x + offset)
    assert loads(body, buffers)(4) == 7  # type: ignore[operator]


def test_what_cannot_be_serialized_raises() -> None:
    with pytest.raises(TypeError):
        dumps((open, __import__("threading").Lock()))
