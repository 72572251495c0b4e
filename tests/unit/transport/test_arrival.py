"""Memory for what arrives is of the type and length that was asked for, and is refused where there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from monarch_hpc.transport.arrival import HUGE_BYTES, SPARES, admit, allocate
from monarch_hpc.wire.frames import Buffer, Container


@pytest.fixture
def kept() -> Iterator[None]:
    SPARES.release_by(lambda _delay_s, _callback: None)
    yield
    SPARES.clear()


@pytest.mark.parametrize("container", Container)
@pytest.mark.parametrize("num_bytes", [0, 1, 2, 4097, HUGE_BYTES, HUGE_BYTES + 5])
def test_memory_is_of_its_length_and_type(container: Container, num_bytes: int) -> None:
    made, view = allocate(num_bytes, container)
    assert len(made) == view.nbytes == num_bytes and not view.readonly
    view[:] = b"x" * num_bytes
    assert made == b"x" * num_bytes
    if num_bytes > 1:
        types: dict[Container, type[Buffer]] = {Container.BYTES: bytes, Container.BYTEARRAY: bytearray}
        assert type(made) is types.get(container, memoryview)


@pytest.mark.usefixtures("kept")
def test_a_bytes_that_is_used_again_is_like_a_new_one() -> None:
    first, view = allocate(HUGE_BYTES, Container.BYTES)
    view[:] = b"a" * HUGE_BYTES
    place = id(first)
    assert isinstance(first, bytes) and hash(first) == hash(b"a" * HUGE_BYTES)
    del first, view
    second, view = allocate(HUGE_BYTES, Container.BYTES)
    assert id(second) == place
    view[:] = b"b" * HUGE_BYTES
    assert isinstance(second, bytes) and hash(second) == hash(b"b" * HUGE_BYTES) and second == b"b" * HUGE_BYTES
    third, _ = allocate(HUGE_BYTES, Container.BYTES)
    assert id(third) != place, "the second one is held"


@pytest.mark.usefixtures("kept")
def test_memory_that_was_let_go_takes_the_next_message_of_about_its_size() -> None:
    first, view = allocate(2 * HUGE_BYTES, Container.MEMORY)
    view[:] = b"a" * (2 * HUGE_BYTES)
    place = _address(view)
    held, _ = allocate(2 * HUGE_BYTES, Container.MEMORY)
    assert _address(held) != place, "the first one is held"
    del first, view
    second, view = allocate(2 * HUGE_BYTES - 5, Container.MEMORY)
    assert _address(view) == place and len(second) == 2 * HUGE_BYTES - 5


def _address(view: Buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("container", Container)
def test_more_than_there_can_be_is_refused(container: Container) -> None:
    with pytest.raises(MemoryError, match="no memory for a message of"):
        allocate(1 << 60, container)
    with pytest.raises(MemoryError, match="of memory left; send it in smaller portions"):
        admit(1 << 60)
