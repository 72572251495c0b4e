"""Shareable memory: what can be mapped, by whom, and what frees it."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gc
import mmap
import os
from pathlib import Path

import pytest

from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.storage.segment import (
    SPAN_BYTES,
    Access,
    Span,
    create,
    create_parts,
    find,
    fix,
    hold_spans,
    open_span,
    write_fixed,
)


def mapped(view: memoryview, *, fixed: bool = False) -> Span:
    span = find(address_of(view), view.nbytes, fixed=fixed)
    assert span is not None
    return span


def num_segments() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:monarch-hpc-")


def test_a_span_is_found_and_mapped_in_each_way() -> None:
    memory = create(10_000)
    memory[100:103] = b"abc"
    span = mapped(memory[100:103])
    assert span.near and Span.parse(span.pack()) == span and len(span.pack()) == SPAN_BYTES
    read, write, private = (open_span(span, access) for access in Access)
    private[0] = ord("x")
    assert bytes(memory[100:103]) == b"abc" and read.readonly
    write[1] = ord("y")
    assert [bytes(view) for view in (memory[100:103], read, private)] == [b"ayc", b"ayc", b"xbc"]


def test_memory_of_others_is_not_found() -> None:
    memory = create(100)
    first = address_of(memory)
    assert find(first, 101, fixed=False) is None and find(first - 1, 2, fixed=False) is None
    assert find(first, 100, fixed=True) is None and find(address_of(bytearray(5)), 5, fixed=False) is None


def test_memory_is_freed_with_the_last_view() -> None:
    before = num_segments(), len(os.listdir("/proc/self/fd"))
    memory = create(5000)
    part, other = memory[10:20], open_span(mapped(memory), Access.READ)
    del memory
    gc.collect()
    part[0] = 7
    assert other[10] == 7 and num_segments() == before[0] + 2
    del part, other
    gc.collect()
    assert (num_segments(), len(os.listdir("/proc/self/fd"))) == before


def test_a_map_outlives_the_memory_of_its_maker() -> None:
    memory = create(5000)
    memory[4999] = 9
    span = mapped(memory)
    other = open_span(span, Access.PRIVATE)
    del memory
    assert other[4999] == 9
    with pytest.raises(OSError):
        open_span(span, Access.READ)


def test_what_is_fixed_can_be_handed_on_and_is_written_by_nobody() -> None:
    first, second = write_fixed([memoryview(b"abc"), memoryview(bytes(5000))])
    assert bytes(first) == b"abc" and second.nbytes == 5000 and first.readonly
    span = mapped(first, fixed=True)
    with pytest.raises(PermissionError):
        open_span(span, Access.WRITE)
    (held,) = hold_spans([span])
    del first, second
    gc.collect()
    again = open_span(mapped(held, fixed=True), Access.PRIVATE)
    again[0] = ord("x")
    assert bytes(held) == b"abc" and bytes(again) == b"xbc"


def test_the_size_is_sealed() -> None:
    memory = create(5000)
    fd = mapped(memory).fd
    for size in (100, 10_000):
        with pytest.raises(OSError) as raised:
            os.ftruncate(fd, size)
        assert raised.value.errno == errno.EPERM
    assert os.fstat(fd).st_mode & 0o777 == 0o600


def test_another_file_in_its_place_is_refused() -> None:
    memory = create(5000)
    span = mapped(memory)
    with pytest.raises(OSError, match="another file"):
        open_span(dataclasses.replace(span, tag=bytes(16)), Access.READ)
    with pytest.raises(OSError, match="behind its 5000 bytes"):
        open_span(dataclasses.replace(span, offset=1), Access.READ)
    fd = os.memfd_create(f"monarch-hpc-{bytes(16).hex()}", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        assert not fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        with pytest.raises(OSError, match="may change"):
            open_span(dataclasses.replace(span, fd=fd, tag=bytes(16), num_bytes=1), Access.READ)
    finally:
        os.close(fd)


def test_what_lies_elsewhere_is_not_near() -> None:
    memory = create(1)
    span = mapped(memory)
    assert not dataclasses.replace(span, place=b"elsewher").near and not dataclasses.replace(span, place=bytes(8)).near
    with pytest.raises(ValueError, match="3 bytes describe no shared memory"):
        Span.parse(b"abc")


def test_memory_that_was_filled_in_place_is_fixed_afterwards() -> None:
    first, second = create_parts([3, 70])
    assert address_of(second) - address_of(first) == 64
    first[:] = b"abc"
    fix(first)
    span = mapped(first, fixed=True)
    assert bytes(open_span(span, Access.PRIVATE)) == b"abc" and mapped(second, fixed=True).offset == 64
    with pytest.raises(PermissionError):
        open_span(span, Access.WRITE)
    fix(memoryview(bytearray(5)))
