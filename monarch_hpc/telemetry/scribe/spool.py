"""Chunks that are not in a part yet, in a file without a name, which the agent keeps: a next helper finds them."""

from __future__ import annotations

import json
import os

from monarch_hpc.telemetry.kept.chunks import BEGIN, NO_PROCESS, RECORDS, Heading, parse, render
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace

__all__ = ["Cursors", "Spool"]

Cursors = dict[str, int]
"""The number of the last record that was read, by where it was read."""


class Spool:
    """Chunks that are to become the next part.

    Args:
        fd: its file, which may hold the chunks of an earlier helper; it stays the caller's.
        first_number: number of the part, if the file is empty.

    Attributes:
        number: that of the next part.
        num_bytes: size of the chunks.
        has_records: whether they say more than where they begin.
    """

    def __init__(self, fd: int, first_number: int) -> None:
        self._fd = fd
        self.number = first_number
        self.num_bytes = 0
        self.has_records = False
        self._cursors: dict[str, Cursors] = {}
        for heading, contents, end in parse(os.pread(fd, os.fstat(fd).st_size, 0)):
            self.num_bytes = end
            self._note(heading, contents)
        os.ftruncate(fd, self.num_bytes)
        if not self.num_bytes:
            self._begin()

    def cursors(self, place: ProcPlace) -> Cursors:
        """How far the records of a process have been read; nothing if none were."""
        return dict(self._cursors.get(_key(place), {}))

    def forget(self, place: ProcPlace) -> None:
        """Handle the end of a process, all of whose records have been read."""
        self._cursors.pop(_key(place), None)

    def add(self, heading: Heading, contents: bytes) -> bool:
        """Add a chunk; False if the disk has no room for it, and nothing is added."""
        if not self._write(render(heading, contents)):
            return False
        self._note(heading, contents)
        return True

    def read(self) -> bytes:
        """Return all chunks."""
        return os.pread(self._fd, self.num_bytes, 0)

    def next_part(self) -> None:
        """Begin the next part: these chunks are in a file, or given up."""
        self.number += 1
        os.ftruncate(self._fd, 0)
        self.num_bytes = 0
        self.has_records = False
        self._begin()

    def _begin(self) -> None:
        contents = json.dumps(self._cursors).encode()
        self._write(render(Heading(BEGIN, len(contents), *NO_PROCESS, "", self.number), contents))

    def _note(self, heading: Heading, contents: bytes) -> None:
        if heading.what == BEGIN:
            self.number, self._cursors = heading.num, json.loads(contents)
            return
        self.has_records = True
        if heading.what in RECORDS and contents:
            known = self._cursors.setdefault(_key(ProcPlace(heading.run, heading.mesh, heading.rank, heading.pid)), {})
            # Records of calls that were sent come in the order of their answers.
            last = max(memoryview(contents).cast("Q")[7::8].tolist())
            known[heading.what] = max(last, known.get(heading.what, 0))

    def _write(self, chunk: bytes) -> bool:
        try:
            written = os.pwrite(self._fd, chunk, self.num_bytes)
        except OSError:
            written = 0
        if written < len(chunk):
            os.ftruncate(self._fd, self.num_bytes)
            return False
        self.num_bytes += len(chunk)
        return True


def _key(place: ProcPlace) -> str:
    return f"{place.run} {place.mesh} {place.rank} {place.pid}"
