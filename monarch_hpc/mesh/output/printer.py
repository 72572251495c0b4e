"""Shows the output and log records of procs in the program, on its stdout and stderr or through its `logging`."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import sys
import threading
from _thread import allocate_lock
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from monarch_hpc.config.schema import LogsConfig
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.mesh.output.fold import Fold, OutputLine, Shown
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import ProcLife
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.record import MARK, LogRecord, parse_record

__all__ = ["Printer"]

_CLOSE_S = 5.0
"""Limit on how long a blocked terminal delays the end of the program."""

_WAITING_CHARS = 64 << 20
"""Backlog limit, for a terminal that is slower than the procs, or blocked."""

_OWN_WAITING_CHARS = 4 << 20
"""Backlog limit of one proc, so that a flooding proc leaves room for the others."""

_FLUSH_SOON_S = 0.15
"""Wait before the flush after a failure: agents send lines in batches, twenty a second."""

_LINE_CHARS = 64
"""Overhead of a line in the backlog, in addition to its text."""

_log = Logger(__name__)


class _PrintedMesh:
    """Name and settings of a mesh with output, and its lines that are held back."""

    def __init__(self, config: LogsConfig) -> None:
        self.name = ""
        self.fold = Fold(config.fold_s)
        self.to_logging = config.to_logging


class Printer:
    """Prints on a separate thread, so that a blocked terminal blocks nothing else."""

    def __init__(self, config: LogsConfig) -> None:
        self._config = config
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._meshes: dict[int, _PrintedMesh] = {}
        self._lock = allocate_lock()
        self._waiting_chars: Counter[ProcKey] = Counter()
        self._flush_at_s: float | None = None
        self._left_out: dict[tuple[ProcKey, str, str, str], int] = {}
        self.context: contextvars.Context | None = None
        """The context in which to print; None for the printer's own. Notebooks find the cell in it."""
        self._thread = Thread(self._run)

    def put(self, text: str) -> None:
        """Print *text* on stderr soon, after all earlier output of the procs."""
        self._queue.put(lambda: self._print_text(text))

    def put_life(self, change: ProcLife, host: str) -> None:
        """Print that a proc on *host* was stopped by a signal, or continues."""
        proc = f"proc {change.proc.rank} on {host}"
        if change.life == Liveness.SUSPECT.value:
            text = (
                f"{proc} is stopped by a signal (SIGSTOP): let it go on (SIGCONT), or it is killed "
                f"{change.dead_s:g} s after it stopped (config key 'liveness.dead_s')"
            )
        else:
            text = f"{proc} goes on after {change.stopped_s:.0f} s"
        self.put(f"monarch-hpc: {text}\n")

    def show(self, output: Output, name: str, host: str) -> None:
        """Show output of a proc soon. If the backlog is full, drop the lines and report their number later.

        Args:
            output: the lines.
            name: name of the mesh.
            host: name of the proc's host.
        """
        num_chars = sum(map(len, output.lines)) + _LINE_CHARS * len(output.lines)
        proc = output.proc
        key = proc, name, host, output.stream
        with self._lock:
            waiting = self._waiting_chars
            dropped = output.dropped + self._left_out.pop(key, 0)
            if waiting[proc] > _OWN_WAITING_CHARS or waiting.total() > _WAITING_CHARS:
                self._left_out[key] = dropped + len(output.lines)
                return
            waiting[proc] += num_chars
        self._queue.put(lambda: self._show(replace(output, dropped=dropped), name, host, num_chars))

    def flush_soon(self) -> None:
        """Flush all lines in a moment, once the agents have sent their current batches."""
        if self._flush_at_s is None:
            self._flush_at_s = monotonic() + _FLUSH_SOON_S
            self._queue.put(_nothing)

    def flush(self, timeout_s: float) -> bool:
        """Print everything that was shown so far, also lines that are held back; False if that takes too long."""
        printed = threading.Event()

        def flush() -> None:
            self._flush()
            printed.set()

        self._queue.put(flush)
        return printed.wait(timeout_s)

    def choose(self, mesh: int, window_s: float, *, to_logging: bool) -> None:
        """Set the folding window of *mesh*, and whether its records go to the program's `logging` or are printed."""

        def change() -> None:
            self._flush()
            found = self._mesh(mesh)
            found.fold.window_s, found.to_logging = window_s, to_logging

        self._queue.put(change)

    def forget(self, mesh: int) -> None:
        """Print the lines of *mesh* that are held back, and discard its state: its procs are gone."""

        def drop() -> None:
            found = self._meshes.pop(mesh, None)
            if found is not None:
                self._print(found.name, found.fold.flush())

        self._queue.put(drop)

    def close(self) -> None:
        """Print all remaining output and stop the thread."""
        self._queue.put(None)
        self._thread.join(_CLOSE_S)

    # ---- on the thread ----

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._left_s())
            except queue.Empty:
                item = _nothing
            if item is None:
                break
            item()
            if self._left_out and self._queue.empty():
                self._report_left_out()
            now_s = monotonic()
            if self._flush_at_s is not None and self._flush_at_s <= now_s:
                self._flush_at_s, now_s = None, float("inf")
            for mesh in self._meshes.values():
                self._print(mesh.name, mesh.fold.advance(now_s))
        self._flush()
        self._report_left_out()

    def _left_s(self) -> float | None:
        due = [mesh.fold.due_s for mesh in self._meshes.values() if mesh.fold.due_s is not None]
        if self._flush_at_s is not None:
            due.append(self._flush_at_s)
        return max(min(due) - monotonic(), 0.0) if due else None

    def _mesh(self, number: int) -> _PrintedMesh:
        found = self._meshes.get(number)
        if found is None:
            found = self._meshes[number] = _PrintedMesh(self._config)
        return found

    def _show(self, output: Output, name: str, host: str, num_chars: int) -> None:
        mesh = self._mesh(output.mesh)
        mesh.name = name
        if output.dropped:
            self._report_dropped(mesh, output.proc.rank, host, output.stream, output.dropped)
        ready: list[Shown] = []
        now_s = monotonic()
        for line in output.lines:
            record = parse_record(line) if line.startswith(MARK) and output.stream == "err" else None
            if record is None:
                ready += mesh.fold.add(OutputLine(output.proc.rank, host, output.stream, line), now_s)
            elif mesh.to_logging:
                _log_locally(record, name, output.proc.rank, host)
            else:
                actor = record.actor if self._config.with_actor else ""
                ready += mesh.fold.add(OutputLine(output.proc.rank, host, "err", str(record), actor), now_s)
        self._print(name, ready)
        with self._lock:
            proc = output.proc
            self._waiting_chars[proc] -= num_chars
            if not self._waiting_chars[proc]:
                del self._waiting_chars[proc]

    def _report_left_out(self) -> None:
        with self._lock:
            left_out, self._left_out = self._left_out, {}
        for (proc, name, host, stream), num_lines in left_out.items():
            mesh = self._mesh(proc.mesh)
            mesh.name = name
            self._report_dropped(mesh, proc.rank, host, stream, num_lines)

    def _report_dropped(self, mesh: _PrintedMesh, rank: int, host: str, stream: str, num_lines: int) -> None:
        text = f"... {num_lines} lines left out here; the run's log files have them"
        self._print(mesh.name, [*mesh.fold.flush(), Shown(stream, text, "", {rank: 1}, {host})])

    def _print_text(self, text: str) -> None:
        self._flush()
        self._write(sys.stderr, text)

    def _flush(self) -> None:
        for mesh in self._meshes.values():
            self._print(mesh.name, mesh.fold.flush())

    def _print(self, name: str, ready: list[Shown]) -> None:
        for stream, to in (("out", sys.stdout), ("err", sys.stderr)):
            text = "".join(shown.render(name) for shown in ready if shown.stream == stream)
            if text:
                self._write(to, text)

    def _write(self, stream: TextIO, text: str) -> None:
        if self.context is None:
            _write(stream, text)
        else:
            self.context.copy().run(_write, stream, text)  # a copy: another thread may run in the context itself


def _nothing() -> None:
    """Wake the thread, which then prints the lines that are due."""


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        try:
            print(text, end="", file=stream, flush=True)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            plain = text.encode(encoding, "backslashreplace").decode(encoding)
            print(plain, end="", file=stream, flush=True)


def _log_locally(record: LogRecord, mesh: str, rank: int, host: str) -> None:
    logger = logging.getLogger(f"monarch_hpc.remote.{record.name}")
    if not logger.isEnabledFor(record.level):
        return
    made = logging.makeLogRecord(
        {
            "name": logger.name,
            "levelno": record.level,
            "levelname": logging.getLevelName(record.level),
            "msg": record.text,
            "args": None,
            "created": record.at_s,
            "msecs": record.at_s % 1 * 1000,
            "pathname": record.path,
            "filename": record.path.rpartition("/")[2],
            "module": record.path.rpartition("/")[2].removesuffix(".py"),
            "lineno": record.line,
            "funcName": record.function,
            "threadName": record.thread,
            "processName": f"proc {rank}",
            "process": None,
            "mesh": mesh,
            "rank": rank,
            "host": host,
            "actor": record.actor,
        }
    )
    try:
        logger.handle(made)
    except Exception:  # noqa: BLE001 handlers and filters are user code, and must not end the printer's thread
        _log.exception("a record of rank %d on %s could not be logged", rank, host)
