"""Memory of the first NVIDIA GPU, through the driver alone, so that tests of the binding do not need torch."""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["MISSING", "DeviceMemory"]

MISSING = "" if Path("/dev/nvidiactl").exists() else "needs an NVIDIA GPU"
"""Why there is no GPU memory; empty if there is."""


class DeviceMemory:
    """Bytes on the GPU, exposed as a device array for `_ucx.Span`; they are kept until the process ends.

    Args:
        content: the initial bytes.
    """

    def __init__(self, content: bytes) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), 0))
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self._check(self._driver.cuCtxSetCurrent(context))
        self._address = ctypes.c_uint64()
        self._num_bytes = len(content)
        self._check(self._driver.cuMemAlloc_v2(ctypes.byref(self._address), ctypes.c_size_t(len(content))))
        self._check(self._driver.cuMemcpyHtoD_v2(self._address, content, ctypes.c_size_t(len(content))))

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"shape": (self._num_bytes,), "typestr": "|u1", "data": (self._address.value, False), "version": 3}

    def read(self) -> bytes:
        """Return the current bytes."""
        content = ctypes.create_string_buffer(self._num_bytes)
        self._check(self._driver.cuCtxSynchronize())
        self._check(self._driver.cuMemcpyDtoH_v2(content, self._address, ctypes.c_size_t(self._num_bytes)))
        return content.raw

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"the CUDA driver answers {status}")
