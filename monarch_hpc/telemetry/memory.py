"""The memory of one recorder: shared with whoever holds a descriptor of it, and without a name."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from monarch_hpc.telemetry import layout

__all__ = ["disown_memory", "make_memory", "map_memory"]

_MAP_FIXED = 0x10


def make_memory(name: str) -> int:
    """Return a descriptor of memory for one recorder; no path leads to it, and it goes with its last holder.

    Raises:
        OSError: there is no memory or no descriptor left.
    """
    fd = os.memfd_create(f"monarch-hpc {name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, layout.TOTAL_BYTES)  # a page takes memory once it is written to
    except OSError:
        os.close(fd)
        raise
    return fd


def map_memory(fd: int) -> mmap.mmap:
    """Map what `make_memory` gave; the mapping needs no descriptor.

    Raises:
        OSError: there is no memory left, or *fd* is none.
    """
    try:
        return _map(fd)
    except OSError as error:
        raise OSError(error.errno, f"cannot map descriptor {fd}: {error.strerror}") from error


def _map(fd: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, layout.TOTAL_BYTES, trackfd=False)
    # Before that Python keeps a descriptor of its own for each mapping: so the place of one without any is used.
    mapped = mmap.mmap(-1, layout.TOTAL_BYTES)
    _place(mapped, mmap.MAP_SHARED, fd)
    return mapped


def disown_memory(mapped: mmap.mmap) -> None:
    """In a forked child: let what is still written there be written nowhere; the memory is the parent's."""
    _place(mapped, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _place(mapped: mmap.mmap, kind: int, fd: int) -> None:
    """Map something else at the place of *mapped*."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    place = ctypes.CDLL(None, use_errno=True).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    if place(address, layout.TOTAL_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, kind | _MAP_FIXED, fd, 0) != address:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
