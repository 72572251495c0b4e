"""Reads from records what a process does: its calls, actors and waits, and the memory that it lends and moves."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import CAST, COUNTER, LENT, NUM_BUCKETS, OPEN, RecordKind
from monarch_hpc.telemetry.names import Name, parse_names
from monarch_hpc.telemetry.reading import (
    DecodedRecord,
    Memory,
    read_header,
    read_names,
    read_open_calls,
    read_table,
    read_waits,
)
from monarch_hpc.wire.tables.calls import ActorSeen, EndpointCount, RunningCall, Scene, SentCall, Wait
from monarch_hpc.wire.tables.memory import LentMemory, MemoryUse, Moved

__all__ = ["read_memory_use", "read_scene"]

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


def read_scene(memory: Memory, now_ns: int | None = None) -> Scene:
    """Return the state of the process; raises nothing.

    Args:
        now_ns: CLOCK_MONOTONIC of this host; None reads the clock.
    """
    now_ns = monotonic_ns() if now_ns is None else now_ns
    problem, incarnation = read_header(memory)
    if problem:
        return Scene(problem, "", [], [], [], [], 0, [])
    look = parse_names(read_names(memory))

    def age_s(t: int) -> float:
        return round(max(now_ns - t, 0) * _NS, 6)

    by_mark = {record.actor: record for record in _actors(memory)}

    def actor(mark: int) -> str:
        return f"{by_mark[mark].msg:x}" if mark in by_mark else "0"

    open_calls = sorted(read_open_calls(memory), key=lambda record: record.t)
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
    look = parse_names(read_names(memory))
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


def _running(memory: Memory) -> Iterator[DecodedRecord]:
    for record in read_table(memory, layout.RUNNING_AT, layout.NUM_RUNNING):
        if record.kind == RecordKind.HANDLED and record.dur == OPEN:
            yield record


def _actors(memory: Memory) -> Iterator[DecodedRecord]:
    for record in read_table(memory, layout.ACTORS_AT, layout.NUM_ACTORS):
        if record.kind in _STATES:
            yield record


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
