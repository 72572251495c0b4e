"""The format of parts: chunks of records as processes wrote them, each with a line that says what it is. Pure.

A part is made of chunks; a chunk is a u32 length and so many bytes of JSON, a `Heading`, and then its contents. What
was cut off at the end of a part, by a full disk or a kill, is left out when it is read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import build

__all__ = [
    "BEGIN",
    "CASTS",
    "EVENTS",
    "METRICS",
    "NAMES",
    "NO_PROCESS",
    "RECORDS",
    "ROWS",
    "SENDS",
    "SPANS",
    "TRANSFERS",
    "Heading",
    "parse",
    "render",
]

BEGIN = "begin"
"""Its number is that of the part; its contents are how far the records of each process are in earlier ones, as JSON."""
NAMES = "names"
"""Header, table of actors and names of a process; the last of a process counts for all of its records in the part."""
ROWS = "rows"
"""Rows of a table as text."""
EVENTS, SENDS, CASTS, METRICS, SPANS, TRANSFERS = "events", "sends", "casts", "metrics", "spans", "transfers"
RECORDS = frozenset({EVENTS, SENDS, CASTS, METRICS, SPANS, TRANSFERS})
"""Records of 64 bytes, see `telemetry.layout`, by where they were read."""

NO_PROCESS = ("", "", 0, 0, 0, 0, 0.0)
"""Host, process and clock in the heading of a chunk that is about none."""

_LENGTH_BYTES = 4
_MAX_HEADING_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Heading:
    """What a chunk is.

    Args:
        what: one of the words above.
        size: bytes of its contents.
        host: name of the host.
        run, mesh, rank, pid: its process.
        offset_ns, error_us: the correction of times in it, see `telemetry.clock.Correction`.
        table: for rows, the name of their table.
        num: for the beginning, the number of the part.
    """

    what: str
    size: int
    host: str
    run: str
    mesh: int
    rank: int
    pid: int
    offset_ns: int
    error_us: float
    table: str
    num: int


def render(heading: Heading, contents: bytes) -> bytes:
    """Return a chunk."""
    line = json.dumps(dataclasses.asdict(heading), separators=(",", ":")).encode()
    return len(line).to_bytes(_LENGTH_BYTES, "little") + line + contents


def parse(part: bytes) -> Iterator[tuple[Heading, bytes, int]]:
    """Yield the chunks of a part, each with its end; not one that is cut off, and none behind it."""
    at = 0
    while len(part) - at >= _LENGTH_BYTES:
        start = at + _LENGTH_BYTES + int.from_bytes(part[at : at + _LENGTH_BYTES], "little")
        if start - at > _MAX_HEADING_BYTES or start > len(part):
            return
        try:
            document = json.loads(part[at + _LENGTH_BYTES : start])
            heading = build(Heading, document, "a chunk") if isinstance(document, dict) else None
        except (ValueError, FrameError, RecursionError):
            return
        if not isinstance(heading, Heading) or heading.size < 0 or start + heading.size > len(part):
            return
        at = start + heading.size
        yield heading, part[start:at], at
