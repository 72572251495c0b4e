"""What procs print: read without blocking, kept in files, and sent to the controller in batches.

A proc that prints faster than the file system takes it is slowed down, so that its file is complete. A
controller that does not keep up slows nobody down: lines are left out for it, and counted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import private_dir
from monarch_hpc.transport.engine import Engine
from monarch_hpc.transport.timer import Timer
from monarch_hpc.wire.messages import Output

__all__ = ["LineSplitter", "LogFiles", "ProcOutput", "Tag"]

MAX_LINE_BYTES = 64 << 10
NUM_LAST_LINES = 20

_READ_BYTES = 64 << 10
_BATCH_S = 0.05
_BATCH_BYTES = 64 << 10
_PENDING_BYTES = 8 << 20
"""What may wait for the file system, over all procs of a host."""

_log = logging.getLogger(__name__)


class LineSplitter:
    """Turns chunks of bytes into lines: invalid UTF-8 is replaced, a line of more than 64 KiB is cut into several."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that *data* completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole.append(self._rest)
            self._rest = b""
        lines: list[str] = []
        for line in whole:
            for at in range(0, max(len(line), 1), MAX_LINE_BYTES):
                lines.append(line[at : at + MAX_LINE_BYTES].decode("utf-8", "replace"))
        return lines

    def flush(self) -> list[str]:
        """Return what follows the last line feed, if anything."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []


class LogFiles:
    """Appends to the log files of a host from a thread of its own: a stalled file system must not stall the agent.

    Args:
        root: directory of the runs, made when needed.
        drained: called from the thread when writing goes on after `full` was true.
    """

    def __init__(self, root: Path, drained: Callable[[], None]) -> None:
        self._root = root
        self._drained = drained
        self._queue: queue.SimpleQueue[tuple[Path, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._full = False
        self._warned = False
        self._made: set[Path] = set()
        self._thread = threading.Thread(target=self._work, name="monarch-logs", daemon=True)
        self._thread.start()

    def path(self, run: str, rank: int, host: str) -> Path:
        """Where a proc's output goes."""
        return self._root / run / f"r{rank:04d}.{host}.log"

    @property
    def full(self) -> bool:
        """Whether writers should wait for `drained`."""
        with self._lock:
            self._full = self._full or self._pending_bytes > _PENDING_BYTES
            return self._full

    def append(self, path: Path, data: bytes) -> None:
        """Write *data* at the end of *path*, some time soon."""
        with self._lock:
            self._pending_bytes += len(data)
        self._queue.put((path, data))

    def close(self, timeout_s: float) -> None:
        """Wait until all is written, at most *timeout_s* seconds."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            path, data = item
            try:
                if path.parent not in self._made:
                    self._made.add(private_dir(path.parent))
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with open(descriptor, "ab") as file:
                    file.write(data)
            except (OSError, ConfigError) as error:
                if not self._warned:
                    self._warned = True
                    _log.warning("cannot keep the output of procs: %s", error)
            with self._lock:
                self._pending_bytes -= len(data)
                resume = self._full and self._pending_bytes < _PENDING_BYTES // 2
                if resume:
                    self._full = False
            if resume:
                self._drained()


@dataclass(frozen=True, slots=True)
class Tag:
    """Whose output it is."""

    run: str
    mesh: int
    rank: int
    host: int


class ProcOutput:
    """The two pipes of one proc.

    Args:
        pipes: stream name (``out``, ``err``) -> descriptor to read, owned from here on.
        send: passes a batch towards the controller.
        crowded: tells whether too much already waits on that way.
    """

    def __init__(
        self,
        engine: Engine,
        tag: Tag,
        pipes: dict[str, int],
        files: LogFiles,
        path: Path,
        send: Callable[[Output], None],
        crowded: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._tag = tag
        self._pipes = dict(pipes)
        self._files = files
        self._path = path
        self._send = send
        self._crowded = crowded
        self._splitters = {stream: LineSplitter() for stream in pipes}
        self._batches: dict[str, list[str]] = {stream: [] for stream in pipes}
        self._batch_bytes = 0
        self._dropped = dict.fromkeys(pipes, 0)
        self._timer: Timer | None = None
        self._last: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._paused = False
        for fd in pipes.values():
            os.set_blocking(fd, False)
        self._watch()

    @property
    def last_lines(self) -> list[str]:
        """The last lines that the proc wrote, both streams as they came."""
        return list(self._last)

    def resume(self) -> None:
        """Read again after the files were full."""
        if self._paused:
            self._paused = False
            self._watch()

    def finish(self) -> None:
        """The proc has ended: take what it left in the pipes, send everything, and close them."""
        for stream, fd in list(self._pipes.items()):
            with contextlib.suppress(OSError):
                # A pipe holds 64 KiB by default and at most 1 MiB; a child that goes on writing is cut off.
                for _ in range((1 << 20) // _READ_BYTES + 1):
                    data = os.read(fd, _READ_BYTES)
                    if not data:
                        break
                    self._take(stream, data)
            self._close(stream)
        self._flush(last=True)

    def _watch(self) -> None:
        for stream, fd in self._pipes.items():
            self._engine.watch(fd, partial(self._on_ready, stream))

    def _on_ready(self, stream: str, _mask: int) -> None:
        if self._files.full:
            self._paused = True
            for fd in self._pipes.values():
                self._engine.unwatch(fd)
            return
        try:
            data = os.read(self._pipes[stream], _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(stream, data)
        else:
            self._close(stream)

    def _close(self, stream: str) -> None:
        fd = self._pipes.pop(stream)
        self._engine.unwatch(fd)
        os.close(fd)
        rest = self._splitters[stream].flush()
        if rest:
            self._files.append(self._path, b"\n")
            self._add(stream, rest)

    def _take(self, stream: str, data: bytes) -> None:
        self._files.append(self._path, data)
        self._batch_bytes += len(data)
        self._add(stream, self._splitters[stream].feed(data))

    def _add(self, stream: str, lines: list[str]) -> None:
        if not lines:
            return
        self._last.extend(lines)
        self._batches[stream].extend(lines)
        if self._batch_bytes >= _BATCH_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = self._engine.call_later(_BATCH_S, self._flush)

    def _flush(self, *, last: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._batch_bytes = 0
        tag = self._tag
        for stream, lines in self._batches.items():
            if lines and self._crowded():
                self._dropped[stream] += len(lines)
                lines.clear()
            if lines or (last and self._dropped[stream]):
                dropped, self._dropped[stream] = self._dropped[stream], 0
                self._send(Output(tag.run, tag.mesh, tag.rank, tag.host, stream, list(lines), dropped))
                lines.clear()
