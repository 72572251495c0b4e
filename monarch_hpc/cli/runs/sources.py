"""The files of a run that have output: one for each proc, and those of a program that the head's agent runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from monarch_hpc.agent.output.log_files import OLD
from monarch_hpc.allocation.log_index import offset_since
from monarch_hpc.allocation.output_log import OutputReader
from monarch_hpc.allocation.programs import read_program, run_folder
from monarch_hpc.core.dataclass import dataclass

__all__ = ["SHOWN_BYTES", "Choice", "LogSource", "find_sources", "parse_ranks"]

_PROC_LOG = re.compile(r"r(\d+)\.(.+)\.log")

SHOWN_BYTES = 1 << 20
"""The end of a process's output, which is shown; the heading above it names the whole file."""

_BLOCK_BYTES = 1 << 20


def parse_ranks(text: str) -> list[range]:
    """Parse ``0-3,7``.

    Raises:
        ValueError: it is no such list.
    """
    found = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise ValueError(f"'{text}' is not a list of ranks, e.g. 0-3,7")
        found.append(range(int(first), int(last or first) + 1))
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """The output that a user wants.

    Attributes:
        ranks: ranks of procs; empty for all, and the program.
        node: name of a host; empty for all.
        since_s: nothing older, in seconds since the epoch; 0 for all. Output of procs is known to the second in which
            it was written, by the index of its file.
        pattern: lines that it is found in; None for all.
    """

    ranks: Sequence[range] = ()
    node: str = ""
    since_s: float = 0.0
    pattern: re.Pattern[str] | None = None

    def takes_rank(self, rank: int) -> bool:
        """Tell whether a proc of this rank is wanted."""
        return not self.ranks or any(rank in ranks for ranks in self.ranks)

    def takes_host(self, host: str) -> bool:
        """Tell whether processes of this host are wanted."""
        return self.node in ("", host, host.partition(".")[0])

    def takes_line(self, line: str) -> bool:
        """Tell whether this line is wanted."""
        return self.pattern is None or self.pattern.search(line) is not None

    def lines(self, text: str) -> str:
        """Return the wanted lines of *text*."""
        if self.pattern is None:
            return text
        return "".join(line for line in text.splitlines(keepends=True) if self.takes_line(line))


@dataclass(frozen=True, slots=True)
class LogSource:
    """The output of one process.

    Attributes:
        label: what it is, for a heading.
        tag: the same before each of its lines.
        path: its file; for a program the run's directory.
        rank: rank of a proc; -1 for a program.
    """

    label: str
    tag: str
    path: Path
    rank: int

    def last(self, since_s: float) -> str:
        """Return the end of its output."""
        if self.rank >= 0:
            return _last_of_proc(self.path, since_s).decode(errors="replace")
        return _last_of_program(self.path, since_s).decode(errors="replace")


def find_sources(directory: Path, run: str, choice: Choice) -> list[LogSource]:
    """Return what *choice* takes of a run: the program first, then procs by rank."""
    folder = run_folder(directory, run)
    found = []
    program = read_program(directory, run)
    if program is not None and not choice.ranks and choice.takes_host(program.host):
        found.append(LogSource(f"run {run} program on {program.host}", "[program] ", folder, -1))
    procs = []
    for path in folder.iterdir():
        match = _PROC_LOG.fullmatch(path.name)
        if match and choice.takes_rank(int(match[1])) and choice.takes_host(match[2]):
            rank, host = int(match[1]), match[2]
            source = LogSource(f"run {run} rank {rank} on {host}", f"[r{rank:02d} {host}] ", path, rank)
            if path.stat().st_mtime >= choice.since_s:
                procs.append(source)
    return found + sorted(procs, key=lambda source: (source.rank, source.label))


def _last_of_proc(path: Path, since_s: float) -> bytes:
    # A proc's file that reached its size limit was renamed to the old one; its output continues in the new one.
    old = path.with_name(path.name + OLD)
    start = offset_since(path, since_s)
    data = _end(path, SHOWN_BYTES, start or 0)
    if start is None and len(data) < SHOWN_BYTES and old.exists():
        data = _end(old, SHOWN_BYTES - len(data), offset_since(old, since_s) or 0) + data
    return data


def _last_of_program(folder: Path, since_s: float) -> bytes:
    reader, data = OutputReader(folder), b""
    at = max(0, reader.end() - SHOWN_BYTES)
    while pieces := reader.read(at, _BLOCK_BYTES, since_s):
        at = pieces[-1].offset + len(pieces[-1].data)
        data += b"".join(piece.data for piece in pieces)
    return data


def _end(path: Path, num_bytes: int, start: int) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - num_bytes))
        return file.read(num_bytes)
