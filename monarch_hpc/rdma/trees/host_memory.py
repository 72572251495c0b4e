"""Bytes of this process by their address, and new memory that is shared by a tree's arrays."""

from __future__ import annotations

import ctypes
import importlib
import mmap
from typing import Any

from monarch_hpc.rdma.trees.leaf import Leaf

__all__ = ["bytes_at", "bytes_of_leaves", "copy_bytes", "new_memory"]

_WRITABLE = 0x200  # PyBUF_WRITE
_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_view_of.restype = ctypes.py_object


def bytes_at(leaf: Leaf, address: int, num_bytes: int) -> Any:
    """The bytes at *address*, where elements of *leaf* are; to be used only while something holds the leaf."""
    if leaf.device != "cpu":
        return importlib.import_module("monarch_hpc.rdma.trees.tensors").device_bytes(leaf.data, address, num_bytes)
    return _view_of(address, num_bytes, _WRITABLE)


def bytes_of_leaves(leaves: list[Leaf], address: int, num_bytes: int) -> Any:
    """The bytes at *address*, which belong to *leaves*, and hold them."""
    if leaves[0].device != "cpu":
        return bytes_at(leaves[0], address, num_bytes)
    memory = (ctypes.c_char * num_bytes).from_address(address)
    memory.__dict__["held"] = [leaf.data for leaf in leaves]
    return memoryview(memory).cast("B")


def copy_bytes(memory: memoryview, start: int, address: int, num_bytes: int) -> None:
    """Copy the bytes at *address* to *start* in *memory*, while other threads run."""
    ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(memory, start)), address, num_bytes)


def new_memory(num_bytes: int) -> memoryview:
    """New memory of this host, of zeros, which costs nothing before it is written."""
    return memoryview(mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
