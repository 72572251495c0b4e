"""Transfers with memory of GPUs: copied by the reader where it can open the memory, else staged through host memory."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from typing import Literal

from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.cuda import has_gpu_direct
from monarch_hpc.transport.engine.copiers import Copiers
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.device.copies import OpenedAllocation, device_at, open_allocation
from monarch_hpc.transport.memory.device.handle import DeviceHandle
from monarch_hpc.transport.memory.device.pipeline import PieceWork, Pipeline, StagedTransfer
from monarch_hpc.transport.memory.key import Key, device_span
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["Devices"]

_STEP_BYTES = 256 << 20
"""Size of the steps between which a copy between GPUs can be stopped: a few milliseconds, or 20 over PCIe."""

_log = Logger(__name__)


class Devices:
    """Memory of GPUs in transfers of this process; for any thread.

    Args:
        copiers: the threads that copy.

    Attributes:
        direct: whether UCX reaches it by RDMA without a copy through host memory.
    """

    def __init__(self, engine: Engine, copiers: Copiers) -> None:
        self._engine = engine
        self._copiers = copiers
        self._refuses = False
        self._warned = False
        self._lock = allocate_lock()
        self.direct = has_gpu_direct()

    def use(self, staged: Literal["warn", "refuse"]) -> None:
        """Follow the config key `rdma.staged`."""
        self._refuses = staged == "refuse"

    def open(self, handle: DeviceHandle, buffer: object) -> OpenedAllocation | None:
        """The memory of another process of this host, for the GPU that has *buffer*; None if it cannot be opened."""
        span = device_span(buffer)
        if span is None or not handle.opens:
            return None
        try:
            return open_allocation(handle.handle, device_at(span[0])[1])
        except OSError as error:
            _log.info("memory of a GPU is not opened: %s", error)
            return None

    def copy(
        self, opened: OpenedAllocation, key: Key, place: int, buffer: object, where: str, *, offset: int, write: bool
    ) -> Transfer:
        """Copy between *buffer*, memory of a GPU of this process, and a memory that begins at *place* of *opened*."""
        local, num_bytes, _writable = _span_of(buffer)
        transfer = Transfer(self._engine, f"copy of {num_bytes} bytes at {offset} between GPUs, {where}")
        problem = key.error(where, offset, num_bytes, write=write)
        if problem is not None or not num_bytes:
            transfer.finish(problem)
            return transfer
        cuda, device = device_at(local)
        first = opened.address + place + offset

        def stage(at: int, size: int) -> PieceWork:
            there, here = first + at, local + at
            into, data = (there, here) if write else (here, there)
            return PieceWork(lambda: cuda.copy(into, data, size, device), None)

        Pipeline(self._engine, self._copiers, transfer, where, num_bytes, _STEP_BYTES, stage, (buffer, opened)).begin()
        return transfer

    def stage(
        self, move: Callable[[int, memoryview], Transfer], buffer: object, where: str, *, offset: int, write: bool
    ) -> Transfer:
        """Move *buffer*, memory of a GPU of this process, piece by piece through pinned memory of this host.

        Args:
            move: transfers host memory from or to a place in *buffer*'s counterpart.
        """
        local, num_bytes, _writable = _span_of(buffer)
        transfer = Transfer(self._engine, f"staged transfer of {num_bytes} bytes at {offset}, {where}")
        if not num_bytes:
            transfer.finish()
            return transfer
        try:
            cuda, device = device_at(local)
            StagedTransfer(cuda, device, local, num_bytes, move, write=write).begin(
                self._engine, self._copiers, transfer, where, buffer
            )
        except OSError as error:
            transfer.finish(MemoryAccessError(where, str(error)))
        return transfer

    def problem(self, why: str) -> str:
        """Why memory of GPUs is not to be staged, where *why* keeps it from moving directly; empty if it is.

        Warns once in this process.
        """
        if self._refuses:
            return f"{why}, and config key 'rdma.staged' refuses to move it through host memory"
        with self._lock:
            warn, self._warned = not self._warned, True
        if warn:
            _log.warning("memory of GPUs is moved through host memory, as %s; 'rdma.staged: refuse' forbids it", why)
        return ""


def _span_of(buffer: object) -> tuple[int, int, bool]:
    span = device_span(buffer)
    assert span is not None, "memory of a GPU"
    return span
