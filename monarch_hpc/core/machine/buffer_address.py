"""The addresses of buffers, also of those that are read-only, for which ctypes has no function, and the way back."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["address_of", "lend"]


class _Buffer(ctypes.Structure):
    """Python's `Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get: Any = ctypes.pythonapi["PyObject_GetBuffer"]
_get.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release: Any = ctypes.pythonapi["PyBuffer_Release"]
_release.argtypes, _release.restype = (ctypes.POINTER(_Buffer),), None


def address_of(buffer: object) -> int:
    """The address of the first byte of *buffer*, which must have the buffer protocol and be contiguous."""
    view = _Buffer()
    _get(buffer, ctypes.byref(view), 0)
    address = view.buf or 0
    _release(ctypes.byref(view))
    return address


def lend(address: int, num_bytes: int, held: object) -> memoryview:
    """The bytes at *address*, which *held* keeps; the view keeps *held*."""
    memory = (ctypes.c_char * num_bytes).from_address(address)
    memory.__dict__["held"] = held
    return memoryview(memory).cast("B")
