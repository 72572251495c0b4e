"""Memory keys, and the buffers that may be registered."""

from __future__ import annotations

import array
from types import SimpleNamespace

import pytest

from monarch_hpc.core.errors import FrameError, MemoryAccessError
from monarch_hpc.core.storage.segment import place_digest
from monarch_hpc.transport.memory.device.handle import DeviceHandle
from monarch_hpc.transport.memory.key import ID_BYTES, Key, device_span, host_view, pack_span, parse_span

ID = bytes(range(ID_BYTES))


@pytest.mark.parametrize(
    "key",
    [
        Key(ID, 0, writable=False),
        Key(ID, 2**40, writable=True),
        Key(ID, 5, writable=True, refused=True),
        Key(ID, 5, writable=True, on_device=True, address=2**64 - 1, rkey=b"packed"),
        Key(ID, 5, writable=True, on_device=True, handle=DeviceHandle(b"place..x", bytes(range(64)), 2**40).pack()),
        Key(ID, 5, writable=False, on_device=True, rkey=b"r", handle=DeviceHandle(bytes(8), bytes(64), 0).pack()),
    ],
)
def test_a_key_reads_back_as_written(key: Key) -> None:
    assert Key.parse(key.pack()) == key


@pytest.mark.parametrize("data", [b"", bytes(ID_BYTES), Key(ID, 1, writable=True).pack()[:-1]])
def test_less_than_a_key_is_none(data: bytes) -> None:
    with pytest.raises(MemoryAccessError, match="not a memory key"):
        Key.parse(data)


@pytest.mark.parametrize(
    ("offset", "nbytes", "fits"),
    [(0, 10, True), (10, 0, True), (3, 7, True), (3, 8, False), (11, 0, False), (-1, 1, False), (5, -1, False)],
)
def test_a_span_lies_inside_or_it_is_a_problem(offset: int, nbytes: int, *, fits: bool) -> None:
    assert (not Key(ID, 10, writable=True).problem(offset, nbytes, write=True)) is fits


def test_what_was_registered_to_be_read_is_not_written() -> None:
    key = Key(ID, 10, writable=False)
    key.check("there", 0, 10, write=False)
    with pytest.raises(MemoryAccessError, match=r"memory of there: .* read only"):
        key.check("there", 0, 10, write=True)


def test_a_span_reads_back_as_written_and_nothing_else_is_one() -> None:
    body = pack_span(ID, 2**63, 7)
    assert parse_span(body) == (ID, 2**63, 7)
    for other in (b"", body[1:], body + b"x"):
        with pytest.raises(FrameError):
            parse_span(other)


def test_any_contiguous_buffer_is_seen_as_its_bytes() -> None:
    numbers = array.array("d", [1.0, 2.0])
    view = host_view(numbers, writable=True)
    assert (view.nbytes, view.format) == (16, "B")
    view[:8] = numbers.tobytes()[8:]
    assert numbers[0] == 2.0
    assert host_view(array.array("d"), writable=True).nbytes == 0


def test_what_cannot_be_registered_is_refused_with_the_reason() -> None:
    with pytest.raises(TypeError):
        host_view("text", writable=False)
    with pytest.raises(ValueError, match="not contiguous"):
        host_view(memoryview(bytes(10))[::2], writable=False)
    with pytest.raises(ValueError, match="cannot be written to: bytes"):
        host_view(b"constant", writable=True)


def _on_device(**interface: object) -> SimpleNamespace:
    return SimpleNamespace(__cuda_array_interface__={"data": (4096, False), "typestr": "<f4", **interface})


def test_a_handle_opens_only_on_its_host_and_if_it_is_one() -> None:
    handle = DeviceHandle(place_digest(), bytes(range(64)), 7)
    assert DeviceHandle.parse(handle.pack()) == handle and handle.near and handle.opens
    assert not DeviceHandle(b"elsewher", bytes(range(64)), 7).near
    assert not DeviceHandle(place_digest(), bytes(64), 7).opens


def test_a_devices_memory_is_told_by_its_interface() -> None:
    assert device_span(bytearray(8)) is None
    assert device_span(_on_device(shape=(3, 5))) == (4096, 60, True)
    assert device_span(_on_device(shape=(3, 5), strides=(20, 4))) == (4096, 60, True)
    assert device_span(_on_device(shape=(1, 5), strides=(999, 4))) == (4096, 20, True)
    assert device_span(_on_device(shape=(0, 5), strides=(1, 1))) == (4096, 0, True)
    assert device_span(_on_device(shape=(2,), data=(8, True))) == (8, 8, False)
    with pytest.raises(ValueError, match="not contiguous"):
        device_span(_on_device(shape=(3, 5), strides=(4, 12)))
