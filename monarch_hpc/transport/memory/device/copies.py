"""Copies of GPU memory by this process: of its own, and of other processes of its host, which it opens."""

from __future__ import annotations

import contextlib
from _thread import allocate_lock
from collections.abc import Callable
from weakref import WeakValueDictionary

from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.machine.cuda import Cuda, load_cuda
from monarch_hpc.transport.memory.key import device_span, host_view

__all__ = ["MISSING", "GpuCopy", "OpenedAllocation", "copy_between", "device_at", "open_allocation", "place_of"]

MISSING = "this process has no driver for memory of NVIDIA's GPUs"
"""Why it cannot be copied here."""


class GpuCopy:
    """One call of *work*, on a thread that copies; then *done* gets its error; see `transport.engine.copiers.Task`."""

    def __init__(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self._work = work
        self._done = done
        self._lock = allocate_lock()

    def take(self) -> int:
        """See `transport.engine.copiers.Task`."""
        return 0 if self._lock.acquire(blocking=False) else -1

    def do(self, _step: int) -> None:
        """See `transport.engine.copiers.Task`."""
        error = None
        try:
            self._work()
        except OSError as failure:
            error = failure
        self._done(error)


class OpenedAllocation:
    """GPU memory of another process, for one GPU of this one; closed with the last reference.

    Attributes:
        address: of its first byte, here.
    """

    def __init__(self, cuda: Cuda, handle: bytes, device: int) -> None:
        self._cuda = cuda
        self._device = device
        self.address = cuda.open(handle, device)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with contextlib.suppress(OSError):  # its owner is gone, and the driver noticed first
                self._cuda.close(self.address, self._device)


_opened: WeakValueDictionary[tuple[bytes, int], OpenedAllocation] = WeakValueDictionary()
_lock = allocate_lock()


def open_allocation(handle: bytes, device: int) -> OpenedAllocation:
    """Open the allocation with *handle* for a GPU, unless that is open.

    Raises:
        OSError: the driver refuses it.
    """
    cuda = load_cuda()
    if cuda is None:
        raise OSError(MISSING)
    with _lock:
        found = _opened.get((handle, device))
        if found is None:
            found = _opened[handle, device] = OpenedAllocation(cuda, handle, device)
        return found


def place_of(buffer: object, *, writable: bool) -> tuple[int, int, bool]:
    """Address and number of bytes of a contiguous buffer, and whether it is memory of a GPU.

    Raises:
        TypeError, ValueError: see `host_view` and `device_span`.
    """
    span = device_span(buffer)
    if span is None:
        view = host_view(buffer, writable=writable)
        return (address_of(view) if view.nbytes else 0), view.nbytes, False
    address, num_bytes, may_write = span
    if writable and not may_write:
        raise ValueError(f"the device's memory cannot be written to: {type(buffer).__name__}")
    return address, num_bytes, True


def device_at(address: int) -> tuple[Cuda, int]:
    """The driver, and the number of the GPU that has the memory at *address*.

    Raises:
        OSError: there is no driver, or it knows of no such memory.
    """
    cuda = load_cuda()
    if cuda is None:
        raise OSError(MISSING)
    return cuda, cuda.device_of(address)


def copy_between(into: int, data: int, num_bytes: int, device_address: int) -> None:
    """Copy memory of this process, by the GPU that has the memory at *device_address*.

    Raises:
        OSError: the driver refuses it.
    """
    cuda, device = device_at(device_address)
    cuda.copy(into, data, num_bytes, device)
