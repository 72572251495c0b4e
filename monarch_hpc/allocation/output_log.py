"""The output of a program in files of its run's directory: both streams in order of arrival, found by offset and time.

Each segment is a file that people can read, ``program.<offset>.log``, named by the offset of its first byte in the
whole output, and an index of it, ``program.<offset>.index``. A segment that has reached its limit is followed by
another, and the one before it is removed: at most two are there. Bytes that could not be written leave a gap between.

The index has one record of 16 bytes for each piece of one stream: when it came (milliseconds since the epoch), the
stream, and the number of bytes. A piece is in the file before it is in the index, so that readers never see half of
one; and both only grow.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.files import NEW_FILE, private_dir

__all__ = ["ERR", "OUT", "STREAMS", "OutputLog", "OutputReader", "Piece", "log_paths"]

OUT, ERR, _NOTE = 0, 1, 2
STREAMS = {OUT: "out", ERR: "err"}
"""The streams by number; pieces of another number are notes to people who read the file, and no output."""

_RECORD = struct.Struct("<QII")
_BLOCK_RECORDS = 4096
_MAX_TRIES = 5
"""A reader looks again for segments that were removed while it opened them: each took as long to fill as its limit."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive output of one stream, and its *offset* in the output of both."""

    offset: int
    stream: int
    data: bytes
    time_s: float


@dataclass(slots=True)
class _Segment:
    """The segment that is written to: its files, and their sizes."""

    log: int
    index: int
    log_bytes: int = 0
    index_bytes: int = 0


class OutputLog:
    """Writes the output of one program; for one thread.

    Args:
        folder: the run's directory; made if it is missing.
        max_bytes: limit on one segment with its index; 0 for none.

    Attributes:
        end: number of bytes so far, including those that were lost.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._segment: _Segment | None = None
        self._bases: list[int] = []
        self.end = 0

    def append(self, stream: int, data: bytes, now_s: float) -> None:
        """Write *data*. If that fails, the bytes are lost, and later ones are written to a fresh segment.

        Raises:
            OSError, ConfigError: the file system, or the folder, refuses.
        """
        end, self.end = self.end, self.end + len(data)
        try:
            segment = self._segment
            if segment is not None and self._max_bytes and self._size(segment) + len(data) > self._max_bytes:
                self._close()
            segment = self._segment or self._open(end)
            self._write(segment, stream, data, int(now_s * 1000))
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Close the files."""
        self._close()

    @staticmethod
    def _size(segment: _Segment) -> int:
        return segment.log_bytes + segment.index_bytes + _RECORD.size

    def _open(self, base: int) -> _Segment:
        private_dir(self._folder)
        log, index = log_paths(self._folder, base)
        first = os.open(log, os.O_RDWR | NEW_FILE, 0o600)
        try:
            segment = self._segment = _Segment(first, os.open(index, os.O_RDWR | NEW_FILE, 0o600))
        except OSError:
            os.close(first)
            log.unlink()
            raise
        self._bases.append(base)
        while len(self._bases) > 2:
            for path in log_paths(self._folder, self._bases.pop(0)):
                path.unlink(missing_ok=True)
        if base:
            lost = f"; {self._bases[0]} bytes before that were discarded" if self._bases[0] else ""
            earlier = log_paths(self._folder, self._bases[0])[0].name
            note = f"[monarch-hpc: earlier output is in {earlier}{lost} (config key 'logs.max_file_bytes')]\n"
            self._write(segment, _NOTE, note.encode(), 0)
        return segment

    @staticmethod
    def _write(segment: _Segment, stream: int, data: bytes, now_ms: int) -> None:
        _write_all(segment.log, data, segment.log_bytes)
        segment.log_bytes += len(data)
        _write_all(segment.index, _RECORD.pack(now_ms, stream, len(data)), segment.index_bytes)
        segment.index_bytes += _RECORD.size

    def _close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            os.close(segment.log)
            os.close(segment.index)


@dataclass(slots=True)
class _Place:
    """A record of the index: its segment, its position there, and its bytes' positions in the file and the output."""

    base: int
    record: int = 0
    at: int = 0
    offset: int = 0


class OutputReader:
    """Reads the output of one program, also while it is written; for one thread.

    It remembers where it was, so that reading on does not search the index from its begin.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = _Place(-1)

    def read(self, offset: int, max_bytes: int, since_s: float = 0.0) -> list[Piece]:
        """Return output from *offset* on, at most *max_bytes*; nothing if there is none yet.

        Output that was discarded is left out: see `Piece.offset`.

        Args:
            since_s: leave out pieces that came before this time, in seconds since the epoch.

        Raises:
            OSError: the files cannot be read.
        """
        for _ in range(_MAX_TRIES):
            try:
                return self._read(offset, max_bytes, int(since_s * 1000))
            except FileNotFoundError:  # a segment was removed since it was listed
                self._place = _Place(-1)
        return []

    def end(self) -> int:
        """Return the number of bytes of output so far."""
        for _ in range(_MAX_TRIES):
            bases = _bases(self._folder)
            if not bases:
                return 0
            try:
                with open(log_paths(self._folder, bases[-1])[1], "rb", buffering=0) as index:
                    sizes = (size for _, stream, size in _records(index.fileno(), 0) if stream in STREAMS)
                    return bases[-1] + sum(sizes)
            except FileNotFoundError:
                continue
        return 0

    def _read(self, offset: int, max_bytes: int, since_ms: int) -> list[Piece]:
        bases = _bases(self._folder)
        older = [base for base in bases if base <= offset]
        for base in [*older[-1:], *bases[len(older) :]]:
            if self._place.base != base or self._place.offset > offset:
                self._place = _Place(base, offset=base)
            pieces = self._read_segment(max(offset, base), max_bytes, since_ms)
            if pieces:
                return pieces
        return []

    def _read_segment(self, offset: int, max_bytes: int, since_ms: int) -> list[Piece]:
        place, pieces = self._place, []
        log_path, index_path = log_paths(self._folder, place.base)
        with open(index_path, "rb", buffering=0) as index, open(log_path, "rb", buffering=0) as log:
            for time_ms, stream, num_bytes in _records(index.fileno(), place.record):
                if stream in STREAMS and place.offset + num_bytes > offset and time_ms >= since_ms:
                    skipped = max(0, offset - place.offset)
                    data = os.pread(log.fileno(), min(num_bytes - skipped, max_bytes), place.at + skipped)
                    pieces.append(Piece(place.offset + skipped, stream, data, time_ms / 1000))
                    max_bytes -= len(data)
                    # Not passed by: the rest of it may be wanted next.
                    if max_bytes <= 0:
                        break
                place.record += 1
                place.at += num_bytes
                place.offset += num_bytes if stream in STREAMS else 0
        return pieces


def log_paths(folder: Path, base: int) -> tuple[Path, Path]:
    """The file and the index of the segment whose first byte has offset *base*."""
    return folder / f"program.{base}.log", folder / f"program.{base}.index"


def _bases(folder: Path) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            kind, _, rest = name.partition(".")
            base, _, suffix = rest.partition(".")
            if kind == "program" and suffix == "index" and base.isdecimal():
                found.append(int(base))
    return sorted(found)


def _records(index: int, record: int) -> Iterator[tuple[int, int, int]]:
    while data := os.pread(index, _BLOCK_RECORDS * _RECORD.size, record * _RECORD.size):
        whole = len(data) // _RECORD.size
        yield from _RECORD.iter_unpack(data[: whole * _RECORD.size])
        record += whole
        if whole < _BLOCK_RECORDS:
            return


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
