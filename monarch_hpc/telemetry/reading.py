"""Reads the records of a process, even while it writes, is stopped, or is dead.

The process may write anything there, on purpose or by a stray pointer: no number is used as an index before it is
checked against the size of the table, and any bytes give a result.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import (
    CAST,
    COUNTER,
    FAILED,
    HALF,
    HEADER,
    LENT,
    NUM_BUCKETS,
    OPEN,
    RECORD,
    RECORD_BYTES,
    RecordKind,
    Ring,
)
from monarch_hpc.telemetry.names import Name, parse_names
from monarch_hpc.wire.tables.calls import ActorSeen, EndpointCount, RunningCall, Scene, SentCall, Wait
from monarch_hpc.wire.tables.memory import LentMemory, MemoryUse, Moved

__all__ = [
    "DecodedRecord",
    "Memory",
    "memory_of",
    "read_events",
    "read_header",
    "read_memory_use",
    "read_places",
    "read_ring",
    "read_scene",
    "read_table",
    "read_u64",
    "read_waits",
]

Memory = Callable[[int, int], bytes]
"""Takes offset and size; returns exactly that many bytes."""

MAX_SENT = 256
"""Upper bound on the unanswered calls reported for one process: a stuck actor has few, a flood any number."""

MAX_CALLS_OF_WAIT = 64
"""Upper bound on the calls reported for one wait, which may be for all ranks of a mesh."""

_MAX_RANGE = 4096
"""Upper bound on the calls examined for one wait, to limit the cost to the agent."""

MAX_RUNNING = 256
MAX_ENDPOINTS = 64
MAX_ENDED_ACTORS = 64

_STATES = {
    RecordKind.ACTOR_SPAWNED: "spawned",
    RecordKind.ACTOR_READY: "ready",
    RecordKind.ACTOR_STOPPED: "stopped",
    RecordKind.ACTOR_FAILED: "failed",
}
_NS = 1e-9
_MOST = (1 << 63) - 1
"""Largest number reported: JSON readers have no u64."""
_F64 = struct.Struct("<d")


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


def read_scene(memory: Memory, now_ns: int | None = None) -> Scene:
    """Return the state of the process; raises nothing.

    Args:
        now_ns: CLOCK_MONOTONIC of this host; None reads the clock.
    """
    now_ns = monotonic_ns() if now_ns is None else now_ns
    problem, incarnation = read_header(memory)
    if problem:
        return Scene(problem, "", [], [], [], [], 0, [])
    look = parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))

    def age_s(t: int) -> float:
        return round(max(now_ns - t, 0) * _NS, 6)

    by_mark = {record.actor: record for record in _actors(memory)}

    def actor(mark: int) -> str:
        return f"{by_mark[mark].msg:x}" if mark in by_mark else "0"

    open_calls = sorted(_open_calls(memory), key=lambda record: record.t)
    by_number = {record.msg: record for record in open_calls}
    order = sorted(by_number)
    waits: list[Wait] = []
    awaited: set[int] = set()
    for first, last in read_waits(memory):
        if first < 0:
            waits.append(Wait(actor(last), [], 0, _part(look(-first), "text", 1), 0.0))
            continue
        calls = _range(by_number, order, first, last)
        if calls:
            oldest = by_number[calls[0]]
            waits.append(Wait(actor(oldest.actor), calls[:MAX_CALLS_OF_WAIT], len(calls), "", age_s(oldest.t)))
            awaited.update(calls[:MAX_CALLS_OF_WAIT])
    reported = [record for record in open_calls if record.msg in awaited]
    reported += [record for record in open_calls if record.msg not in awaited][: max(MAX_SENT - len(reported), 0)]
    running = sorted(_running(memory), key=lambda record: record.t)[:MAX_RUNNING]
    return Scene(
        "",
        incarnation,
        _seen(by_mark.values(), look, age_s),
        [_running_call(record, actor, look, age_s) for record in running],
        waits,
        [_sent_call(record, actor, look, age_s) for record in reported],
        len(open_calls),
        _endpoints(memory, look),
    )


def read_memory_use(memory: Memory, now_ns: int | None = None) -> MemoryUse:
    """Return what the process lends, and its last transfers; otherwise as `read_scene`."""
    now_ns = monotonic_ns() if now_ns is None else now_ns
    problem, _incarnation = read_header(memory)
    if problem:
        return MemoryUse(problem, [], [])
    look = parse_names(memory(layout.NAMES_AT, layout.NAMES_BYTES))
    by_mark = {record.actor: record for record in _actors(memory)}
    lent = []
    table = memory(layout.LENT_AT, (layout.NUM_ACTORS + 1) * LENT.size)
    for mark, (num, num_bytes) in enumerate(LENT.iter_unpack(table)):
        if num:
            actor = by_mark.get(mark)
            name = "" if actor is None else _part(look(actor.name), "text", 1)
            lent.append(LentMemory(name, 0 if actor is None else actor.num_bytes, num, num_bytes))
    moved = []
    for record in read_table(memory, layout.MOVED_AT, layout.NUM_MOVED):
        if record.kind == RecordKind.MOVED:
            peer = look(record.peer)
            took_s, age_s = (round(max(ns, 0) * _NS, 9) for ns in (record.dur, now_ns - record.t))
            who = _part(peer, "proc", 1), _part(peer, "proc", 2), _part(look(record.name), "text", 1)
            moved.append(Moved(*who, record.value == 1, record.msg, record.num_bytes, took_s, age_s))
    return MemoryUse("", lent, sorted(moved, key=lambda one: one.age_s))


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


def _open_calls(memory: Memory) -> Iterator[DecodedRecord]:
    """Yield the unanswered calls."""
    seen: set[int] = set()
    for start, num in ((layout.SENT_AT, layout.NUM_SENT), (layout.OLD_AT, layout.NUM_OLD)):
        table = memory(start, num * RECORD_BYTES)
        words = memoryview(table).cast("q")
        durs, seqs = words[5::8].tolist(), words[7::8].tolist()
        for place, (dur, seq) in enumerate(zip(durs, seqs, strict=True)):
            if dur == OPEN and seq:
                record = _stable(memory, start + place * RECORD_BYTES, table, place)
                if record is not None and record.msg == record.seq and record.msg not in seen:
                    seen.add(record.msg)
                    yield record


def _running(memory: Memory) -> Iterator[DecodedRecord]:
    for record in read_table(memory, layout.RUNNING_AT, layout.NUM_RUNNING):
        if record.kind == RecordKind.HANDLED and record.dur == OPEN:
            yield record


def _actors(memory: Memory) -> Iterator[DecodedRecord]:
    for record in read_table(memory, layout.ACTORS_AT, layout.NUM_ACTORS):
        if record.kind in _STATES:
            yield record


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


def read_waits(memory: Memory) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of the calls of each wait; the first is below 0 if it is not for calls."""
    words = memoryview(memory(layout.WAITS_AT, layout.NUM_WAITS * layout.WAIT_BYTES)).cast("q")
    for first, last in zip(words[0::2].tolist(), words[1::2].tolist(), strict=True):
        if first:
            yield first, last


def _range(by_number: dict[int, DecodedRecord], order: list[int], first: int, last: int) -> list[int]:
    """Return the open calls of one mesh call, in order: from *first* to *last*, without those of other threads."""
    if last == first:
        return [first] if first in by_number else []
    numbers = order[bisect_left(order, first) : bisect_right(order, last)][:_MAX_RANGE]
    if not numbers:
        return []
    like = by_number[numbers[0]]
    return [n for n in numbers if (by_number[n].actor, by_number[n].name) == (like.actor, like.name)]


def _endpoints(memory: Memory, look: Callable[[int], Name]) -> list[EndpointCount]:
    table = memory(layout.COUNTERS_AT, layout.NUM_COUNTERS * COUNTER.size)
    used = enumerate(memoryview(table).cast("Q")[:: COUNTER.size >> 3].tolist())
    counts = [(look(number), COUNTER.unpack_from(table, number * COUNTER.size)) for number, num in used if num]
    counts.sort(key=lambda named: -named[1][2])
    return [_endpoint(name, *counted) for name, counted in counts[:MAX_ENDPOINTS]]


def _endpoint(
    name: Name, num: int, failed: int, total: int, longest: int, queued_total: int, queued_longest: int, *buckets: int
) -> EndpointCount:
    return EndpointCount(
        _part(name, "endpoint", 1),
        _part(name, "endpoint", 2),
        num,
        failed,
        round(total * _NS, 9),
        round(longest * _NS, 9),
        _without_end(buckets[:NUM_BUCKETS]),
        round(queued_total * _NS, 9),
        round(queued_longest * _NS, 9),
        _without_end(buckets[NUM_BUCKETS:]),
    )


def _without_end(counts: Sequence[int]) -> list[int]:
    num = max((index for index, count in enumerate(counts, 1) if count), default=0)
    return list(counts[:num])


# ---- in words ----


def _part(name: Name, kind: str, index: int) -> str:
    return name[index] if name and name[0] == kind and index < len(name) else ""


def _seen(
    records: Iterable[DecodedRecord], look: Callable[[int], Name], age_s: Callable[[int], float]
) -> list[ActorSeen]:
    found = [
        ActorSeen(
            f"{record.msg:x}",
            _part(look(record.name), "text", 1),
            record.num_bytes,
            _STATES[RecordKind(record.kind)],
            _part(look(record.peer), "text", 1),
            age_s(record.t),
        )
        for record in records
    ]
    ended = sorted((one for one in found if one.state in ("stopped", "failed")), key=lambda one: one.age_s)
    return [one for one in found if one.state in ("spawned", "ready")] + ended[:MAX_ENDED_ACTORS]


def _running_call(
    record: DecodedRecord, actor: Callable[[int], str], look: Callable[[int], Name], age_s: Callable[[int], float]
) -> RunningCall:
    caller = look(record.peer)
    return RunningCall(
        actor(record.actor),
        _part(look(record.name), "endpoint", 2),
        record.msg,
        _part(caller, "proc", 1),
        _part(caller, "proc", 2),
        age_s(record.t),
        record.queued_us * 1e-6,
        _part(look(record.value >> 32), "text", 1),
    )


def _sent_call(
    record: DecodedRecord, actor: Callable[[int], str], look: Callable[[int], Name], age_s: Callable[[int], float]
) -> SentCall:
    target, endpoint = look(0 if record.msg & CAST else record.peer), look(record.name)
    return SentCall(
        record.msg,
        actor(record.actor),
        record.num_receivers,
        _part(target, "proc", 1),
        _part(target, "proc", 2),
        f"{record.value:x}",
        _part(endpoint, "endpoint", 1),
        _part(endpoint, "endpoint", 2),
        age_s(record.t),
    )
