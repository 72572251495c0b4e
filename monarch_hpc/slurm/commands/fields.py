"""The text that Slurm's commands print: fields, missing values, times."""

from __future__ import annotations

import re
import time

__all__ = [
    "fields_of",
    "parse_time",
    "something",
]

# Keys of `scontrol -o show` begin with a capital letter and contain no space; the value extends to the next key.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9:/_]*)=")

# What scontrol and squeue print for "nothing".
_NOTHING = frozenset({"", "(null)", "N/A", "None", "Unknown", "NONE"})


def parse_time(text: str) -> float | None:
    """Parse a time as Slurm prints it, which is this machine's local time; return seconds since the epoch."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def fields_of(line: str) -> dict[str, str]:
    """Parse one line of `scontrol -o show`."""
    marks = list(_FIELD.finditer(line))
    fields: dict[str, str] = {}
    for number, mark in enumerate(marks, start=1):
        end = marks[number].start() if number < len(marks) else len(line)
        # The first one wins: a later comment may contain any text, even "JobState=".
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def something(value: str) -> str:
    """Return *value*, or nothing if it is one of Slurm's words for nothing."""
    return "" if value in _NOTHING else value
