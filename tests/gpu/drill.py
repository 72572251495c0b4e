"""A program that moves memory of GPUs between its procs and itself, run by tests in a process of its own.

    python -m tests.gpu.drill ORDER STAGED SCENARIO...

It prints ``passed``, or fails.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError

import numpy as np
import pytest

import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorError, ActorMesh, ProcDied, ProcMesh, endpoint
from monarch_hpc.rdma import RDMAAction, RDMABuffer
from tests.gpu.device import DeviceMemory

Scenario = Callable[[ProcMesh], None]

_PATIENCE_S = 60.0
_GUARD = 64
_numbers = itertools.count()
_SIZES = [1, 4097, 3 * 2**20 + 5, 9 * 2**20 + 1]


def contents(num_bytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


class Holder(Actor):
    """Lends memory of a GPU, and moves that of others to and from its own."""

    @endpoint
    def lend(self, num_bytes: int, seed: int, pooled: bool = False) -> RDMABuffer:
        guard = b"\xa5" * _GUARD
        self._memory = DeviceMemory(guard + contents(num_bytes, seed) + guard, pooled=pooled)
        self._num_bytes = num_bytes
        return RDMABuffer(self._memory.part(_GUARD, num_bytes))

    @endpoint
    def lend_unfinished(self, num_bytes: int) -> RDMABuffer:
        self._memory = DeviceMemory(bytes(num_bytes))
        self._memory.fill_later(7)
        return RDMABuffer(self._memory)

    @endpoint
    def now(self) -> bytes:
        """What it has; the guards must be whole."""
        content = self._memory.read()
        assert content[:_GUARD] == content[-_GUARD:] == b"\xa5" * _GUARD
        return content[_GUARD:-_GUARD]

    @endpoint
    async def fetch(self, buffer: RDMABuffer) -> str:
        """Read *buffer* into its own memory; return the path."""
        await buffer.read_into(self._memory.part(_GUARD, self._num_bytes))
        return await buffer.path()

    @endpoint
    async def give(self, buffer: RDMABuffer) -> str:
        """Write its own memory to *buffer*."""
        await buffer.write_from(self._memory.part(_GUARD, self._num_bytes))
        return await buffer.path()

    @endpoint
    async def forever(self, buffer: RDMABuffer) -> None:
        for _ in range(1_000_000):
            await buffer.read_into(self._memory.part(_GUARD, self._num_bytes))

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def pair(procs: ProcMesh) -> tuple[ActorMesh[Holder], ActorMesh[Holder]]:
    holders = procs.spawn(f"holder{next(_numbers)}", Holder)
    return holders.slice(gpus=0), holders.slice(gpus=1)


def between_gpu_and_host(procs: ProcMesh) -> None:
    owner, _user = pair(procs)
    for num_bytes in _SIZES:
        buffer = owner.lend.call_one(num_bytes, 1).get(_PATIENCE_S)
        assert buffer.device == "cuda:0" and buffer.dtype == "uint8"
        around = np.full(num_bytes + 2 * _GUARD, 0xA5, np.uint8)
        here = around[_GUARD:-_GUARD]
        buffer.read_into(here).get(_PATIENCE_S)
        assert here.tobytes() == contents(num_bytes, 1)
        assert (around[:_GUARD] == 0xA5).all() and (around[-_GUARD:] == 0xA5).all()
        assert buffer.path().get(_PATIENCE_S) == "staged"
        here[:] = np.frombuffer(contents(num_bytes, 2), np.uint8)
        buffer.write_from(here).get(_PATIENCE_S)
        assert owner.now.call_one().get(_PATIENCE_S) == contents(num_bytes, 2)
        buffer.drop().get(_PATIENCE_S)


def between_host_and_gpu(procs: ProcMesh) -> None:
    _owner, user = pair(procs)
    for num_bytes in _SIZES:
        around = np.full(num_bytes + 2 * _GUARD, 0xA5, np.uint8)
        around[_GUARD:-_GUARD] = np.frombuffer(contents(num_bytes, 1), np.uint8)
        buffer = RDMABuffer(around[_GUARD:-_GUARD])
        user.lend.call_one(num_bytes, 2).get(_PATIENCE_S).drop().get(_PATIENCE_S)
        assert user.fetch.call_one(buffer).get(_PATIENCE_S) == "staged"
        assert user.now.call_one().get(_PATIENCE_S) == contents(num_bytes, 1)
        user.lend.call_one(num_bytes, 3).get(_PATIENCE_S)
        user.give.call_one(buffer).get(_PATIENCE_S)
        assert around[_GUARD:-_GUARD].tobytes() == contents(num_bytes, 3)
        assert (around[:_GUARD] == 0xA5).all() and (around[-_GUARD:] == 0xA5).all()
        buffer.drop().get(_PATIENCE_S)


def _between_gpus(procs: ProcMesh, path: str, *, pooled: bool) -> None:
    owner, user = pair(procs)
    for num_bytes in _SIZES:
        buffer = owner.lend.call_one(num_bytes, 1, pooled).get(_PATIENCE_S)
        user.lend.call_one(num_bytes, 2).get(_PATIENCE_S)
        assert user.fetch.call_one(buffer).get(_PATIENCE_S) == path
        assert user.now.call_one().get(_PATIENCE_S) == contents(num_bytes, 1)
        user.lend.call_one(num_bytes, 3).get(_PATIENCE_S)
        user.give.call_one(buffer).get(_PATIENCE_S)
        assert owner.now.call_one().get(_PATIENCE_S) == contents(num_bytes, 3)
        buffer.drop().get(_PATIENCE_S)
        with pytest.raises(ActorError, match="it was dropped by"):
            user.fetch.call_one(buffer).get(_PATIENCE_S)


def between_gpus(procs: ProcMesh) -> None:
    _between_gpus(procs, "cuda_ipc", pooled=False)


def pooled(procs: ProcMesh) -> None:
    _between_gpus(procs, "staged", pooled=True)


def refused(procs: ProcMesh) -> None:
    owner, user = pair(procs)
    buffer = owner.lend.call_one(5000, 1, True).get(_PATIENCE_S)
    user.lend.call_one(5000, 2).get(_PATIENCE_S)
    with pytest.raises(ActorError, match=r"config key 'rdma\.staged' refuses"):
        user.fetch.call_one(buffer).get(_PATIENCE_S)
    assert user.now.call_one().get(_PATIENCE_S) == contents(5000, 2)
    here = bytearray(5000)
    buffer.read_into(here).get(_PATIENCE_S)  # between a GPU and its host there is no other way
    assert here == contents(5000, 1)


def lists(procs: ProcMesh) -> None:
    owner, _user = pair(procs)
    num_bytes = 2**20
    buffer = owner.lend.call_one(num_bytes, 1).get(_PATIENCE_S)
    here, own = np.zeros(num_bytes, np.uint8), DeviceMemory(bytes(num_bytes))
    action = RDMAAction()
    for number, at in enumerate(range(0, num_bytes, 8192)):
        part = buffer[at : at + 8192]
        action.read_remote(own.part(at, 8192) if number % 2 else here[at : at + 8192], part)
    for _ in range(2):
        action.submit().get(_PATIENCE_S)
    whole, odd = contents(num_bytes, 1), own.read()
    for number, at in enumerate(range(0, num_bytes, 8192)):
        got = odd[at : at + 8192] if number % 2 else here[at : at + 8192].tobytes()
        assert got == whole[at : at + 8192]
    write = RDMAAction()
    for at in range(0, num_bytes, 8192):
        write.write_remote(buffer[at : at + 8192], np.full(8192, at // 8192 % 251, np.uint8))
    write.submit().get(_PATIENCE_S)
    expected = b"".join(bytes([at // 8192 % 251]) * 8192 for at in range(0, num_bytes, 8192))
    assert owner.now.call_one().get(_PATIENCE_S) == expected
    mine = RDMABuffer(DeviceMemory(contents(num_bytes, 5)))  # of this process itself
    mine.read_into(own).get(_PATIENCE_S)
    mine.read_into(here).get(_PATIENCE_S)
    assert own.read() == here.tobytes() == contents(num_bytes, 5)
    mine.write_from(np.arange(10, dtype=np.uint8)).get(_PATIENCE_S)
    assert bytes(mine.read().get(_PATIENCE_S))[:11] == bytes([*range(10), contents(num_bytes, 5)[10]])


def bad_input(procs: ProcMesh) -> None:
    owner, _user = pair(procs)
    buffer = owner.lend.call_one(100, 1).get(_PATIENCE_S)
    small = DeviceMemory(bytes(99))
    with pytest.raises(ValueError, match="dst has 99 bytes"):
        buffer.read_into(small)
    with pytest.raises(ValueError, match="no writable memory of a host"):
        RDMAAction().fetch_add(buffer, bytearray(8), 1)
    with pytest.raises(ValueError, match="overlaps with the target"):
        RDMAAction().read_remote(small, buffer[:9]).read_remote(small.part(8, 50), buffer[:9])
    assert small.read() == bytes(99)


def streams(procs: ProcMesh) -> None:
    owner, _user = pair(procs)
    buffer = owner.lend_unfinished.call_one(10_000).get(_PATIENCE_S)
    assert bytes(buffer.read().get(_PATIENCE_S)) == bytes([7]) * 10_000
    own = DeviceMemory(bytes(10_000))
    own.fill_later(9)
    buffer.write_from(own).get(_PATIENCE_S)
    assert bytes(buffer.read().get(_PATIENCE_S)) == bytes([9]) * 10_000
    own.fill_later(1)
    buffer.read_into(own).get(_PATIENCE_S)  # behind what the stream writes
    assert own.read() == bytes([9]) * 10_000


def killed(procs: ProcMesh) -> None:
    owner, user = pair(procs)
    num_bytes = 8 * 2**20
    buffer = owner.lend.call_one(num_bytes, 1).get(_PATIENCE_S)
    user.lend.call_one(num_bytes, 1).get(_PATIENCE_S)
    own = DeviceMemory(bytes(num_bytes))
    buffer.read_into(own).get(_PATIENCE_S)
    going = user.forever.call_one(buffer)
    os.kill(owner.pid.call_one().get(_PATIENCE_S), signal.SIGKILL)
    for _ in range(1_000_000):
        try:
            buffer.read_into(own).get(_PATIENCE_S)
        except ProcDied:
            break
    with pytest.raises(ActorError, match="ProcDied"):
        going.get(_PATIENCE_S)
    assert user.now.call_one().get(_PATIENCE_S) == contents(num_bytes, 1)


def cancelled(procs: ProcMesh) -> None:
    owner, _user = pair(procs)
    num_bytes = 64 * 2**20
    buffer = owner.lend.call_one(num_bytes, 1).get(_PATIENCE_S)
    around = DeviceMemory(b"\xa5" * (num_bytes + 2 * _GUARD))
    for _ in range(5):
        reading = buffer.read_into(around.part(_GUARD, num_bytes))
        reading.cancel()
        with contextlib.suppress(CancelledError):
            reading.get(_PATIENCE_S)
    content = around.read()
    assert content[:_GUARD] == content[-_GUARD:] == b"\xa5" * _GUARD
    buffer.drop().get(_PATIENCE_S)  # nothing is under way


_SCENARIOS: dict[str, Scenario] = {
    one.__name__: one
    for one in (
        between_gpu_and_host,
        between_host_and_gpu,
        between_gpus,
        pooled,
        refused,
        lists,
        bad_input,
        streams,
        killed,
        cancelled,
    )
}


def main() -> None:
    """Run the scenarios."""
    order, staged, *scenarios = sys.argv[1:]
    os.environ["MONARCH_HPC_FABRIC__ORDER"] = order
    os.environ["MONARCH_HPC_RDMA__STAGED"] = staged
    faults: list[object] = []
    monarch_hpc.actor.unhandled_fault_hook = faults.append
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        for scenario in scenarios:
            _SCENARIOS[scenario](procs)
    print("passed")


if __name__ == "__main__":
    main()
