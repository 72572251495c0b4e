"""RDMA buffers between programs and procs: read, written, sliced, dropped, and lost with their owner."""

from __future__ import annotations

import asyncio
import mmap
import os
import pickle
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, ProcDied, ProcMesh, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.rdma import RDMAAction, RDMABuffer, get_rdma_backend
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_GUARD = 64
"""Bytes before and behind each destination, which must not change."""


class Owner(Actor):
    """Makes buffers, and uses those of others."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @endpoint
    def make(self, data: Any, writable: bool = True) -> RDMABuffer:
        self.kept.append(data)
        return RDMABuffer(data, writable=writable)

    @endpoint
    def lend_file(self, path: str) -> RDMABuffer:
        """Lend a mapped file of two pages."""
        self.kept.append(np.memmap(path, np.uint8, "w+", shape=2 * mmap.PAGESIZE))
        return RDMABuffer(self.kept[-1])

    @endpoint
    def contents(self) -> Any:
        return self.kept[-1]

    @endpoint
    async def read(self, buffer: RDMABuffer) -> Any:
        return await buffer.read()

    @endpoint
    def write(self, buffer: RDMABuffer, data: Any) -> None:
        buffer.write_from(data).get(_PATIENCE_S)

    @endpoint
    def add(self, buffer: RDMABuffer, times: int) -> list[int]:
        seen, before = [], bytearray(8)
        for _ in range(times):
            RDMAAction().fetch_add(buffer, before, 1).submit().get(_PATIENCE_S)
            seen.append(struct.unpack("<Q", before)[0])
        return seen

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get(_PATIENCE_S)

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module", params=["cma", "ucx", "tcp"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    order = {"cma": ["cma", "tcp"], "ucx": ["ucx", "tcp"], "tcp": ["tcp"]}
    overrides = {"procs.stop_s": 0.5, "fabric.order": order[request.param]}
    with controlled(load(overrides).config) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


@pytest.fixture
def owners(procs: ProcMesh) -> ActorMesh[Owner]:
    return procs.spawn("owner", Owner)


def read_by_all(owners: ActorMesh[Owner], data: Any) -> list[Any]:
    """Make a buffer of *data* in the first proc, and return what the program, the other proc and the owner read."""
    first, other = owners.slice(gpus=0), owners.slice(gpus=1)
    buffer = first.make.call_one(data).get(_PATIENCE_S)
    there, own = (reader.read.call_one(buffer).get(_PATIENCE_S) for reader in (other, first))
    return [buffer.read().get(_PATIENCE_S), there, own]


def guarded(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Poisoned memory, and the *size* bytes in its middle."""
    memory = np.full(size + 2 * _GUARD, 0xA5, np.uint8)
    return memory, memory[_GUARD : _GUARD + size]


def stop(pid: int) -> None:
    """Stop a process; its threads run on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    wait_until("the stop", lambda: read_stat(pid), accept=lambda stat: stat is not None and stat.state == "T")


@pytest.mark.parametrize("size", [1, 4096, 1_000_003])
def test_bytes_arrive_whole_and_nothing_beside_them(owner: ActorMesh[Owner], size: int) -> None:
    data = np.frombuffer(os.urandom(size), np.uint8).copy()
    buffer = owner.make.call_one(data).get(_PATIENCE_S)
    memory, into = guarded(size)
    buffer.read_into(into).get(_PATIENCE_S)
    assert (into == data).all() and (memory[:_GUARD] == 0xA5).all() and (memory[-_GUARD:] == 0xA5).all()
    buffer.write_from(into[::-1].copy()).get(_PATIENCE_S)
    assert (owner.contents.call_one().get(_PATIENCE_S) == data[::-1]).all()


@pytest.mark.parametrize(
    "data",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.array(7.5),
        bytearray(b"some text"),
        np.array(["2026-11-22", "1999-01-01"], "datetime64[D]"),
    ],
    ids=lambda data: f"{type(data).__name__}-{getattr(data, 'dtype', 'bytes')}",
)
def test_any_plain_data_is_read_by_others(owners: ActorMesh[Owner], data: Any) -> None:
    for got in read_by_all(owners, data):
        assert type(got) is type(data) and np.array_equal(np.asarray(got), np.asarray(data))


# Made by the test, since not every process that collects it imports torch.
@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.arange(10, dtype=torch.bfloat16),
        lambda torch: torch.nn.Parameter(torch.ones(3, 2)),
        lambda torch: torch.tensor([True, False]),
        lambda torch: torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
    ],
    ids=["bfloat16", "parameter", "bool", "float8"],
)
def test_any_plain_tensor_is_read_by_others(owners: ActorMesh[Owner], make: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    data = make(torch)
    for got in read_by_all(owners, data):
        assert isinstance(got, torch.Tensor) and got.dtype == data.dtype and got.shape == data.shape
        assert torch.equal(got.view(torch.uint8), data.detach().view(torch.uint8))


def test_a_reference_is_small_and_says_what_it_is(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(np.zeros((5, 2))).get(_PATIENCE_S)
    assert len(pickle.dumps(buffer)) <= 400
    assert (buffer.size(), buffer.shape, buffer.dtype, buffer.device, buffer.writable) == (
        80,
        (5, 2),
        "float64",
        "cpu",
        True,
    )
    assert "owner" in buffer.owner and "float64[5, 2]" in repr(buffer)
    buffer.read().get(_PATIENCE_S)
    assert buffer.path().get(_PATIENCE_S) and buffer.backend == get_rdma_backend()


def test_each_process_has_its_own_path(
    procs: ProcMesh, owners: ActorMesh[Owner], request: pytest.FixtureRequest
) -> None:
    first = request.node.callspec.params["hosts"]
    owner, other = owners.slice(gpus=0), owners.slice(gpus=1)
    buffer = owner.make.call_one(np.zeros(10)).get(_PATIENCE_S)
    assert other.read.call_one(buffer).get(_PATIENCE_S).shape == (10,)
    assert [buffer.path(peer).get(_PATIENCE_S) for peer in (owner, procs.slice(gpus=0))] == ["local", "local"]
    there = buffer.path(other).get(_PATIENCE_S)  # the two procs have just met, perhaps before UCX has started
    assert there.startswith(("cma",) if first == "cma" else ("ucx/", "tcp"))
    buffer.read().get(_PATIENCE_S)
    assert buffer.path().get(_PATIENCE_S).startswith(first)
    with pytest.raises(ValueError, match="of 2: slice it to one proc"):
        buffer.path(owners)
    with pytest.raises(TypeError, match="a mesh of one proc or actor"):
        buffer.path("gpus=0")


def test_slices_move_their_elements_alone(owner: ActorMesh[Owner]) -> None:
    data = np.arange(40, dtype=np.int32).reshape(10, 4)
    buffer = owner.make.call_one(data).get(_PATIENCE_S)
    assert (buffer[2:5].read().get(_PATIENCE_S) == data[2:5]).all()
    assert (buffer[2:][3:4].read().get(_PATIENCE_S) == data[5:6]).all()
    buffer[-1:].write_from(np.zeros(4, np.int32)).get(_PATIENCE_S)
    assert (owner.contents.call_one().get(_PATIENCE_S)[9] == 0).all()
    for bad in (slice(3, 3), slice(0, 10, 2)):
        with pytest.raises(ValueError, match="one after the other"):
            buffer[bad]
    with pytest.raises(TypeError, match="give a slice"):
        buffer[3]


def test_the_memory_of_the_program_is_used_by_procs(owners: ActorMesh[Owner]) -> None:
    mine = np.zeros(100)
    buffer = RDMABuffer(mine)
    owners.slice(gpus=1).write.call_one(buffer, np.arange(100.0)).get(_PATIENCE_S)
    assert (mine == np.arange(100.0)).all()
    assert (owners.slice(gpus=0).read.call_one(buffer).get(_PATIENCE_S) == mine).all()
    buffer.drop().get(_PATIENCE_S)


def test_an_action_does_all_and_can_be_submitted_again(owners: ActorMesh[Owner]) -> None:
    first, second = (
        owners.slice(gpus=gpu).make.call_one(np.full(1000, gpu, np.int64)).get(_PATIENCE_S) for gpu in range(2)
    )
    into, new = np.zeros(2000, np.int64), np.full(500, 9, np.int64)
    action = RDMAAction().read_remote(into[:1000], first).read_remote(into[1000:], second).write_remote(first, new)
    action.submit().get(_PATIENCE_S)
    action.submit(timeout=_PATIENCE_S).get(_PATIENCE_S)
    assert (into[:500] == 9).all() and (into[500:1000] == 0).all() and (into[1000:] == 1).all()
    assert RDMAAction().submit().get(_PATIENCE_S) is None
    with pytest.raises(ValueError, match="overlaps"):
        action.read_remote(into[999:], second)
    second.drop().get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match="dropped by"):
        action.submit().get(_PATIENCE_S)


def test_numbers_count_for_all(owners: ActorMesh[Owner]) -> None:
    counter = np.zeros(3, np.int64)
    buffer = RDMABuffer(counter)[1:]
    seen = owners.add.call(buffer, 20).get(_PATIENCE_S)
    assert sorted(number for one in seen.values() for number in one) == list(range(40))
    before = np.zeros(1, np.int64)
    for compare, after in ((5, 40), (40, -1)):
        RDMAAction().compare_and_swap(buffer, before, compare, -1).submit().get(_PATIENCE_S)
        assert before[0] == 40 and list(counter) == [0, after, 0]
    buffer.drop().get(_PATIENCE_S)


def test_what_was_dropped_is_an_error_for_all_that_says_by_whom(owners: ActorMesh[Owner]) -> None:
    first, second = owners.slice(gpus=0), owners.slice(gpus=1)
    buffer = first.make.call_one(np.zeros(1000)).get(_PATIENCE_S)
    buffer.read().get(_PATIENCE_S)
    second.drop.call_one(buffer).get(_PATIENCE_S)
    for use in (buffer.read, buffer[5:].read, buffer.drop):
        with pytest.raises(MemoryAccessError, match=r"dropped by .*owner\[1\] at \d\d:\d\d:\d\d"):
            use().get(_PATIENCE_S)
    error = first.read.call_one(buffer).exception(_PATIENCE_S)
    assert isinstance(error, MemoryAccessError) and "dropped by" in str(error)


def test_the_end_of_an_actor_ends_its_buffers(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(np.zeros(1000)).get(_PATIENCE_S)
    buffer.read().get(_PATIENCE_S)
    owner.stop().get(_PATIENCE_S)
    with pytest.raises(MemoryAccessError, match=r"its owner .* has ended"):
        buffer.read().get(_PATIENCE_S)


def test_an_owner_that_dies_is_told_of(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        owner = procs.spawn("owner", Owner)
        buffer = owner.make.call_one(np.zeros(1000)).get(_PATIENCE_S)
        os.kill(owner.pid.call_one().get(_PATIENCE_S), signal.SIGKILL)
        with pytest.raises(ProcDied, match="SIGKILL"):
            buffer.read().get(_PATIENCE_S)
        with pytest.raises(ProcDied, match="SIGKILL"):
            buffer.drop().get(_PATIENCE_S)
        wait_until("the failure", lambda: list(faults))


# Not over UCX's shared memory, where a process that dies while it writes there harms its neighbours.
@pytest.mark.parametrize("hosts", ["cma", "tcp"], indirect=True)
def test_a_mapped_file_that_is_cut_off_ends_its_owner_as_any_access_to_it_does(
    hosts: HostMesh, faults: list[MeshFailure], tmp_path: Path
) -> None:
    with hosts.slice(hosts=0).spawn_procs() as procs:
        settle(procs)
        owner = procs.spawn("owner", Owner)
        buffer = owner.lend_file.call_one(str(tmp_path / "data")).get(_PATIENCE_S)
        assert not buffer.read().get(_PATIENCE_S).any()
        os.truncate(tmp_path / "data", mmap.PAGESIZE)
        if buffer.path().get(_PATIENCE_S) == "cma":  # who copies by itself is told, and the owner goes on
            with pytest.raises(MemoryAccessError, match="is not mapped there"):
                buffer.read().get(_PATIENCE_S)
            assert owner.pid.call_one().get(_PATIENCE_S)
        else:
            with pytest.raises(ProcDied, match="SIGBUS"):
                buffer.read().get(_PATIENCE_S)
            wait_until("the failure", lambda: list(faults), timeout_s=_PATIENCE_S)


def test_a_late_owner_costs_the_time_limit_and_no_byte_comes_after_it(owner: ActorMesh[Owner]) -> None:
    pid = owner.pid.call_one().get(_PATIENCE_S)
    buffer = owner.make.call_one(np.ones(1_000_000, np.uint8)).get(_PATIENCE_S)
    memory, into = guarded(1_000_000)
    stop(pid)
    try:
        future = buffer.read_into(into, timeout=0.2)
        with pytest.raises(TimeoutError, match=r"not done after 0.2 s: read of 1000000 bytes"):
            future.get(_PATIENCE_S)
        before = memory.copy()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(buffer.read().get(_PATIENCE_S)) == 1_000_000
    assert (memory == before).all()


@pytest.mark.parametrize("hosts", ["cma"], indirect=True)
def test_a_stopped_owner_is_read_by_the_reader_alone(owner: ActorMesh[Owner]) -> None:
    pid = owner.pid.call_one().get(_PATIENCE_S)
    data = np.frombuffer(os.urandom(1_000_000), np.uint8).copy()
    buffer = owner.make.call_one(data).get(_PATIENCE_S)
    buffer[:1].read().get(_PATIENCE_S)
    memory, into = guarded(1_000_000)
    stop(pid)
    try:
        buffer.read_into(into).get(_PATIENCE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert buffer.path().get(_PATIENCE_S) == "cma" and (into == data).all()
    assert (memory[:_GUARD] == 0xA5).all() and (memory[-_GUARD:] == 0xA5).all()


def test_an_action_has_thousands_of_pieces(owners: ActorMesh[Owner]) -> None:
    size, num = 512, 2000
    data = [np.frombuffer(os.urandom(2 * size * num), np.uint8).copy() for _ in range(2)]
    sources = [owners.slice(gpus=gpu).make.call_one(data[gpu]).get(_PATIENCE_S) for gpu in range(2)]
    into = np.zeros((num, size), np.uint8)
    action = RDMAAction()
    for number in range(num):
        action.read_remote(into[number], sources[number % 2][2 * number * size : (2 * number + 1) * size])
    expected = np.stack([data[number % 2][2 * number * size : (2 * number + 1) * size] for number in range(num)])
    for _ in range(2):
        into[:] = 0
        action.submit().get(_PATIENCE_S)
        assert (into == expected).all()


def test_a_transfer_that_was_cancelled_ends_and_writes_nothing_more(owner: ActorMesh[Owner]) -> None:
    pid = owner.pid.call_one().get(_PATIENCE_S)
    buffer = owner.make.call_one(np.ones(1_000_000, np.uint8)).get(_PATIENCE_S)
    memory, into = guarded(1_000_000)
    stop(pid)
    try:
        read = buffer.read_into(into)
        action = RDMAAction().read_remote(into, buffer).submit()
        for future in (read, action):
            future.cancel()
            wait_until("the end", future.done)
            assert future.cancelled()
        before = memory.copy()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(buffer.read().get(_PATIENCE_S)) == 1_000_000
    assert (memory == before).all()


def test_coroutines_wait_for_transfers(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(np.arange(1000.0)).get(_PATIENCE_S)

    async def main() -> list[np.ndarray]:
        return list(await asyncio.gather(*(buffer.read() for _ in range(8))))

    assert all((got == np.arange(1000.0)).all() for got in asyncio.run(main()))


def test_wrong_arguments_are_told_before_anything_moves(owner: ActorMesh[Owner]) -> None:
    buffer = owner.make.call_one(np.zeros(100), False).get(_PATIENCE_S)
    with pytest.raises(ValueError, match="80 bytes, fewer than the 800"):
        buffer.read_into(np.zeros(10))
    with pytest.raises(TypeError, match="elements of float32, the buffer of float64"):
        buffer.read_into(np.zeros(200, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        buffer.read_into(bytes(800))
    with pytest.raises(ValueError, match="can only be read"):
        buffer.write_from(np.zeros(10))
    with pytest.raises(ValueError, match="timeout"):
        buffer.read_into(np.zeros(100), timeout=-1)
    with pytest.raises(TypeError, match="give a buffer"):
        RDMAAction().read_remote(np.zeros(100), np.zeros(100))  # type: ignore[arg-type]
    buffer.read_into(np.zeros(800, np.uint8)).get(_PATIENCE_S)
