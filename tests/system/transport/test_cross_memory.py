"""Memory of other processes of this host that the reader or writer copies by itself, whatever its owner does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

import pytest

from monarch_hpc.core.errors import MemoryAccessError, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.testing.conformance import MEMORY
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.copiers import Copiers
from monarch_hpc.transport.memory.cma.cross_memory import AttachedMemory
from monarch_hpc.transport.memory.cma.stamps import Stamps
from monarch_hpc.transport.memory.cma.steps import STEP_BYTES, plan_steps
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.far import Far, far
from tests.system.support.parties import PATIENCE_S, Party, join, parties

__all__ = ["parties"]

_MIB = 2**20
_GUARD = 64
"""Bytes before and behind each destination, which must not change."""


class Reader(Party):
    """A party with a channel to a process that has registered memory of *num_bytes* sevens."""

    def __init__(self, there: Far, num_bytes: int) -> None:
        super().__init__(role=Role.CONTROLLER, cma=True)
        self.channel = self.node.connect(there.addresses)
        self.channel.send(Frame(Kind.RESULT, num_bytes, MEMORY))
        self.until(lambda: bool(self.frames))
        self.memory = bytes(self.frames[0].body)[:ID_BYTES]
        self.move(memoryview(bytearray(1)), write=False).wait(PATIENCE_S)
        assert self.channel.memory.path(self.memory) == "cma"

    def move(self, buffer: memoryview, *, write: bool, offset: int = 0) -> Transfer:
        return self.channel.memory.move(self.memory, offset, buffer, write=write)


@pytest.fixture
def reading() -> Iterator[Callable[[Far, int], Reader]]:
    with contextlib.ExitStack() as opened:

        def make(there: Far, num_bytes: int) -> Reader:
            reader = Reader(there, num_bytes)
            opened.callback(reader.close)
            return reader

        yield make


@pytest.fixture(scope="module")
def there() -> Iterator[Far]:
    with far("cma") as there:
        yield there


@pytest.fixture
def pair(parties: Callable[..., Party]) -> tuple[Party, Party, FrameChannel]:
    return join(parties, "cma")


def guarded(num_bytes: int) -> tuple[bytearray, memoryview]:
    """Poisoned memory, and the *num_bytes* in its middle."""
    memory = bytearray(b"\xa5") * (num_bytes + 2 * _GUARD)
    return memory, memoryview(memory)[_GUARD : _GUARD + num_bytes]


def whole(memory: bytearray) -> bool:
    """Whether nothing was written beside the destination."""
    return memory[:_GUARD] == memory[-_GUARD:] == b"\xa5" * _GUARD


def own_attachment(stamps: Stamps[str], pid: int = 0) -> AttachedMemory:
    """This process's own memory, or that of a child, as another process sees it."""
    return AttachedMemory(None, Copiers(), pid or os.getpid(), stamps.of("reader"), "there")  # type: ignore[arg-type]  # no transfer, no engine


@pytest.mark.parametrize("num_bytes", [1, 4096, 3 * _MIB + 5])
def test_memory_is_read_and_written_while_its_owner_is_stopped(
    there: Far, reading: Callable[[Far, int], Reader], num_bytes: int
) -> None:
    reader = reading(there, num_bytes + 9)
    memory, into = guarded(num_bytes)
    os.kill(there.process.pid, signal.SIGSTOP)
    try:
        reader.move(into, write=False, offset=3).wait(PATIENCE_S)
        assert into == b"\7" * num_bytes and whole(memory)
        data = os.urandom(num_bytes)
        reader.move(memoryview(data), write=True, offset=5).wait(PATIENCE_S)
        again, into = guarded(num_bytes + 9)
        reader.move(into, write=False).wait(PATIENCE_S)
        assert into == b"\7" * 5 + data + b"\7" * 4 and whole(again)
    finally:
        os.kill(there.process.pid, signal.SIGCONT)


def test_an_owner_that_is_killed_ends_transfers_with_an_error(reading: Callable[[Far, int], Reader]) -> None:
    with far("cma") as there:
        reader = reading(there, 32 * _MIB)
        targets = [guarded(32 * _MIB) for _ in range(4)]
        data = memoryview(bytes(32 * _MIB))
        transfers: list[Transfer] = []
        # So many are under way when it is killed, and go on until one has failed.
        while not any(transfer.error for transfer in transfers if transfer.done):
            if len(transfers) == 20:
                there.process.kill()
            write = len(transfers) % 5 == 4
            try:
                transfers.append(reader.move(data if write else targets[len(transfers) % 4][1], write=write))
            except PeerLost:
                break
            reader.until(lambda: sum(not transfer.done for transfer in transfers) < 20)
        reader.until(lambda: all(transfer.done for transfer in transfers))
        assert all(isinstance(transfer.error, PeerLost | None) for transfer in transfers)
        assert all(whole(memory) for memory, _ in targets)
        with pytest.raises(PeerLost):
            reader.move(memoryview(bytearray(1)), write=False).wait(PATIENCE_S)


def test_nobody_reads_what_replaces_dropped_memory(pair: tuple[Party, Party, FrameChannel]) -> None:
    """Ten thousand readers race with drops: each gets the old contents, or an error."""
    owner, _, channel = pair
    num_errors = 0
    for _ in range(20):
        buffer = bytearray(b"o" * 100_000)
        memory = owner.node.register(buffer)
        channel.memory.move(memory.parts.id, 0, bytearray(1), write=False).wait(PATIENCE_S)
        dropped = threading.Event()
        seen: list[tuple[Transfer, bytearray]] = []

        def read(memory: Memory = memory, seen: list[tuple[Transfer, bytearray]] = seen) -> None:
            for number in range(250):
                into = bytearray(100_000 if number % 8 == 0 else 2000)
                seen.append((channel.memory.move(memory.parts.id, 0, into, write=False), into))

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        owner.node.own_memory.grants.revoke(memory.parts.id, "dropped by a[0]", dropped.set)
        assert dropped.wait(PATIENCE_S)
        buffer[:] = b"n" * 100_000
        for reader in readers:
            reader.join(PATIENCE_S)
        for transfer, into in seen:
            error: TransportError | None = None
            try:
                transfer.wait(PATIENCE_S)
            except MemoryAccessError as failure:
                error = failure
            assert b"n" not in into and (error is not None or into == b"o" * len(into))
            num_errors += error is not None
    assert num_errors


def test_a_transfer_that_is_stopped_writes_no_more(pair: tuple[Party, Party, FrameChannel]) -> None:
    owner, asker, channel = pair
    num_bytes = 8 * STEP_BYTES
    memory = owner.node.register(bytearray(b"x") * num_bytes)
    channel.memory.move(memory.parts.id, 0, bytearray(1), write=False).wait(PATIENCE_S)
    into = bytearray(num_bytes)
    transfers = [channel.memory.move(memory.parts.id, 0, into, write=False) for _ in range(3)]
    for transfer in transfers:
        asker.engine.call_soon(lambda transfer=transfer: transfer.stop(MemoryAccessError("there", "given up")))  # type: ignore[misc]
    asker.until(lambda: all(transfer.done for transfer in transfers))
    into[:] = bytes(num_bytes)
    channel.memory.move(memory.parts.id, 0, bytearray(num_bytes), write=False).wait(PATIENCE_S)
    assert not any(into[::4096])
    with pytest.raises(MemoryAccessError, match="given up"):
        transfers[-1].wait(0)


def test_only_the_owner_itself_is_read() -> None:
    """Neither another process with its pid, nor its forked child, nor the owner after it has ended the channel."""
    stamps: Stamps[str] = Stamps()
    buffer, into = bytearray(b"secret"), bytearray(6)
    (step,) = plan_steps([(address_of(memoryview(into)), address_of(memoryview(buffer)), 6)])
    assert own_attachment(stamps).copy(step, write=False) == 0 and into == b"secret"
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        fork = own_attachment(stamps, child)
        assert fork.copy(step, write=False) == fork.copy(step, write=True) == errno.ESRCH
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)
    assert own_attachment(stamps, child).copy(step, write=False) == errno.ESRCH
    attachment = own_attachment(stamps)
    stamps.wipe("reader")
    buffer[:] = b"newest"
    assert attachment.copy(step, write=False) == errno.ESRCH
    into[:] = b"broken"
    assert attachment.copy(step, write=True) == errno.ESRCH and buffer == b"newest"


def test_memory_that_is_not_mapped_is_left_to_others() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        address = address_of(memoryview(mapped))
        stamps: Stamps[str] = Stamps()
        attachment = own_attachment(stamps)
        ends = [address, address + 2 * mmap.PAGESIZE - 1]
        assert attachment.reaches(ends) and attachment.reaches([])
        os.truncate(file.fileno(), mmap.PAGESIZE)
        assert not attachment.reaches(ends)
        (step,) = plan_steps([(address_of(memoryview(bytearray(9))), address + mmap.PAGESIZE, 9)])
        error = attachment.failure(attachment.copy(step, write=False))
        assert isinstance(error, MemoryAccessError) and "not mapped" in str(error)
        mapped.close()


def test_where_the_kernel_forbids_it_frames_carry_the_bytes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.transport.test_cross_memory"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "'' True\n"), done.stderr


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Filter))]


def _forbid() -> None:
    """Let the kernel refuse process_vm_readv to this process, as containers do."""
    number = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
    load, equal, end = 0x20, 0x15, 0x06
    steps = (load, 0, 0, 0), (equal, 0, 1, number), (end, 0, 0, 0x00050000 | errno.EPERM), (end, 0, 0, 0x7FFF0000)
    filters = (_Filter * 4)(*(_Filter(*step) for step in steps))
    program = _Program(4, filters)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # no new privileges; seccomp


def _main() -> None:
    _forbid()
    owner, asker = Party(cma=True), Party(role=Role.CONTROLLER, cma=True)
    channel = asker.node.connect(owner.node.listen(["127.0.0.1"]))
    memory, into = owner.node.register(bytearray(b"x" * 100_000)), bytearray(100_000)
    channel.memory.move(memory.parts.id, 0, into, write=False).wait(PATIENCE_S)
    print(repr(channel.memory.path(memory.parts.id)), into == b"x" * 100_000)
    asker.close()
    owner.close()


if __name__ == "__main__":
    _main()
