"""`changes.jsonl`: what has become of an allocation's hosts, runs and procs, one line for each change.

The head writes it; it is read without the head, since the loss of the head's host is one of the things to look up.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from monarch_hpc.allocation.attempts import ATTEMPTS
from monarch_hpc.core.dataclass import dataclass

__all__ = ["CHANGES", "HeadChange", "parse_change", "read_changes", "render_change"]

CHANGES = "changes.jsonl"
_OLD = ".old"
"""The rotated file, see `agent.output.log_files`; its lines precede those of the current one."""

_TAIL_BYTES = 1 << 20
"""Of each file no more is read: some five thousand changes."""

_MAX_CAUSE_CHARS = 2000
"""Limit on a cause, which may have a traceback."""


@dataclass(frozen=True, slots=True)
class HeadChange:
    """One change.

    Args:
        time_s: seconds since the epoch, by the clock of the head's host.
        what: one or two words: ``lost``, ``suspect``, ``proc died``.
        subject: the host, run or proc; empty for the allocation itself.
        kind: a `core.death.DeathKind`; empty where nothing has died.
        cause: why, in words.
    """

    time_s: float
    what: str
    subject: str
    kind: str = ""
    cause: str = ""


def render_change(change: HeadChange) -> bytes:
    """Render a change as a line."""
    fields = [round(change.time_s, 3), change.what, change.subject, change.kind, change.cause[:_MAX_CAUSE_CHARS]]
    return json.dumps(fields).encode() + b"\n"


def parse_change(line: bytes) -> HeadChange | None:
    """Read a line; None for one that is cut off, or that says something else."""
    try:
        time_s, what, subject, kind, cause = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (what, subject, kind, cause)
    if type(time_s) not in (int, float) or not all(isinstance(text, str) for text in texts):
        return None
    return HeadChange(float(time_s), *texts)


def read_changes(directory: Path) -> list[HeadChange]:
    """Return the changes of all attempts of the allocation in *directory*, in the order in which they were written."""
    folders = [directory]
    with contextlib.suppress(FileNotFoundError):
        numbers = sorted(int(name) for name in os.listdir(directory / ATTEMPTS) if name.isdecimal())
        folders += [directory / ATTEMPTS / str(number) for number in numbers]
    found = []
    for folder in folders:
        for name in (CHANGES + _OLD, CHANGES):
            found += [change for line in _tail(folder / name) if (change := parse_change(line)) is not None]
    return found


def _tail(path: Path) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return []
