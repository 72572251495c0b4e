"""An index beside each log file of a proc: when the file had which size, so that recent output is found without times.

An entry is 16 bytes, little-endian: u64 Unix time in microseconds, u64 offset. What follows the offset was written at
that time or later. The log file itself stays as the proc wrote it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

__all__ = ["append_entry", "index_of", "offset_since", "read_index"]

_ENTRY = struct.Struct("<QQ")
_SUFFIX = ".index"


def index_of(path: Path) -> Path:
    """The index of a log file."""
    return path.with_name(path.name + _SUFFIX)


def append_entry(path: Path, time_s: float, offset: int) -> None:
    """Note that the log file at *path* had *offset* bytes at *time_s*, seconds of Unix time.

    Raises:
        OSError: the index cannot be written.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(index_of(path), flags, 0o600)
    try:
        torn = os.fstat(descriptor).st_size % _ENTRY.size
        if torn:  # a full disk, or a kill in the middle
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - torn)
        os.write(descriptor, _ENTRY.pack(max(int(time_s * 1e6), 0), offset))
    finally:
        os.close(descriptor)


def read_index(path: Path) -> list[tuple[float, int]]:
    """Return the entries of the index of a log file: Unix time, and offset; none without an index."""
    try:
        with open(index_of(path), "rb") as file:
            entries = file.read()
    except FileNotFoundError:
        return []
    whole = entries[: len(entries) // _ENTRY.size * _ENTRY.size]
    return [(time_us / 1e6, offset) for time_us, offset in _ENTRY.iter_unpack(whole)]


def offset_since(path: Path, since_s: float) -> int | None:
    """Where the output of *since_s* and later begins in a log file, or a little before; None without an entry for it.

    Entries are searched by halves: clocks that were set back may give too much output, never an error.
    """
    try:
        with open(index_of(path), "rb") as file:
            entries = file.read()
    except FileNotFoundError:
        return None
    since_us, found = int(since_s * 1e6), None
    low, high = 0, len(entries) // _ENTRY.size
    while low < high:
        middle = (low + high) // 2
        time_us, offset = _ENTRY.unpack_from(entries, middle * _ENTRY.size)
        if time_us <= since_us:
            found, low = int(offset), middle + 1
        else:
            high = middle
    return found
