"""Registrations with UCX: each allocation once, for as long as it is lent, and never what has taken its place."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable

import numpy as np
import pytest

from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.rdma.local import allocation_of
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.transport.ucx.registrations import Registrations
from tests.system.support.parties import PATIENCE_S, Party, join, parties

__all__ = ["parties"]


class Watched:
    """A UCX worker, and what it was given."""

    def __init__(self, worker: object) -> None:
        self._worker = worker
        self.given: list[tuple[int, int]] = []
        self.most_bytes = 1 << 40

    def register(self, span: object, writable: bool) -> object:
        from monarch_hpc.transport.ucx import _ucx

        assert isinstance(span, _ucx.Span) and isinstance(self._worker, _ucx.Worker)
        if span.num_bytes > self.most_bytes:
            raise _ucx.UcxError("registering memory", -4)
        self.given.append((span.address, span.num_bytes))
        return self._worker.register(span, writable)


@pytest.fixture
def watched(parties: Callable[..., Party]) -> tuple[Party, Watched, FrameChannel]:
    """A party with memory, what its UCX is given, and another party's channel to it."""
    owner, _asker, channel = join(parties, "ucx-shm")
    fabric = owner.node.fabric
    worker = Watched(fabric._worker)  # type: ignore[union-attr]
    fabric._registrations = Registrations(worker)  # type: ignore[union-attr, arg-type]
    return owner, worker, channel


def lend(owner: Party, array: np.ndarray) -> Memory:
    return owner.node.register(array.data, allocation=allocation_of(array))


def span_of(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def test_parts_of_one_allocation_are_registered_once(watched: tuple[Party, Watched, FrameChannel]) -> None:
    owner, worker, _channel = watched
    whole = np.zeros((1300, 512), np.uint8)
    lent = [lend(owner, row) for row in whole]
    assert worker.given == [span_of(whole)] and all(memory.parts.rkey for memory in lent)
    read_only = owner.node.register(whole[3].data, writable=False, allocation=allocation_of(whole[3]))
    assert worker.given == [span_of(whole)] * 2  # whose key does not let peers write
    for memory in (read_only, *lent[1:]):
        memory.close()
    lend(owner, whole[7]).close()
    assert len(worker.given) == 2
    lent[0].close()
    lend(owner, whole[7]).close()
    assert len(worker.given) == 3  # nobody had lent it any more


def test_what_lies_apart_is_found_again_range_by_range(watched: tuple[Party, Watched, FrameChannel]) -> None:
    owner, worker, _channel = watched
    arrays = [np.full(5000, number, np.uint8) for number in range(50)]
    scattered = Scattered([span_of(array) for array in arrays], arrays)
    first = owner.node.register(scattered, writable=False)
    assert sorted(worker.given) == sorted(map(span_of, arrays))
    again = owner.node.register(Scattered([span_of(array) for array in arrays[:10]], arrays[:10]), writable=False)
    assert len(worker.given) == 50
    first.close()
    third = owner.node.register(scattered, writable=False)
    assert len(worker.given) == 90  # ten were still in use
    again.close()
    third.close()


def test_the_same_memory_that_lies_apart_is_registered_once_for_all(
    watched: tuple[Party, Watched, FrameChannel],
) -> None:
    owner, worker, channel = watched
    arrays = [np.full(5000, number, np.uint8) for number in range(50)]
    scattered = Scattered([span_of(array) for array in arrays], arrays)
    first, second = (owner.node.register(scattered, writable=False) for _ in range(2))
    assert len(worker.given) == 50 and second.parts.places.rkeys == first.parts.places.rkeys  # type: ignore[union-attr]
    writable = owner.node.register(scattered)
    assert len(worker.given) == 100  # whose keys let peers write
    first.close()
    here = bytearray(5000)
    channel.memory.move(second.parts.id, scattered.places.starts[7], here, write=False).wait(PATIENCE_S)
    assert here == arrays[7].tobytes()
    second.close()
    owner.node.register(scattered, writable=False).close()
    assert len(worker.given) == 150  # nobody had lent it any more
    writable.close()


def test_memory_that_takes_the_place_of_other_is_registered_anew_and_the_old_key_reads_nothing_of_it(
    watched: tuple[Party, Watched, FrameChannel],
) -> None:
    owner, worker, channel = watched
    old = np.frombuffer(mmap.mmap(-1, 8 << 20), np.uint8)
    before = span_of(old)
    memory = lend(owner, old)
    name = memory.parts.id
    channel.memory.move(name, 0, bytearray(10), write=False).wait(PATIENCE_S)
    done = threading.Event()
    owner.node.own_memory.grants.revoke(name, "it was dropped", done.set)
    assert done.wait(PATIENCE_S)
    del old, memory
    kept = []
    for _ in range(100):  # the kernel hands out the first hole that is large enough
        secret = np.frombuffer(mmap.mmap(-1, 8 << 20), np.uint8)
        secret[:] = 7
        if span_of(secret) == before:
            break
        kept.append(secret)
    assert span_of(secret) == before
    here = bytearray(10)
    with pytest.raises(MemoryAccessError, match="it was dropped"):
        channel.memory.move(name, 0, here, write=False).wait(PATIENCE_S)
    assert here == bytes(10)
    lend(owner, secret)
    assert worker.given == [before, before]


def test_where_an_allocation_cannot_be_locked_the_part_is_and_else_frames_carry_it(
    watched: tuple[Party, Watched, FrameChannel],
) -> None:
    owner, worker, channel = watched
    worker.most_bytes = 1000
    array = np.random.default_rng(1).integers(0, 255, 5000, np.uint8)
    lend(owner, array[10:20])
    assert worker.given == [(array.ctypes.data + 10, 10)]
    large = lend(owner, array)
    pieces = Scattered([span_of(array[:500]), span_of(array[2000:])], [array, array])
    apart = owner.node.register(pieces, writable=False)
    for memory, offset in ((large, 4000), (apart, pieces.places.starts[1] + 2000)):
        here = bytearray(1000)
        channel.memory.move(memory.parts.id, offset, here, write=False).wait(PATIENCE_S)
        assert here == array[4000:].tobytes()
        assert channel.memory.path(memory.parts.id) == "frames: its owner could not register it"
    assert len(worker.given) == 2  # of the second, one range was registered, and given back
    lend(owner, array[:500]).close()
    assert len(worker.given) == 3
