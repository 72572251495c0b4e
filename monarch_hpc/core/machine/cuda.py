"""NVIDIA's driver, as far as one-sided memory needs it: copies of GPU memory, and handles by which others open it.

The driver is called by its own library, so that neither torch nor a CUDA toolkit is needed. It knows from an address on
which GPU the memory lies. Each call makes that GPU's primary context current, which torch uses, too, and takes it away
again: threads of the program keep the GPU that they have chosen, and those without one stay without.
"""

from __future__ import annotations

import ctypes
import functools
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["HANDLE_BYTES", "Cuda", "PinnedMemory", "has_gpu_direct", "load_cuda"]

HANDLE_BYTES = 64
"""Size of a handle of GPU memory."""

_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream, which the program uses
_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts

_Address = ctypes.c_uint64


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * HANDLE_BYTES),)


class PinnedMemory:
    """Memory of this host that GPUs copy at full speed; freed with the last reference to *view*.

    Attributes:
        view: all of it.
        address: of its first byte.
    """

    def __init__(self, cuda: Cuda, address: int, num_bytes: int) -> None:
        self._cuda = cuda
        self.address = address
        memory = (ctypes.c_char * num_bytes).from_address(address)
        memory.__dict__["held"] = self
        self.view = memoryview(memory).cast("B")

    def __del__(self) -> None:
        self._cuda.free_pinned(self.address)


class Cuda:
    """The driver; for any thread.

    Its calls raise OSError with the driver's name of the error.
    """

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        self._lock = allocate_lock()
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._streams: dict[int, list[ctypes.c_void_p]] = {}  # those that nobody uses at the moment
        driver.cuIpcOpenMemHandle_v2.argtypes = (ctypes.c_void_p, _Handle, ctypes.c_uint)
        self._call("cuInit", ctypes.c_uint(0))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def device_of(self, address: int) -> int:
        """Number of the GPU that has the memory at *address*."""
        device = ctypes.c_int()
        self._call("cuPointerGetAttribute", ctypes.byref(device), ctypes.c_int(_DEVICE_ORDINAL), _Address(address))
        return device.value

    def _context_of(self, device: int) -> ctypes.c_void_p:
        with self._lock:
            context = self._contexts.get(device)
            if context is None:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
                self._contexts[device] = context
        return context

    def context_calls(self, device: int) -> tuple[int, int, int, int]:
        """The primary context of *device*, and the addresses of the functions that return, push and pop a thread's."""
        names = "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"
        get, push, pop = (ctypes.cast(getattr(self._driver, name), ctypes.c_void_p).value or 0 for name in names)
        return self._context_of(device).value or 0, get, push, pop

    @contextmanager
    def _on(self, device: int) -> Iterator[None]:
        """Make the primary context of *device* current for the block."""
        self._call("cuCtxPushCurrent_v2", self._context_of(device))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def copy(self, into: int, data: int, num_bytes: int, device: int) -> None:
        """Copy memory between GPUs and this host, by *device*; on return it is there, for all streams.

        It does not wait for kernels that are to write *data* or to read *into*: the caller has.
        """
        with self._on(device):
            stream = self._take_stream(device)
            try:
                self._call("cuMemcpyAsync", _Address(into), _Address(data), ctypes.c_size_t(num_bytes), stream)
            finally:
                self._call("cuStreamSynchronize", stream)
                with self._lock:
                    self._streams[device].append(stream)

    def wait_for(self, stream: int, device: int) -> None:
        """Return when all that was begun on a stream of *device* is done; 1 and 2 are its default streams."""
        with self._on(device):
            self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def _take_stream(self, device: int) -> ctypes.c_void_p:
        with self._lock:
            free = self._streams.setdefault(device, [])
            if free:
                return free.pop()
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        return stream

    def pin(self, num_bytes: int, device: int) -> PinnedMemory:
        """New memory of this host for copies from and to *device*."""
        address = ctypes.c_void_p()
        with self._on(device):
            self._call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(num_bytes), ctypes.c_uint(_PORTABLE))
        return PinnedMemory(self, address.value or 0, num_bytes)

    def free_pinned(self, address: int) -> None:
        """Free what `pin` has returned; without errors, as the driver may have ended before."""
        self._driver.cuMemFreeHost(ctypes.c_void_p(address))

    def share(self, address: int) -> tuple[bytes, int]:
        """A handle of the allocation with *address*, for processes of this host, and the place of *address* in it.

        Raises:
            OSError: it has none: memory of torch's expandable segments, and of pools.
        """
        base, size, handle = _Address(), ctypes.c_size_t(), _Handle()
        with self._on(self.device_of(address)):
            self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), _Address(address))
            self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES), address - base.value

    def open(self, handle: bytes, device: int) -> int:
        """Address, for *device* of this process, of the allocation of another process that has *handle*.

        A process opens an allocation once for each GPU.
        """
        address = _Address()
        with self._on(device):
            self._call(
                "cuIpcOpenMemHandle_v2",
                ctypes.byref(address),
                _Handle.from_buffer_copy(handle),
                ctypes.c_uint(_PEER_ACCESS),
            )
        return address.value

    def close(self, address: int, device: int) -> None:
        """Give back what `open` has returned."""
        with self._on(device):
            self._call("cuIpcCloseMemHandle", _Address(address))


@functools.cache
def load_cuda() -> Cuda | None:
    """The driver; None where there is none, or no GPU."""
    try:
        return Cuda(ctypes.CDLL("libcuda.so.1"))
    except (OSError, AttributeError):
        return None


@functools.cache
def has_gpu_direct() -> bool:
    """Whether RDMA adapters reach memory of NVIDIA's GPUs: by a module of their driver, or by the kernel's dma-buf."""
    if any(Path("/sys/module", module).exists() for module in ("nvidia_peermem", "nv_peer_mem")):
        return True
    try:
        return "Open Kernel Module" in Path("/proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return False
