"""Memory for large messages that arrive: refused where there is too little, and in the container that is needed.

A value that is received into a `bytes` of its own need not be copied, which costs as much as receiving it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

from monarch_hpc.core.machine.memory import memory_left
from monarch_hpc.core.text.units import format_size
from monarch_hpc.transport.spares import Spares
from monarch_hpc.wire.frames import Buffer, Container, FrameHead, RefusedBuffers

__all__ = ["HUGE_BYTES", "SPARES", "admit", "allocate", "allocate_all"]

HUGE_BYTES = 2**21
"""From this size on fresh memory is mapped in huge pages: faulting in ordinary ones costs more than decrypting."""

_CHECKED_BYTES = 64 << 20
"""So much arrives between two looks at the memory that is left: a look takes up to 1 ms, and this much 10 ms."""

_RESERVE_BYTES = 64 << 20
"""Memory that a message leaves free, for its value to be made and used."""

_WRITABLE = 0x200  # PyBUF_WRITE
_BYTES_HEAD = bytes.__basicsize__ - 1  # its last byte is the one behind the text
_HASH = _BYTES_HEAD - ctypes.sizeof(ctypes.c_ssize_t)  # kept in front of the text; -1 if unknown

_api = ctypes.pythonapi
_new_bytes: Any = _api["PyBytes_FromStringAndSize"]
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_new_bytearray: Any = _api["PyByteArray_FromStringAndSize"]
_new_bytearray.restype, _new_bytearray.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t)
_text_of: Any = _api["PyByteArray_AsString"]
_text_of.restype, _text_of.argtypes = ctypes.c_void_p, (ctypes.py_object,)
_view_of: Any = _api["PyMemoryView_FromMemory"]
_view_of.restype, _view_of.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_advise: Any = ctypes.CDLL(None).madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


SPARES = Spares()
"""The large objects of this process that can be used again."""


class _Unchecked:
    """Counts what arrived since the last look at the memory that is left; on the driver only."""

    num_bytes = 0


def admit(num_bytes: int) -> None:
    """Check that a message of *num_bytes* can be held.

    Memory counts as used once data is in it, so several messages that arrive at the same time may exceed it together.

    Raises:
        MemoryError: it cannot be held; the text says what was missing.
    """
    _Unchecked.num_bytes += num_bytes
    if _Unchecked.num_bytes < _CHECKED_BYTES:
        return
    _Unchecked.num_bytes = 0
    left = memory_left()
    if left is not None and num_bytes + _RESERVE_BYTES > left and SPARES.clear():
        left = memory_left()
    if left is not None and num_bytes + _RESERVE_BYTES > left:
        raise MemoryError(
            f"a message of {format_size(num_bytes)} came to a process with {format_size(left)} of memory left; "
            "send it in smaller portions, or give the process more memory"
        )


def allocate(num_bytes: int, container: Container) -> tuple[Buffer, memoryview]:
    """Return uninitialised memory in a container, and a writable view of it, which must not outlive the container.

    Raises:
        MemoryError: there is none.
    """
    try:
        return _allocate(num_bytes, container)
    except MemoryError:
        if not SPARES.clear():
            raise
    return _allocate(num_bytes, container)


def _allocate(num_bytes: int, container: Container) -> tuple[Buffer, memoryview]:
    try:
        if container is Container.BYTES and num_bytes > 1:  # shorter ones are shared
            made = _large(bytes, num_bytes) or _new_bytes(None, num_bytes)
            ctypes.c_ssize_t.from_address(id(made) + _HASH).value = -1
            return made, _view_of(id(made) + _BYTES_HEAD, num_bytes, _WRITABLE)
        if container is Container.BYTEARRAY:
            array = _large(bytearray, num_bytes) or _new_bytearray(None, num_bytes)
            return array, memoryview(array)
        if num_bytes < HUGE_BYTES:
            view = memoryview(bytearray(num_bytes))
            return view, view
        view = memoryview(_map(-(-num_bytes // HUGE_BYTES) * HUGE_BYTES))[:num_bytes]
    except (MemoryError, OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a message of {format_size(num_bytes)}") from error
    return view, view


def allocate_all(head: FrameHead, num_bytes: int) -> tuple[Sequence[Buffer], list[memoryview]]:
    """Return the buffers of a frame of *num_bytes* and writable views of them; none of these if they are refused."""
    try:
        admit(num_bytes)
        made = [allocate(*one) for one in zip(head.buffer_bytes, head.containers, strict=True)]
    except MemoryError as error:
        return RefusedBuffers(head.buffer_bytes, str(error)), []
    return [buffer for buffer, _ in made], [view for _, view in made]


def _map(num_bytes: int) -> mmap.mmap:
    """Return mapped memory for `allocate`, which may be a spare one."""
    spare = SPARES.take(mmap.mmap, num_bytes)
    if spare is not None:
        return spare
    made = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        made.madvise(mmap.MADV_HUGEPAGE)
    SPARES.keep(made)
    return made


def _large(kind: type[bytes | bytearray], num_bytes: int) -> Any:
    """Return an object for `allocate`, which may be a spare one; None for a small one."""
    if num_bytes < HUGE_BYTES:
        return None
    spare = SPARES.take(kind, num_bytes)
    if spare is not None:
        return spare
    made = (_new_bytes if kind is bytes else _new_bytearray)(None, num_bytes)
    address = id(made) + _BYTES_HEAD if kind is bytes else _text_of(made)
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + num_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    _advise(first, end - first, mmap.MADV_HUGEPAGE)  # fails on a kernel without them
    SPARES.keep(made)
    return made
