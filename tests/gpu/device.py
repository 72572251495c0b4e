"""Memory of a GPU, made by the driver alone: NVIDIA's, or the one of `driver.c`, which needs no GPU."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["DeviceMemory", "build_driver"]


def build_driver(folder: Path) -> str:
    """Compile `driver.c`; return the folder with the library, for LD_LIBRARY_PATH."""
    library = folder / "libcuda.so.1"
    argv = ["cc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([*argv, str(Path(__file__).with_name("driver.c")), "-lpthread"], check=True)
    return str(folder)


class DeviceMemory:
    """Bytes on a GPU; they are kept until the process ends.

    Args:
        content: the initial bytes.
        pooled: as memory of torch's expandable segments, which has no handle; only of the driver without a GPU.
    """

    def __init__(self, content: bytes, device: int = 0, *, pooled: bool = False) -> None:
        driver = self._driver = ctypes.CDLL("libcuda.so.1")
        self._context, self._address = ctypes.c_void_p(), ctypes.c_uint64()
        self._stream: int | None = None
        self._check(driver.cuInit(0))
        self._check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        self._num_bytes = len(content)
        allocate = driver.cuStubAllocPooled if pooled else driver.cuMemAlloc_v2
        self._call(allocate, ctypes.byref(self._address), ctypes.c_size_t(len(content)))
        self._call(driver.cuMemcpyHtoD_v2, self._address, content, ctypes.c_size_t(len(content)))

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return self.part(0, self._num_bytes).__cuda_array_interface__

    def part(self, offset: int, num_bytes: int) -> Part:
        """Some of the bytes, as an array of its own."""
        return Part(self, self._address.value + offset, num_bytes, self._stream)

    def fill_later(self, value: int) -> None:
        """Let a stream write *value* to all bytes; its arrays name the stream from here on."""
        self._stream = 1  # the default one
        self._call(self._driver.cuMemsetD8Async, self._address, value, ctypes.c_size_t(self._num_bytes), None)

    def read(self) -> bytes:
        """The current bytes."""
        content = ctypes.create_string_buffer(self._num_bytes)
        self._call(self._driver.cuMemcpyDtoH_v2, content, self._address, ctypes.c_size_t(self._num_bytes))
        return content.raw

    def _call(self, function: Any, *arguments: Any) -> None:
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            self._check(function(*arguments))
        finally:
            self._check(self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())))

    def _check(self, status: int) -> None:
        if status:
            raise OSError(f"the CUDA driver answers {status}")


class Part:
    """An array of some bytes, which holds them all."""

    def __init__(self, whole: DeviceMemory, address: int, num_bytes: int, stream: int | None) -> None:
        self._whole = whole
        self.__cuda_array_interface__: dict[str, object] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "stream": stream,
        }
