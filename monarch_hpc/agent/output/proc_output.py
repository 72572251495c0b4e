"""Output of procs: read from pipes without blocking, written to log files, and sent to the program in batches.

Backpressure through its pipe slows down a proc that prints faster than the file system takes it, or than its share of
the host's read rate, so that its log file is complete. The output sent on to the program is limited, and a slow
program slows no proc down: lines are dropped for it, and counted.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from monarch_hpc.agent.output.log_files import LogFiles
from monarch_hpc.agent.output.rate_limit import FairShare, TokenBucket, cost_bytes
from monarch_hpc.config.schema import LogsConfig
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.record import MARK, Unmarker, parse_record, split_marked

__all__ = ["MAX_LINE_BYTES", "LineSplitter", "Outlet", "ProcOutput"]

MAX_LINE_BYTES = 64 << 10
NUM_LAST_LINES = 20

_READ_BYTES = 64 << 10
_PIPE_READS = (1 << 20) // _READ_BYTES + 1
"""Reads that empty a pipe, which holds 64 KiB by default and at most 1 MiB."""
_BATCH_S = 0.05
_BATCH_BYTES = 64 << 10
_NOTICE_S = 1.0
"""Time for which lines may be dropped before the program is informed of their number."""


class LineSplitter:
    """Splits bytes into lines: invalid UTF-8 is replaced, a line of more than 64 KiB is cut into several."""

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

    def skip(self, data: bytes) -> tuple[int, list[str]]:
        """Return the number of lines that *data* completes, and the last few of them; cheaper than `feed`."""
        num_lines = data.count(b"\n")
        if num_lines <= NUM_LAST_LINES:
            lines = self.feed(data)
            return len(lines), lines[-NUM_LAST_LINES:]
        at = len(data)
        for _ in range(NUM_LAST_LINES + 1):
            at = data.rfind(b"\n", 0, at)
        self._rest = b""
        return num_lines, self.feed(data[at + 1 :])

    def flush(self) -> list[str]:
        """Return the rest after the last line feed, if any."""
        rest, self._rest = self._rest, b""
        return [rest.decode("utf-8", "replace")] if rest else []


class Outlet:
    """Shared by the procs of a host for their output.

    Args:
        send: sends a batch towards the program.
        backlogged: whether the backlog towards the program is too large.
    """

    def __init__(
        self, files: LogFiles, config: LogsConfig, send: Callable[[Output], None], backlogged: Callable[[], bool]
    ) -> None:
        self.files = files
        self.config = config
        self.fair_share = FairShare(config.host_rate_bytes, _READ_BYTES)
        self.send = send
        self.backlogged = backlogged


class ProcOutput:
    """Reads the two pipes of one proc.

    Args:
        pipes: stream name (``out``, ``err``) -> descriptor to read, which this object owns.
        path: log file.
    """

    def __init__(self, engine: Engine, proc: ProcKey, pipes: dict[str, int], path: Path, outlet: Outlet) -> None:
        self._engine = engine
        self._proc = proc
        self._pipes = dict(pipes)
        self._path = path
        self._outlet = outlet
        self._streaming = outlet.config.stream_to_client
        self._bucket = TokenBucket(outlet.config.proc_rate_bytes, engine.clock())
        self._unmarkers = {stream: Unmarker(records=stream == "err") for stream in pipes}
        self._splitters = {stream: LineSplitter() for stream in pipes}
        self._batches: dict[str, list[str]] = {stream: [] for stream in pipes}
        self._batch_bytes = 0
        self._num_dropped = dict.fromkeys(pipes, 0)
        self._tails: dict[str, deque[str]] = {stream: deque(maxlen=NUM_LAST_LINES) for stream in pipes}
        self._timer: Timer | None = None
        self._notice: Timer | None = None
        self._resume_timer: Timer | None = None
        self._last: deque[tuple[str, str]] = deque(maxlen=NUM_LAST_LINES)
        self._paused = False
        for fd in pipes.values():
            os.set_blocking(fd, False)
        self._watch()

    @property
    def last_lines(self) -> list[str]:
        """The last lines that the proc wrote, of both streams, in order of arrival."""
        lines: list[str] = []
        for stream, line in self._last:
            record = parse_record(line) if stream == "err" else None
            lines += str(record).splitlines() if record is not None else [line]
        return lines[-NUM_LAST_LINES:]

    def stream(self, on: bool) -> None:
        """Send later output to the program, too, or only to the log file."""
        self._flush()
        self._streaming = on

    def flush(self) -> None:
        """Send what the proc has written so far; what the limits leave in its pipes is sent later."""
        for stream in list(self._pipes):
            for _ in range(_PIPE_READS):
                if self._paused or stream not in self._pipes or not self._read(stream):
                    break
        self._flush()

    def resume(self) -> None:
        """Resume reading once the log writer has caught up."""
        if self._paused and self._resume_timer is None and not self._outlet.files.full:
            self._paused = False
            self._watch()

    def finish(self) -> None:
        """After the proc's end: read the rest of its pipes, send everything, and close the pipes."""
        for stream, fd in list(self._pipes.items()):
            with contextlib.suppress(OSError):
                for _ in range(_PIPE_READS):  # a child that goes on writing is cut off
                    data = os.read(fd, _READ_BYTES)
                    if not data:
                        break
                    self._take(stream, data)
            self._close(stream)
        self._flush(report_dropped=True)
        if self._resume_timer is not None:
            self._resume_timer.cancel()

    def _watch(self) -> None:
        for stream, fd in self._pipes.items():
            self._engine.watch(fd, partial(self._on_ready, stream))

    def _pause(self) -> None:
        self._paused = True
        for fd in self._pipes.values():
            self._engine.unwatch(fd)

    def _on_ready(self, stream: str, _mask: int) -> None:
        self._read(stream)

    def _read(self, stream: str) -> bool:
        """Read from a pipe; return whether there may be more."""
        if self._outlet.files.full:
            self._pause()
            return False
        try:
            data = os.read(self._pipes[stream], _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(stream)
            return False
        self._take(stream, data)
        wait_s = self._outlet.fair_share.take(self, len(data), self._engine.clock())
        if wait_s:
            self._pause()
            self._resume_timer = self._engine.call_later(wait_s, self._resume_reading)
        return True

    def _resume_reading(self) -> None:
        self._resume_timer = None
        self.resume()

    def _close(self, stream: str) -> None:
        fd = self._pipes.pop(stream)
        self._engine.unwatch(fd)
        os.close(fd)
        end = self._unmarkers[stream].flush()
        if end:
            self._outlet.files.append(self._path, end)
        self._add(stream, self._splitters[stream].flush())

    def _take(self, stream: str, data: bytes) -> None:
        text = self._unmarkers[stream].feed(data)
        if text:
            self._outlet.files.append(self._path, text)
        splitter = self._splitters[stream]
        cost = cost_bytes(data.count(b"\n"), len(data))
        if self._streaming and self._bucket.take(cost, self._engine.clock()):
            self._batch_bytes += len(data)
            self._add(stream, splitter.feed(data))
        else:
            self._skip(stream, *splitter.skip(data))

    def _add(self, stream: str, lines: list[str]) -> None:
        lines = self._keep_last(stream, lines)
        if not lines or not self._streaming:
            return
        self._batches[stream].extend(lines)
        if self._batch_bytes >= _BATCH_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = self._engine.call_later(_BATCH_S, self._flush)

    def _skip(self, stream: str, num_lines: int, last: list[str]) -> None:
        """Drop lines, except for the last few, which are sent with the number of dropped lines."""
        last = self._keep_last(stream, last)
        if not num_lines or not self._streaming:
            return
        self._flush()
        self._drop(stream, num_lines, last)

    def _keep_last(self, stream: str, lines: list[str]) -> list[str]:
        """Remember the last of *lines*; return them with each log record on its own line."""
        if stream == "err" and any(MARK in line for line in lines):
            lines = [part for line in lines for part in split_marked(line)]
        self._last.extend((stream, line) for line in lines[-NUM_LAST_LINES:])
        return lines

    def _drop(self, stream: str, num_lines: int, last: list[str]) -> None:
        self._num_dropped[stream] += max(num_lines, len(last))
        self._tails[stream].extend(last)
        if self._notice is None:
            self._notice = self._engine.call_later(_NOTICE_S, partial(self._flush, report_dropped=True))

    def _flush(self, *, report_dropped: bool = False) -> None:
        """Send the queued lines; with *report_dropped* also the number of dropped ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if report_dropped and self._notice is not None:
            self._notice.cancel()
            self._notice = None
        self._batch_bytes = 0
        for stream, lines in self._batches.items():
            if lines and self._outlet.backlogged():
                self._drop(stream, len(lines), lines)
                lines.clear()
            if lines or (report_dropped and self._num_dropped[stream]):
                tail = self._tails[stream]
                num_dropped, self._num_dropped[stream] = self._num_dropped[stream] - len(tail), 0
                whole = [*tail, *lines]
                self._outlet.send(Output(self._proc, stream, whole, num_dropped))
                tail.clear()
                lines.clear()
