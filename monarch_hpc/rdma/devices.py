"""Arrays in memory of GPUs, by `__cuda_array_interface__`, and the wait for what GPUs still do to such memory."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.cuda import load_cuda
from monarch_hpc.transport.memory.key import device_span

__all__ = ["DeviceArray", "DeviceBytes", "describe", "settle"]

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}


class DeviceBytes:
    """Bytes of an array of any library, which they hold.

    Args:
        stream: the one on which the array is written, as its library names it; None if that has synchronized.
    """

    def __init__(self, held: object, address: int, num_bytes: int, stream: int | None, *, writable: bool) -> None:
        self._held = held
        self._address = address
        self._num_bytes = num_bytes
        self._stream = stream
        self._writable = writable

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self._address, not self._writable
        return {"shape": (self._num_bytes,), "typestr": "|u1", "data": data, "version": 3, "stream": self._stream}

    def __getitem__(self, part: slice) -> DeviceBytes:
        first, last, _step = part.indices(self._num_bytes)
        size = max(last - first, 0)
        return DeviceBytes(self._held, self._address + first, size, self._stream, writable=self._writable)

    def settle(self) -> None:
        """Wait for its stream."""
        cuda = load_cuda()
        if cuda is not None and self._stream is not None:
            cuda.wait_for(self._stream, cuda.device_of(self._address))


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in memory of a GPU; the attributes are those of `rdma.local.Local`."""

    buffer: DeviceBytes
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    writable: bool


def describe(what: str, data: Any) -> DeviceArray | None:
    """Describe an array in memory of a GPU; None for other objects.

    Args:
        what: names it in errors.

    Raises:
        TypeError: its elements are not plain, or there is no driver for its memory.
        ValueError: it is not contiguous.
    """
    span = device_span(data)
    if span is None:
        return None
    address, num_bytes, writable = span
    interface = data.__cuda_array_interface__
    kind, item = interface["typestr"][1], int(interface["typestr"][2:])
    dtype = "bool" if kind == "b" else f"{_KINDS.get(kind, '')}{8 * item}"
    if dtype[0].isdigit() or interface["typestr"][0] == ">":
        raise TypeError(f"{what} has elements of {interface['typestr']}: pass a view of bytes, of uint8")
    cuda = load_cuda()
    if cuda is None:
        raise TypeError(f"{what} lies on a GPU, for which this process has no driver: libcuda.so.1 is not found")
    device = f"cuda:{cuda.device_of(address)}" if num_bytes else "cuda"
    buffer = DeviceBytes(data, address, num_bytes, interface.get("stream"), writable=writable)
    shape = tuple(interface["shape"])
    assert math.prod(shape) * item == num_bytes, "it is contiguous"
    return DeviceArray(buffer, num_bytes, shape, dtype, device, writable)


def settle(buffer: object) -> None:
    """Wait for all that the program has asked a GPU to do to *buffer*, before a transfer reads or writes it."""
    if isinstance(buffer, memoryview):
        return
    if isinstance(buffer, DeviceBytes):
        buffer.settle()
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(buffer, torch.Tensor) and buffer.device.type != "cpu":
        importlib.import_module("monarch_hpc.rdma.tensors").wait_for_stream(buffer)
