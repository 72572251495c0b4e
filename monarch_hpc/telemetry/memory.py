"""Anonymous shared memory for a recorder, passed on by file descriptor."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from monarch_hpc.telemetry import layout

__all__ = ["disown_memory", "make_memory", "map_memory"]

_MAP_FIXED = 0x10


def make_memory(name: str) -> int:
    """Return a descriptor of memory for one recorder; it has no path, and is freed with its last reference.

    Raises:
        OSError: out of memory or descriptors.
    """
    fd = os.memfd_create(f"monarch-hpc {name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, layout.TOTAL_BYTES)  # sparse: a page is allocated at its first write
    except OSError:
        os.close(fd)
        raise
    return fd


def map_memory(fd: int) -> mmap.mmap:
    """Map the memory behind a descriptor of `make_memory`; the mapping does not keep a descriptor.

    Raises:
        OSError: out of memory, or *fd* is not valid.
    """
    try:
        return _map(fd)
    except OSError as error:
        raise OSError(error.errno, f"cannot map descriptor {fd}: {error.strerror}") from error


def _map(fd: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, layout.TOTAL_BYTES, trackfd=False)
    # Older versions of Python keep a descriptor for each file mapping: so map over an anonymous mapping.
    mapped = mmap.mmap(-1, layout.TOTAL_BYTES)
    _map_over(mapped, mmap.MAP_SHARED, fd)
    return mapped


def disown_memory(mapped: mmap.mmap) -> None:
    """In a forked child: replace the mapping by private memory, so that the child cannot write to the parent's."""
    _map_over(mapped, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


def _map_over(mapped: mmap.mmap, kind: int, fd: int) -> None:
    """Map *fd*, or anonymous memory, at the address of *mapped*."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    place = ctypes.CDLL(None, use_errno=True).mmap
    place.restype = ctypes.c_void_p
    place.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    if place(address, layout.TOTAL_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, kind | _MAP_FIXED, fd, 0) != address:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
