"""Shows the output of a run's processes as it is written to their files, each line with its process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from monarch_hpc.agent.output.log_files import OLD
from monarch_hpc.allocation.attempts import newest_attempt
from monarch_hpc.allocation.files import is_over
from monarch_hpc.allocation.output_log import OutputReader
from monarch_hpc.allocation.programs import read_exit, read_program
from monarch_hpc.cli.output import Console
from monarch_hpc.cli.runs.cancel import cancel
from monarch_hpc.cli.runs.place import OnInterrupt
from monarch_hpc.cli.runs.session import detached_text
from monarch_hpc.cli.runs.sources import SHOWN_BYTES, Choice, LogSource, find_sources
from monarch_hpc.config import Config

__all__ = ["Follower"]

_POLL_S = 0.5
"""Interval of looking at the files: a person hardly notices it, and it costs the file server a few requests."""

_READ_BYTES = 1 << 20
_STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class _Tail:
    """The lines of one source, in order, from its last `SHOWN_BYTES` on."""

    def __init__(self, source: LogSource, since_s: float) -> None:
        self._source = source
        self._since_s = since_s
        self._at = 0
        self._inode = 0
        self._reader = OutputReader(source.path)
        self._rest = b""
        end = self._reader.end() if source.rank < 0 else source.path.stat().st_size
        self._at = max(0, end - SHOWN_BYTES)

    def lines(self, *, final: bool) -> list[str]:
        """Return the lines that were written since the last call; *final* for one without a line feed, too."""
        data = self._read_proc() if self._source.rank >= 0 else self._read_program()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if final and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]

    def _read_program(self) -> bytes:
        pieces = self._reader.read(self._at, _READ_BYTES, self._since_s)
        if pieces:
            self._at = pieces[-1].offset + len(pieces[-1].data)
        return b"".join(piece.data for piece in pieces)

    def _read_proc(self) -> bytes:
        path = self._source.path
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if self._inode not in (0, found.st_ino):  # it was rotated, and the rest of it has another name
                before = self._rest_of_old(path)
                self._inode, self._at = found.st_ino, 0
                return before
            self._inode = found.st_ino
            data = os.pread(file.fileno(), _READ_BYTES, self._at)
        self._at += len(data)
        return data

    def _rest_of_old(self, path: Path) -> bytes:
        with open(path.with_name(path.name + OLD), "rb") as file:
            return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, self._at)


class Follower:
    """Follows one run; blocks the signals that end it.

    Args:
        name: the allocation, for messages; its *directory* counts.
        on_interrupt: what the first Ctrl-C does to a run whose program runs on the first host.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        run: str,
        choice: Choice,
        config: Config,
        output: Console,
        on_interrupt: OnInterrupt,
    ) -> None:
        self._name = name
        self._directory = directory
        self._run = run
        self._choice = choice
        self._config = config
        self._output = output
        self._on_interrupt = on_interrupt
        self._tails: dict[LogSource, _Tail] = {}
        self._has_program = read_program(directory, run) is not None
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)

    def follow(self) -> int:
        """Show lines until the run's program, or the allocation, has ended; return an exit code."""
        while True:
            ended = self._ended()
            while self._show(final=ended):
                pass
            if ended:
                return 0
            info = signal.sigtimedwait(_STOPPING, _POLL_S)
            if info is not None:
                return self._stop(info.si_signo)

    def _ended(self) -> bool:
        return read_exit(self._directory, self._run) is not None or is_over(newest_attempt(self._directory)[1])

    def _show(self, *, final: bool) -> bool:
        """Print new lines; return whether there were any."""
        text = []
        for source in find_sources(self._directory, self._run, self._choice):
            if source not in self._tails:
                self._tails[source] = _Tail(source, self._choice.since_s)
            lines = self._tails[source].lines(final=final)
            text += [f"{source.tag}{line}\n" for line in lines if self._choice.takes_line(line)]
        self._output.stream("".join(text))
        return bool(text)

    def _stop(self, number: int) -> int:
        if number != signal.SIGINT:
            return 128 + number
        if not self._has_program:
            shows = f"'monarch-hpc logs {self._name} -f --run {self._run}' shows it again"
            self._output.progress(f"run {self._run} goes on: {shows}; its program ends it where it was started")
            return 0
        if self._on_interrupt is OnInterrupt.DETACH:
            cancel_s = self._config.run.cancel_s
            self._output.progress(f"{detached_text(self._run)}; Ctrl-C within {cancel_s:.0f} s ends it")
            if signal.sigtimedwait({signal.SIGINT}, cancel_s) is None:
                return 0
        self._output.progress(f"ending run {self._run}")
        grace_s = self._config.run.stop_grace_s
        cancel(self._directory, self._run, self._config, signal.SIGINT, grace_s, ends=True)
        self._show(final=True)
        return 0
