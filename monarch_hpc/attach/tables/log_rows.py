"""Reads the output of procs by line, from the files in the allocation's directory."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.allocation.log_index import read_index
from monarch_hpc.wire.tables.overview import LogRow

__all__ = ["read_log_rows"]

_FILE = re.compile(r"r(\d+)\.(.+)\.log")

_TAIL_BYTES = 1 << 20
"""The end of each file that is read: of more procs than a few, one wants the last lines."""

_MAX_BYTES = 64 << 20
"""Limit on all of them; with more procs, less of each is read."""


def read_log_rows(directory: Path) -> list[LogRow]:
    """Return the lines at the end of the output of all procs of an allocation, the latest first."""
    files = sorted((path for path in directory.glob("runs/*/r*.log") if _FILE.fullmatch(path.name)), key=str)
    tail_bytes = min(_TAIL_BYTES, _MAX_BYTES // max(len(files), 1))
    rows = [row for path in files for row in _read(directory, path, tail_bytes)]
    return sorted(rows, key=lambda row: -row.t)


def _read(directory: Path, path: Path, tail_bytes: int) -> Iterator[LogRow]:
    match = _FILE.fullmatch(path.name)
    assert match is not None, "the caller has chosen them"
    try:
        with open(path, "rb") as file:
            start = max(os.fstat(file.fileno()).st_size - tail_bytes, 0)
            file.seek(start)
            data = file.read(tail_bytes)
    except OSError:
        return  # removed at this moment
    index = read_index(path)
    offsets = [offset for _, offset in index]
    if start:  # in the middle of a line
        cut = data.find(b"\n") + 1
        data, start = data[cut:], start + cut
    for line in data.splitlines(keepends=True):
        place = bisect_right(offsets, start) - 1
        t = index[place][0] if place >= 0 else 0.0
        text = line.rstrip(b"\r\n").decode(errors="replace")
        yield LogRow(path.parent.name, int(match[1]), match[2], t, text, str(path.relative_to(directory)), start)
        start += len(line)
