"""A program that lets UCX see memory of a GPU, run by a test in a process of its own: ``python -m tests.gpu.contexts``.

Its argument is the libucp to load. It prints ``passed``, or fails.
"""

from __future__ import annotations

import ctypes
import select
import sys
from types import SimpleNamespace

import pytest

from monarch_hpc.testing import wait_until
from monarch_hpc.transport.ucx import _ucx
from monarch_hpc.transport.ucx.gpu import make_span
from tests.gpu.device import DeviceMemory


def main() -> None:
    """Count the threads that have a context, before memory of a GPU is seen, and after."""
    driver = ctypes.CDLL("libcuda.so.1")
    memory = DeviceMemory(bytes(4096))
    _ucx.load(sys.argv[1])
    worker = _ucx.Worker(1 << 20, lambda _size, _container: (b"", memoryview(b"")))
    sockets = select.epoll()

    def poll() -> int:
        worker.poll(sockets.fileno(), 0.0, 0.0)
        num: int = driver.cuStubNumHolders()
        return num

    assert poll() == 0
    assert make_span(bytearray(10), True).num_bytes == 10 and poll() == 0
    whole = memory.__cuda_array_interface__
    rows = SimpleNamespace(__cuda_array_interface__={**whole, "shape": (64, 64), "strides": (64, 1)})
    span = make_span(rows, True)
    assert (span.num_bytes, span.device) == (4096, True)
    apart = SimpleNamespace(__cuda_array_interface__={**whole, "shape": (32, 64), "strides": (128, 1)})
    with pytest.raises(BufferError, match="not contiguous"):
        make_span(apart, True)
    wait_until("UCX's thread has a context, and this one has none", poll, accept=lambda num: num == 1)
    worker.close()
    assert driver.cuStubNumHolders() <= 1  # a thread that has ended has none to give back
    print("passed")


if __name__ == "__main__":
    main()
