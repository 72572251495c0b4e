"""Values survive serialization, and large buffers are not copied."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.wire import pieces
from monarch_hpc.wire.frames import MAX_BODY_BYTES, MAX_BUFFERS, Buffer, Container, RefusedBuffers, container_of
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


@given(
    st.recursive(LEAVES, lambda inner: st.lists(inner) | st.tuples(inner, inner), max_leaves=12),
    st.sampled_from([bytes, bytearray, lambda buffer: memoryview(bytearray(buffer))]),
)
def test_long_values_survive_in_any_nesting(value: object, move: Callable[[object], Buffer]) -> None:
    """Equal, and of the same types, whatever their buffers arrive in."""
    body, buffers = dumps(value)
    read = loads(body, [move(buffer) for buffer in buffers])
    assert read == value and repr(read) == repr(value)


def test_bytes_and_bytearrays_are_the_buffers_they_arrive_in() -> None:
    body, buffers = dumps([b"x" * LONG, bytearray(LONG)])
    assert [container_of(buffer) for buffer in buffers] == [Container.BYTES, Container.BYTEARRAY]
    arrived: list[Buffer] = [bytes(buffers[0]), bytearray(buffers[1])]
    read: Any = loads(body, arrived)
    assert read[0] is arrived[0] and read[1] is arrived[1]


def test_buffers_that_were_refused_are_an_error_of_the_reader() -> None:
    for value in ([b"x" * LONG], np.zeros(LONG), "x" * LONG):
        body, buffers = dumps(value)
        refused = RefusedBuffers(tuple(len(buffer) for buffer in buffers), "no memory for that")
        with pytest.raises(MemoryError, match="no memory for that"):
            loads(body, refused)


@pytest.mark.parametrize(
    "value", [b"x" * LONG, bytearray(LONG), (1, {"a": [b"x" * LONG]}), np.zeros(2 * LONG, np.uint8)[::2]]
)
def test_long_values_travel_beside_the_body(value: object) -> None:
    body, buffers = dumps(value)
    assert len(body) < 1000 and [len(buffer) for buffer in buffers] == [LONG]


def test_bytes_are_not_copied_and_a_bytearray_cannot_shrink_on_its_way() -> None:
    data, changing = b"x" * LONG, bytearray(LONG)
    _, (first, second) = dumps((data, [changing]))
    assert first is data
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


@pytest.mark.slow  # a frame has room for thousands
def test_more_long_values_than_a_frame_has_room_for_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    least_bytes = 1 << 16  # the shortest that a pickler hands over whole
    monkeypatch.setattr(pieces, "MIN_PIECE_BYTES", least_bytes)
    value = [b"%7d" % number + b"x" * least_bytes for number in range(MAX_BUFFERS)]
    body, buffers = dumps(value)
    assert len(buffers) <= MAX_BUFFERS and len(body) < MAX_BODY_BYTES // 8
    read = loads(body, buffers)
    assert read == value


@pytest.mark.slow  # a frame has room for thousands
def test_more_arrays_than_a_frame_has_room_for_are_joined() -> None:
    value = [
        np.full(LONG if number > MAX_BUFFERS // 2 else 70_000, number % 200, np.uint8)
        for number in range(MAX_BUFFERS // 2 + 100)
    ]
    value[-1].flags.writeable = False
    body, buffers = dumps(value)
    assert len(buffers) <= MAX_BUFFERS and len(body) < MAX_BODY_BYTES // 8
    read: Any = loads(body, buffers)
    assert all((one == other).all() for one, other in zip(read, value, strict=True))


@pytest.mark.parametrize(
    "value", [tuple(range(1 << 21, 3 << 20)), (1, tuple(f"{number:1000}" for number in range(5000)))]
)
def test_plain_values_do_not_fill_the_body_either(value: object) -> None:
    body, buffers = dumps(value)
    assert len(body) < LONG and buffers
    assert loads(body, buffers) == value


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


@pytest.mark.slow  # the second thread must be waited for in vain
def test_threads_that_begin_with_two_modules_of_a_package_import_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "two_ways_in"
    package.mkdir()
    meeting = "import two_ways_meeting as meeting\n"
    (tmp_path / "two_ways_meeting.py").write_text(
        "import threading\nfirst, second = threading.Event(), threading.Event()\n"
    )
    (package / "__init__.py").write_text(
        f"{meeting}meeting.first.set()\nmeeting.second.wait(1.0)\nfrom two_ways_in.b import B\n"
    )
    (package / "a.py").write_text("class A: pass\n")
    (package / "b.py").write_text(f"{meeting}meeting.second.set()\nfrom two_ways_in.a import A\nclass B(A): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    meeting_point = importlib.import_module("two_ways_meeting")

    def load(name: str) -> object:
        return loads(f"ctwo_ways_in.{name.lower()}\n{name}\n.".encode(), in_turn=True)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(load, "A")
        assert meeting_point.first.wait(60)
        second = threads.submit(load, "B")
        assert issubclass(cast(type, second.result(60)), cast(type, first.result(60)))
