"""Reads the records of a process, even while it writes, is stopped, or is dead.

The process may write anything there, on purpose or by a stray pointer: no number is used as an index before it is
checked against the size of the table, and any bytes give a result.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import (
    CAST,
    FAILED,
    HALF,
    HEADER,
    OPEN,
    RECORD,
    RECORD_BYTES,
    Ring,
)

__all__ = [
    "DecodedRecord",
    "Memory",
    "memory_of",
    "read_events",
    "read_header",
    "read_names",
    "read_open_calls",
    "read_places",
    "read_ring",
    "read_table",
    "read_u64",
    "read_waits",
]

Memory = Callable[[int, int], bytes]
"""Takes offset and size; returns exactly that many bytes."""

_MOST = (1 << 63) - 1
"""Largest number reported: JSON readers have no u64."""
_F64 = struct.Struct("<d")

_SIGN_AT, _NEGATIVE = 47, b"\xff"
"""Place of the last byte of a duration in a record, and that byte in `layout.OPEN`."""


class DecodedRecord(NamedTuple):
    """One record, see `layout`."""

    t: int
    kind: int
    flags: int
    actor: int
    name: int
    peer: int
    msg: int
    num_bytes: int
    dur: int
    value: int
    seq: int

    @property
    def queued_us(self) -> int:
        """For a handled call: microseconds queued in its process; saturates at `HALF`."""
        return self.value & HALF

    @property
    def answer_bytes(self) -> int:
        """For a handled call: size of its answer; 0 without a result, or before it. Saturates at `HALF`."""
        return 0 if self.flags & FAILED else self.value >> 32

    @property
    def error(self) -> int:
        """For a handled call that raised: number of the name of the exception; else 0."""
        return self.value >> 32 if self.flags & FAILED else 0

    @property
    def number(self) -> float:
        """For a metric: its value."""
        return float(_F64.unpack(self.value.to_bytes(8, "little"))[0])

    @property
    def num_receivers(self) -> int:
        """For a sent call: number of actors that were sent it."""
        return self.peer if self.msg & CAST else 1


def memory_of(fd: int) -> Memory:
    """Return access to the memory behind a descriptor of `memory.make_memory`, by reading, not mapping.

    Touching an unwritten page of a mapping would allocate it, and if the process truncated the file, touching a page
    beyond its end would kill the reader.
    """
    return lambda at, size: os.pread(fd, size, at).ljust(size, b"\0")


def read_events(memory: Memory) -> list[DecodedRecord]:
    """Return the events that are still in the ring, oldest first, without those that were being written."""
    return read_ring(memory, layout.EVENTS)


def read_ring(memory: Memory, ring: Ring, limit: int | None = None) -> list[DecodedRecord]:
    """Return the records that are still in a ring, oldest first, without those that were being written.

    Args:
        limit: upper bound on their number, and on the cost; the latest are returned. None for all.
    """
    if read_header(memory)[0]:
        return []
    cursor = read_u64(memory, ring.cursor_at)
    num = min(cursor, ring.num, ring.num if limit is None else limit)
    start = (cursor - num + 1) & (ring.num - 1)
    found: list[DecodedRecord] = []
    for low, high in ((start, min(start + num, ring.num)), (0, start + num - ring.num)):
        if low < high:
            found += read_places(memory, ring, low, high)
    newest = max((record.seq for record in found), default=0)
    return sorted((one for one in found if one.seq + ring.num > newest), key=lambda record: record.seq)


def read_places(memory: Memory, ring: Ring, low: int, high: int) -> Iterator[DecodedRecord]:
    """Yield the records of some places of a ring: read twice, as the process may overwrite one while it is copied."""
    at, size = ring.at + low * RECORD_BYTES, (high - low) * RECORD_BYTES
    copies = (RECORD.iter_unpack(memory(at, size)) for _ in range(2))
    for place, (one, other) in enumerate(zip(*copies, strict=True), low):
        if one == other and one[-1] and one[-1] & (ring.num - 1) == place:
            yield DecodedRecord._make(one)


def read_u64(memory: Memory, at: int) -> int:
    """Return the number at an offset."""
    return int.from_bytes(memory(at, 8), "little") & _MOST


def read_header(memory: Memory) -> tuple[str, str]:
    """Return the problem and the incarnation."""
    magic, version, total, _, incarnation, _, _ = HEADER.unpack(memory(0, HEADER.size))
    if not any(magic):
        return "it has not recorded anything yet", ""
    if magic == layout.MAGIC and version != layout.VERSION:
        return f"its records have version {version}, expected {layout.VERSION}", ""
    if magic != layout.MAGIC or total != layout.TOTAL_BYTES:
        return "something has overwritten its records", ""
    return "", f"{incarnation:x}"


def read_open_calls(memory: Memory) -> Iterator[DecodedRecord]:
    """Yield the unanswered calls."""
    seen: set[int] = set()
    for start, num in ((layout.SENT_AT, layout.NUM_SENT), (layout.OLD_AT, layout.NUM_OLD)):
        table = memory(start, num * RECORD_BYTES)
        signs = table[_SIGN_AT::RECORD_BYTES]  # few of them say that a call is open: the others cost nothing
        place = signs.find(_NEGATIVE)
        while place >= 0:
            record = _stable(memory, start + place * RECORD_BYTES, table, place)
            if record is not None and record.dur == OPEN and 0 != record.seq == record.msg not in seen:
                seen.add(record.msg)
                yield record
            place = signs.find(_NEGATIVE, place + 1)


def read_table(memory: Memory, start: int, num: int) -> Iterator[DecodedRecord]:
    """Yield the complete records of a table."""
    table = memory(start, num * RECORD_BYTES)
    for place, seq in enumerate(memoryview(table).cast("Q")[7::8].tolist()):
        if seq:
            record = _stable(memory, start + place * RECORD_BYTES, table, place)
            if record is not None:
                yield record


def _stable(memory: Memory, at: int, table: bytes, place: int) -> DecodedRecord | None:
    """Return a record if a second read is the same: the process may have overwritten it during the first."""
    first, second = table[place * RECORD_BYTES : (place + 1) * RECORD_BYTES], memory(at, RECORD_BYTES)
    same = (first[:52], first[56:]) == (second[:52], second[56:])  # what a call does may change while it runs
    return DecodedRecord._make(RECORD.unpack(second)) if same else None


def read_names(memory: Memory) -> bytes:
    """Return the part of the table of names that is in use."""
    used = read_u64(memory, layout.NAMES_AT)  # with the number itself
    return memory(layout.NAMES_AT, min(max(used, 8), layout.NAMES_BYTES))


def read_waits(memory: Memory) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of the calls of each wait; the first is below 0 if it is not for calls."""
    words = memoryview(memory(layout.WAITS_AT, layout.NUM_WAITS * layout.WAIT_BYTES)).cast("q")
    for first, last in zip(words[0::2].tolist(), words[1::2].tolist(), strict=True):
        if first:
            yield first, last
