"""RDMA between two hosts: buffers over queue pairs, messages, revocation, wrong addresses, lost procs and hosts.

RDMA_WORKERS has the addresses of a worker on each of two hosts with InfiniBand or RoCE, and RDMA_KEY their secret:
`make rdma-lab` runs this in two virtual machines with soft-RoCE. The last test switches the second host off.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, SupervisionError, attach_to_workers, endpoint
from monarch_hpc.actor import shutdown_context
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.rdma import RDMAAction, RDMABuffer
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import settle

_WORKERS = os.environ.get("RDMA_WORKERS", "").split()

pytestmark = pytest.mark.skipif(not _WORKERS, reason="needs two hosts with RDMA; `make rdma-lab` emulates them")

_PATIENCE_S = 120.0
"""For emulated processors."""

_GUARD = 64


class Party(Actor):
    """Makes buffers, and uses those of the other host."""

    def __init__(self) -> None:
        self.kept: list[np.ndarray] = []

    @endpoint
    def make(self, num_bytes: int) -> tuple[RDMABuffer, str]:
        """New memory with random bytes, and their digest."""
        self.kept.append(np.frombuffer(os.urandom(num_bytes), np.uint8).copy())
        return RDMABuffer(self.kept[-1]), digest(self.kept[-1])

    @endpoint
    def digest(self) -> str:
        return digest(self.kept[-1])

    @endpoint
    def read(self, buffer: RDMABuffer) -> tuple[str, bool, str]:
        """The digest of what was read, whether the memory around it is as it was, and the path of the bytes."""
        memory = np.full(buffer.size() + 2 * _GUARD, 0xA5, np.uint8)
        buffer.read_into(memory[_GUARD:-_GUARD]).get(_PATIENCE_S)
        whole = bool((memory[:_GUARD] == 0xA5).all() and (memory[-_GUARD:] == 0xA5).all())
        return digest(memory[_GUARD:-_GUARD]), whole, buffer.path().get(_PATIENCE_S)

    @endpoint
    def read_until_it_fails(self, buffer: RDMABuffer) -> tuple[int, BaseException, bool]:
        """The number of reads, the error that ended them, and whether memory stays as it was after that."""
        memory = np.empty(buffer.size(), np.uint8)
        reads = 0
        while True:
            try:
                buffer.read_into(memory, timeout=20).get(_PATIENCE_S)
            except (MemoryAccessError, SupervisionError, TimeoutError) as error:
                break_up: BaseException = error
                break
            reads += 1
        memory[:] = 0
        time.sleep(0.5)  # for bytes that should not come
        return reads, break_up, not memory.any()

    @endpoint
    def choice(self, buffer: RDMABuffer) -> str:
        """Why the channel to the buffer's owner uses what it uses; empty before the choice."""
        buffer.read().get(_PATIENCE_S)
        return current_runtime().node.channels[buffer._proc.incarnation].why

    @endpoint
    def write(self, buffer: RDMABuffer) -> str:
        data = np.frombuffer(os.urandom(buffer.size()), np.uint8)
        buffer.write_from(data).get(_PATIENCE_S)
        return digest(data)

    @endpoint
    def add(self, buffer: RDMABuffer, times: int) -> None:
        for _ in range(times):
            RDMAAction().fetch_add(buffer, bytearray(8), 1).submit().get(_PATIENCE_S)

    @endpoint
    def number(self) -> int:
        return int(self.kept[-1].view(np.int64)[0])

    @endpoint
    def zero(self) -> RDMABuffer:
        self.kept.append(np.zeros(8, np.uint8))
        return RDMABuffer(self.kept[-1])

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get(_PATIENCE_S)

    @endpoint
    def pass_on(self, other: ActorMesh[Party], data: np.ndarray) -> str:
        """What the other party says of *data*."""
        said: str = other.look.call_one(data).get(_PATIENCE_S)
        return said

    @endpoint
    def look(self, data: np.ndarray) -> str:
        return digest(data)

    @endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def switch_off(self) -> None:
        """As if somebody pulled the plug."""
        Path("/proc/sysrq-trigger").write_text("o")


def digest(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    yield attach_to_workers(private_key=os.environ["RDMA_KEY"].encode(), workers=_WORKERS, timeout=_PATIENCE_S)
    shutdown_context()


@pytest.fixture(scope="module")
def parties(hosts: HostMesh) -> ActorMesh[Party]:
    procs = hosts.spawn_procs()
    parties = procs.spawn("party", Party)
    settle(procs)
    assert "both have RDMA" in settled(parties)
    return parties


def settled(parties: ActorMesh[Party]) -> str:
    """Wait until the two have chosen how they connect, for which messages do not wait; return why."""
    buffer, _ = parties.slice(hosts=1).make.call_one(1).get(_PATIENCE_S)
    near = parties.slice(hosts=0)
    why: str = wait_until("the choice", lambda: near.choice.call_one(buffer).get(_PATIENCE_S), _PATIENCE_S)
    return why


@pytest.fixture(scope="module")
def near(parties: ActorMesh[Party]) -> ActorMesh[Party]:
    return parties.slice(hosts=0)


@pytest.fixture(scope="module")
def far(parties: ActorMesh[Party]) -> ActorMesh[Party]:
    return parties.slice(hosts=1)


def test_doctor_names_the_device() -> None:
    command = [sys.executable, "-m", "monarch_hpc.cli", "doctor"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False).stdout
    assert "ucx/rdma" in shown and "rxe" in shown


@pytest.mark.parametrize("num_bytes", [1, 4097, 5_000_003])
def test_bytes_move_by_queue_pairs(near: ActorMesh[Party], far: ActorMesh[Party], num_bytes: int) -> None:
    buffer, there = far.make.call_one(num_bytes).get(_PATIENCE_S)
    assert near.read.call_one(buffer).get(_PATIENCE_S) == (there, True, "ucx/rdma")
    assert near.write.call_one(buffer).get(_PATIENCE_S) == far.digest.call_one().get(_PATIENCE_S)


@pytest.mark.parametrize("num_bytes", [10, 1_000_003])
def test_messages_arrive_whole(near: ActorMesh[Party], far: ActorMesh[Party], num_bytes: int) -> None:
    data = np.frombuffer(os.urandom(num_bytes), np.uint8)
    assert near.pass_on.call_one(far, data).get(_PATIENCE_S) == digest(data)


def test_numbers_count_for_both(parties: ActorMesh[Party], far: ActorMesh[Party]) -> None:
    counter = far.zero.call_one().get(_PATIENCE_S)
    parties.add.call(counter, 20).get(_PATIENCE_S)
    assert far.number.call_one().get(_PATIENCE_S) == 40


def test_no_byte_comes_after_a_drop(near: ActorMesh[Party], far: ActorMesh[Party]) -> None:
    buffer, _ = far.make.call_one(1_000_000).get(_PATIENCE_S)
    near.read.call_one(buffer).get(_PATIENCE_S)  # so that it has a key
    reading = near.read_until_it_fails.call_one(buffer)
    far.drop.call_one(buffer).get(_PATIENCE_S)
    _, error, clean = reading.get(_PATIENCE_S)
    assert isinstance(error, MemoryAccessError) and "dropped by" in str(error) and clean


def test_a_network_address_that_is_not_routed_ends_in_tcp(hosts: HostMesh) -> None:
    """UCX would abort both processes."""
    with hosts.spawn_procs(env={"UCX_IB_GID_INDEX": "1"}) as procs:
        parties = procs.spawn("party", Party)
        assert "trial of RDMA failed" in settled(parties)
        near, far = parties.slice(hosts=0), parties.slice(hosts=1)
        buffer, there = far.make.call_one(1000).get(_PATIENCE_S)
        assert near.read.call_one(buffer).get(_PATIENCE_S) == (there, True, "tcp")


def test_a_lost_proc_ends_its_readers_alone(
    hosts: HostMesh, near: ActorMesh[Party], far: ActorMesh[Party], faults: list[MeshFailure]
) -> None:
    doomed = hosts.slice(hosts=1).spawn_procs(name="doomed").spawn("doomed", Party)
    buffer, _ = doomed.make.call_one(1_000_000).get(_PATIENCE_S)
    near.read.call_one(buffer).get(_PATIENCE_S)
    reading = near.read_until_it_fails.call_one(buffer)
    doomed.die.broadcast()
    _, error, clean = reading.get(_PATIENCE_S)
    assert isinstance(error, SupervisionError) and clean, error
    other, there = far.make.call_one(1_000_000).get(_PATIENCE_S)
    assert near.read.call_one(other).get(_PATIENCE_S) == (there, True, "ucx/rdma")


def test_a_host_that_is_switched_off_ends_its_readers(
    near: ActorMesh[Party], far: ActorMesh[Party], faults: list[MeshFailure]
) -> None:
    buffer, _ = far.make.call_one(1_000_000).get(_PATIENCE_S)
    near.read.call_one(buffer).get(_PATIENCE_S)
    reading = near.read_until_it_fails.call_one(buffer)
    far.switch_off.broadcast()
    _, error, clean = reading.get(_PATIENCE_S)
    assert isinstance(error, (SupervisionError, TimeoutError)) and clean, error
    own, here = near.make.call_one(1000).get(_PATIENCE_S)
    assert near.read.call_one(own).get(_PATIENCE_S) == (here, True, "local")
