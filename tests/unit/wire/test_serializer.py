"""Values survive serialization, and large buffers are not copied."""

from __future__ import annotations

import numpy as np
import pytest

from monarch_hpc.wire.serializer import MIN_BUFFER_BYTES, dumps, loads


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


def test_functions_made_on_the_spot_travel_by_value() -> None:
    offset = 3
    body, buffers = dumps(lambda x: x + offset)
    assert loads(body, buffers)(4) == 7  # type: ignore[operator]


def test_what_cannot_be_serialized_raises() -> None:
    with pytest.raises(TypeError):
        dumps((open, __import__("threading").Lock()))
