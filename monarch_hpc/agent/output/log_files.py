"""The log files of a host's procs, written by their own thread: a stalled file system must not stall the agent."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.allocation.log_index import append_entry, index_of
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.storage.files import NEW_FILE, private_dir

__all__ = ["OLD", "LogFiles"]

OLD = ".old"
"""Suffix of the rotated file, which holds the output that precedes the current file."""

_PENDING_BYTES = 8 << 20
"""Limit on data queued for the file system, for all procs of a host."""

_PACE_S = 0.05
"""Interval between two rounds of writing. Each round opens its files, so that other hosts see the output (NFS shows it
when a file is closed), and opening costs the metadata server of a parallel file system more than writing."""

_INDEX_S = 1.0
"""Interval between two entries of a file's index: 16 bytes and one more file to open, once a second at most."""

_ROUND_BYTES = 1 << 20
"""This much queued data is written without waiting for the next round."""

_KEEP = 1024
"""Number of files and folders remembered: more than are written at the same time."""

_log = Logger(__name__)


class LogFiles:
    """Appends to log files. A file that reaches its limit is rotated, and replaces the file rotated before.

    Args:
        root: directory of the runs, created on demand.
        max_bytes: limit on one file; 0 for none.
        drained: called from the writing thread when `full` turns false.
    """

    def __init__(self, root: Path, max_bytes: int, drained: Callable[[], None]) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._drained = drained
        self._changed = threading.Condition()
        self._pending: dict[Path, list[bytes]] = {}
        self._pending_bytes = 0
        self._full = False
        self._closing = False
        self._warned = False
        self._made: Recent[Path, bool] = Recent(_KEEP)
        self._lost_bytes: Recent[Path, int] = Recent(_KEEP)
        self._indexed_s: Recent[Path, float] = Recent(_KEEP)
        self._thread = threading.Thread(target=self._work, name="monarch-logs", daemon=True)
        self._thread.start()

    def path(self, run: str, rank: int, host: str) -> Path:
        """The log file of a proc."""
        return self._root / run / f"r{rank:04d}.{host}.log"

    @property
    def full(self) -> bool:
        """Whether the backlog is full, and writers should wait for `drained`."""
        return self._full

    def append(self, path: Path, data: bytes) -> None:
        """Queue *data* to be appended to *path*."""
        with self._changed:
            self._pending.setdefault(path, []).append(data)
            self._pending_bytes += len(data)
            self._full = self._full or self._pending_bytes > _PENDING_BYTES
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Wait until all data is written, at most *timeout_s* seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closing)
                batch, self._pending = self._pending, {}
                if not batch:
                    return
            num_bytes = 0
            for path, parts in batch.items():
                data = b"".join(parts)
                num_bytes += len(data)
                try:
                    self._write(path, data)
                except (OSError, ConfigError) as error:
                    if not self._warned:
                        self._warned = True
                        _log.warning("cannot keep the output of procs: %s", error)
            with self._changed:
                self._pending_bytes -= num_bytes
                resume = self._full and self._pending_bytes < _PENDING_BYTES // 2
                if resume:
                    self._full = False
            if resume:
                self._drained()
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._pending_bytes >= _ROUND_BYTES, _PACE_S)

    def _write(self, path: Path, data: bytes) -> None:
        if path.parent not in self._made:
            self._made[private_dir(path.parent)] = True
        is_new = False
        while True:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "ab") as file:
                size = os.fstat(descriptor).st_size
                room_bytes = self._max_bytes - size
                if not self._max_bytes or is_new or room_bytes > 0:
                    self._index(path, size)
                    if not self._max_bytes or len(data) <= room_bytes:
                        file.write(data)
                        return
                    # The file ends after the line that crosses the limit; where no line ends, after the whole batch.
                    cut = data.find(b"\n", max(room_bytes - 1, 0)) + 1 or len(data)
                    file.write(data[:cut])
                    data = data[cut:]
            if not data:
                return
            self._rotate(path)
            is_new = True

    def _index(self, path: Path, size: int) -> None:
        """Note in the index of a proc's file that what follows is written now, unless that was noted lately."""
        if self._root not in path.parents:
            return  # each line of the allocation's changes has its time
        now_s, last_s = time.time(), self._indexed_s.get(path)
        if last_s is None or not 0 <= now_s - last_s < _INDEX_S:
            self._indexed_s[path] = now_s
            with contextlib.suppress(OSError):  # the output is more important
                append_entry(path, now_s, size)

    def _rotate(self, path: Path) -> None:
        """Rotate the file at *path*, and begin a new one."""
        old = path.with_name(path.name + OLD)
        lost_bytes = (self._lost_bytes.get(path) or 0) + (old.stat().st_size if old.exists() else 0)
        self._lost_bytes[path] = lost_bytes
        os.replace(path, old)
        with contextlib.suppress(OSError):
            os.replace(index_of(path), index_of(old))
        self._indexed_s[path] = 0.0
        lost = f"; {lost_bytes} bytes before that were discarded" if lost_bytes else ""
        head = f"[monarch-hpc: earlier output is in {old.name}{lost} (config key 'logs.max_file_bytes')]\n"
        descriptor = os.open(path, os.O_WRONLY | NEW_FILE, 0o600)
        with open(descriptor, "wb") as file:
            file.write(head.encode())
