"""Memory that the procs of a host share: copied and mapped by others, written by all, and gone with its last user."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.rdma import RDMAAction, RDMABuffer, SharedArray, empty, shared_array
from monarch_hpc.testing import wait_until
from tests.system.casts.test_shared_casts import lies_in
from tests.system.security.test_shared_memory import open_as_stranger
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_GUARD = 64
_BYTES = 3 << 20


class Owner(Actor):
    """Makes shareable memory, and uses that of others."""

    def __init__(self) -> None:
        self.array: Any = None
        self.seen: Any = None

    @endpoint
    def make(self, num_bytes: int, value: int, writable: bool = True) -> RDMABuffer:
        self.array = empty(num_bytes, "uint8")
        self.array[:] = value
        return RDMABuffer(self.array, writable=writable)

    @endpoint
    def make_shared(self, shape: tuple[int, ...], torch_type: bool) -> SharedArray:
        return shared_array(shape, torch.float32 if torch_type else "float32")

    @endpoint
    def fill(self, value: int) -> None:
        self.array[:] = value

    @endpoint
    def drop_and_fill(self, buffer: RDMABuffer, value: int) -> None:
        buffer.drop().get(_PATIENCE_S)
        self.array[:] = value

    @endpoint
    def read(self, buffer: RDMABuffer) -> tuple[int, int, str]:
        got = buffer.read().get(_PATIENCE_S)
        return int(got.min()), int(got.max()), buffer.path().get(_PATIENCE_S)

    @endpoint
    def write(self, buffer: RDMABuffer, value: int) -> None:
        buffer.write_from(np.full(buffer.shape, value, np.uint8)).get(_PATIENCE_S)

    @endpoint
    def attach(self, shared: SharedArray, row: int) -> None:
        self.seen = shared.map().get(_PATIENCE_S)
        self.seen[row] = row + 1

    @endpoint
    def total(self) -> float:
        return float(self.seen.sum())

    @endpoint
    def add(self, shared: SharedArray, times: int) -> None:
        before = bytearray(8)
        for _ in range(times):
            RDMAAction().fetch_add(shared, before, 1).submit().get(_PATIENCE_S)

    @endpoint
    def maps_and_lets_go(self, buffer: RDMABuffer, times: int) -> tuple[int, int]:
        """Numbers of descriptors and of mappings that are more than before."""
        buffer.map().get(_PATIENCE_S)
        gc.collect()
        before = count()
        for _ in range(times):
            assert buffer.map().get(_PATIENCE_S)[0] == 1
        gc.collect()
        after = count()
        return after[0] - before[0], after[1] - before[1]

    @endpoint
    def take(self, data: torch.Tensor) -> tuple[int, str]:
        self.seen = data
        return int(data.sum()), lies_in(data)

    @endpoint
    def scribble(self, value: int) -> None:
        self.seen.fill_(value)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def count() -> tuple[int, int]:
    """Open files, and mappings of shareable memory, of this process."""
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("/memfd:monarch-hpc-")


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 0.5}).config) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
    settle(procs)
    owners = procs.spawn("first", Owner)
    owners.take.call(torch.ones(_BYTES, dtype=torch.uint8)).get(_PATIENCE_S)  # opens the channels of casts
    owners.stop().get(_PATIENCE_S)
    return procs


@pytest.fixture
def owners(procs: ProcMesh) -> Iterator[ActorMesh[Owner]]:
    owners = procs.spawn("owner", Owner)
    yield owners
    owners.stop().get(_PATIENCE_S)


@pytest.mark.parametrize("size", [1, 4096, _BYTES + 1])
def test_bytes_are_copied_whole_and_nothing_beside_them(owner: ActorMesh[Owner], size: int) -> None:
    buffer = owner.make.call_one(size, 7).get(_PATIENCE_S)
    memory = np.full(size + 2 * _GUARD, 0xA5, np.uint8)
    into = memory[_GUARD : _GUARD + size]
    assert buffer.path().get(_PATIENCE_S) != "shm"
    buffer.read_into(into).get(_PATIENCE_S)
    assert buffer.path().get(_PATIENCE_S) == "shm"
    assert (into == 7).all() and (memory[:_GUARD] == 0xA5).all() and (memory[-_GUARD:] == 0xA5).all()
    mapped = buffer.map().get(_PATIENCE_S)
    buffer.write_from(np.full(size, 9, np.uint8)).get(_PATIENCE_S)
    assert (mapped == 9).all()
    assert (buffer[size // 2 :].map().get(_PATIENCE_S) == 9).all()


def test_an_owner_that_stands_still_is_read_all_the_same(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(_BYTES, 3).get(_PATIENCE_S)
    pid = owner.pid.call_one().get(_PATIENCE_S)
    buffer.read().get(_PATIENCE_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert (buffer.read().get(_PATIENCE_S) == 3).all()
        assert (buffer.map().get(_PATIENCE_S) == 3).all()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_map_is_read_only_and_shows_what_the_owner_writes(owners: ActorMesh[Owner]) -> None:
    owner = owners.slice(gpus=0)
    buffer = owner.make.call_one(_BYTES, 1, False).get(_PATIENCE_S)
    mapped = buffer.map().get(_PATIENCE_S)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 5
    with pytest.raises(ValueError, match="WRITEABLE"):
        mapped.flags.writeable = True
    owner.fill.call_one(2).get(_PATIENCE_S)
    assert (mapped == 2).all()
    assert owners.slice(gpus=1).read.call_one(buffer).get(_PATIENCE_S) == (2, 2, "shm")
    assert owner.read.call_one(buffer).get(_PATIENCE_S) == (2, 2, "local")


def test_what_is_written_into_a_mapped_tensor_stays_there(hosts: HostMesh) -> None:
    mine = empty((2, 3), torch.float32)
    assert isinstance(mine, torch.Tensor) and mine.shape == (2, 3) and not mine.any()
    buffer = RDMABuffer(mine)
    mapped = buffer.map().get(_PATIENCE_S)
    assert isinstance(mapped, torch.Tensor) and mapped.data_ptr() != mine.data_ptr()
    mine.fill_(2)
    assert (mapped == 2).all()
    mapped.fill_(8)
    assert (mine == 2).all()
    buffer.drop().get(_PATIENCE_S)


def test_a_drop_ends_uses_but_not_maps(owners: ActorMesh[Owner]) -> None:
    buffer = owners.slice(gpus=0).make.call_one(_BYTES, 4).get(_PATIENCE_S)
    mapped = buffer.map().get(_PATIENCE_S)
    buffer.drop().get(_PATIENCE_S)
    for use in (buffer.map, buffer.read):
        with pytest.raises(MemoryAccessError, match="dropped by"):
            use().get(_PATIENCE_S)
    assert (mapped == 4).all()


def test_no_reader_sees_what_is_written_after_a_drop(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(_BYTES, 4).get(_PATIENCE_S)
    arrays = [np.full(_BYTES, 4, np.uint8) for _ in range(30)]
    buffer.read_into(arrays[0]).get(_PATIENCE_S)
    reads = [buffer.read_into(array) for array in arrays]
    dropped = owner.drop_and_fill.call_one(buffer, 5)
    reads += [buffer.read_into(array) for array in arrays]
    dropped.get(_PATIENCE_S)
    errors = [read.exception(_PATIENCE_S) for read in reads]
    assert all(error is None or "dropped by" in str(error) for error in errors)
    assert all((array == 4).all() for array in arrays)


def test_a_map_outlives_an_owner_that_is_killed(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        owner = procs.spawn("owner", Owner)
        buffer = owner.make.call_one(_BYTES, 6).get(_PATIENCE_S)
        mapped = buffer.map().get(_PATIENCE_S)
        os.kill(owner.pid.call_one().get(_PATIENCE_S), signal.SIGKILL)
        wait_until("the failure", lambda: list(faults))
        assert (mapped == 6).all()


def test_many_maps_leave_nothing(owners: ActorMesh[Owner]) -> None:
    buffer = owners.slice(gpus=0).make.call_one(_BYTES, 1).get(_PATIENCE_S)
    assert owners.slice(gpus=1).maps_and_lets_go.call_one(buffer, 1000).get(_PATIENCE_S) == (0, 0)


def test_a_thousand_memories_leave_nothing(hosts: HostMesh) -> None:
    gc.collect()
    before = count()
    for size in range(1, 1001):
        buffer = RDMABuffer(empty(size, "uint8"))
        assert buffer.map().get(_PATIENCE_S).sum() == 0
        buffer.drop().get(_PATIENCE_S)
    wait_until("the memory of the last one is unmapped", lambda: gc.collect() >= 0 and count() == before)


def test_only_the_memory_that_was_shared_can_be_mapped(owner: ActorMesh[Owner]) -> None:
    buffer = RDMABuffer(np.zeros(10))
    with pytest.raises(MemoryAccessError, match=r"not made by rdma.empty or shared_array; read it instead"):
        buffer.map().get(_PATIENCE_S)
    buffer.drop().get(_PATIENCE_S)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_another_user_of_the_same_group_opens_nothing(owner: ActorMesh[Owner]) -> None:
    owner.make.call_one(_BYTES, 1).get(_PATIENCE_S)
    pid = owner.pid.call_one().get(_PATIENCE_S)
    modes = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed
            if "memfd:monarch-hpc" in os.readlink(file):
                modes.append(os.stat(file).st_mode & 0o777)
    assert modes and set(modes) == {0o600}
    places = [
        (pid, line.split()[0], "") for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:" in line
    ]
    assert places and not open_as_stranger([pid], places)


@pytest.mark.parametrize("torch_type", [False, True])
def test_a_shared_array_is_one_array_for_all(owners: ActorMesh[Owner], torch_type: bool) -> None:
    shared = owners.slice(gpus=0).make_shared.call_one((3, 1000), torch_type).get(_PATIENCE_S)
    for gpu in range(2):
        owners.slice(gpus=gpu).attach.call_one(shared, gpu).get(_PATIENCE_S)
    here = shared.map().get(_PATIENCE_S)
    here[2] = 3
    assert isinstance(here, torch.Tensor if torch_type else np.ndarray)
    assert owners.total.call().get(_PATIENCE_S).values() == [6000.0, 6000.0]
    assert (np.asarray(shared.read().get(_PATIENCE_S)) == np.asarray(here)).all()
    assert (np.asarray(shared[1:2].map().get(_PATIENCE_S)) == 2).all()


def test_a_shared_counter_counts_for_all(owners: ActorMesh[Owner]) -> None:
    shared = shared_array(1, "int64")
    owners.add.call(shared, 20).get(_PATIENCE_S)
    assert shared.map().get(_PATIENCE_S)[0] == 40
    shared.drop().get(_PATIENCE_S)


def test_a_shared_array_ends_with_the_actor_that_made_it(owners: ActorMesh[Owner], procs: ProcMesh) -> None:
    maker = procs.slice(gpus=0).spawn("maker", Owner)
    shared = maker.make_shared.call_one((2, 10), False).get(_PATIENCE_S)
    here = shared.map().get(_PATIENCE_S)
    here[:] = 5
    maker.stop().get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="has ended"):
        shared.map().get(_PATIENCE_S)
    assert (here == 5).all()


def test_tensors_of_a_large_cast_are_mapped_and_written_by_each_for_itself(owners: ActorMesh[Owner]) -> None:
    data = torch.ones(_BYTES, dtype=torch.uint8)
    assert owners.take.call(data).get(_PATIENCE_S).values() == [(_BYTES, "private")] * 2
    owners.slice(gpus=0).scribble.call_one(3).get(_PATIENCE_S)
    assert owners.total.call().get(_PATIENCE_S).values() == [3.0 * _BYTES, 1.0 * _BYTES] and bool((data == 1).all())


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "text"),
    [
        (0, "uint8", ValueError, "has no bytes"),
        ((2, -1), "uint8", ValueError, "has no bytes"),
        ("4", "uint8", TypeError, "shape must be a number or a tuple of numbers, not '4'"),
        (4, object, TypeError, "only plain data"),
        (4, "floaty", TypeError, "dtype must be a type of NumPy or torch"),
        (1 << 62, "uint8", MemoryError, "no shareable memory of"),
    ],
)
def test_bad_shapes_and_types_are_told(shape: Any, dtype: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        empty(shape, dtype)


def test_a_process_without_descriptors_is_told_what_to_do(hosts: HostMesh) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(MemoryError, match=r"make buffers of its parts, or raise 'ulimit -n'"):
            empty(1, "uint8")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
