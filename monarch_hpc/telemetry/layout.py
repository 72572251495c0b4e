"""Layout of the memory that a process records into: version 5, described in docs/telemetry.md.

A record is 64 bytes, little-endian:

    u64 t       start, in nanoseconds of CLOCK_MONOTONIC
    u16 kind    `RecordKind`
    u16 flags   `FAILED`
    u32 actor   acting actor: its slot in the actors' table plus 1; 0 for the program, or for the process
    u32 name    number in the name table: endpoint, mesh or cause; 0 for none
    u32 peer    number in the name table: the process at the other end; 0 for none. Sent cast: number of its receivers.
                Metric, span: its tags
    u64 msg     call: its number at the caller, with the bit `CAST` for a cast, which are numbered separately; 0 for a
                call without an answer. Actor or mesh: its number
                Span: its number. Transfer: how many there were with that peer, by that path and in that direction
    u64 bytes   call: size of the arguments with their buffers. Actor: its rank. Span: number of the span around it
    i64 dur     nanoseconds; `OPEN` while the call or the span runs. Metric: its step, or `NO_STEP`
    u64 value   sent call: number of the called actor. Handled call: low half, microseconds queued in this process; high
                half, size of the answer, or for a call that raised, number of the name of the exception, or while it
                runs, number of the text that says what it does; all saturate at 2**32 - 1. Proc: its rank. Metric:
                f64. Span: its thread's id. Transfer: 1 for a write
    u64 seq     not 0 in a complete record; in a ring, the record's number

`seq` comes last because it is written last: `struct.pack_into` clears the record and then writes its fields in order,
and a process may be killed between any two of them.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

__all__ = [
    "ACTORS_AT",
    "BUCKET_BITS",
    "CAST",
    "COUNTER",
    "COUNTERS_AT",
    "CURSORS_AT",
    "EVENTS",
    "FAILED",
    "HALF",
    "HEADER",
    "LENT",
    "LENT_AT",
    "MAGIC",
    "METRIC",
    "METRICS",
    "MOVED_AT",
    "NAMES_AT",
    "NAMES_BYTES",
    "NO_STEP",
    "NUMBER",
    "NUM_ACTORS",
    "NUM_BUCKETS",
    "NUM_COUNTERS",
    "NUM_MOVED",
    "NUM_OLD",
    "NUM_RUNNING",
    "NUM_SENT",
    "NUM_WAITS",
    "OLD_AT",
    "OPEN",
    "RECORD",
    "RECORD_BYTES",
    "REFUSED",
    "REFUSED_AT",
    "RUNNING_AT",
    "SENT_AT",
    "SPANS",
    "TOTAL_BYTES",
    "TRANSFERS",
    "UNNAMED_AT",
    "VERSION",
    "WAITS_AT",
    "WAIT_BYTES",
    "RecordKind",
    "Ring",
]

MAGIC = b"MHPCTELE"
VERSION = 5

HEADER = struct.Struct("<8sIIQQQQ")
"""Magic, version, total size in bytes, pid, incarnation, CLOCK_MONOTONIC and CLOCK_REALTIME at the start, in ns."""

REFUSED = struct.Struct("<Q")
REFUSED_AT = HEADER.size
"""Number of connections that the process has refused because they did not prove the key."""

CURSORS_AT = REFUSED_AT + REFUSED.size
"""One u64 for each ring: number of records written into it so far."""
_NUM_RINGS = 4

UNNAMED_AT = CURSORS_AT + 8 * _NUM_RINGS
"""u64: names for which the name table had no room."""

RECORD = struct.Struct("<QHHIIIQQqQQ")
RECORD_BYTES = RECORD.size

METRIC = struct.Struct("<QHHIIIQQqdQ")
"""A record whose value is an f64."""

NUMBER = (1 << 63) - 1
"""Mask of the significant bits of a call number; the highest bit is free for flags of the caller."""

CAST = 1 << 62
"""Bit of a call number: the call is a cast. Casts and direct calls are numbered separately."""

HALF = (1 << 32) - 1
"""Mask of the low half of a value."""

OPEN = -1
FAILED = 1

NO_STEP = -(1 << 63)
"""Stands for the step of a metric that has none."""


class RecordKind(enum.IntEnum):
    """Kinds of records."""

    SENT = 1  # a call sent by this process
    HANDLED = 2  # a call handled by this process
    ACTOR_SPAWNED = 3  # the constructor runs
    ACTOR_READY = 4
    ACTOR_STOPPED = 5  # name = cause
    ACTOR_FAILED = 6  # name = cause
    MESH_SPAWNED = 7  # by this process; name = name of the mesh, msg = its number, value = its size
    MESH_STOPPED = 8  # likewise
    PROC_STARTING = 9  # agents only; msg = number of its mesh, value = its rank
    PROC_READY = 10  # likewise; peer = the proc
    PROC_ENDED = 11  # likewise; name = cause
    MOVED = 12  # a transfer of memory; name = path. In the table of transfers, t is its end
    METRIC = 13
    SPAN = 14


class Ring(NamedTuple):
    """A ring of records, in which the record number *seq* is at the place ``seq mod num``, a power of two.

    Attributes:
        at: offset of the place 0.
        cursor_at: offset of the number of records written so far, which is the number of the latest.
    """

    at: int
    num: int
    cursor_at: int


# Powers of two: a third of a second of history at 100 000 calls/s, minutes at usual rates.
NUM_SENT = 16384
_NUM_EVENTS = 32768
# Unanswered calls that are older than the table of sent calls holds: moved here before they are overwritten.
NUM_OLD = 1024
# Concurrent calls, actors and waits. Without a free slot they work, but are not recorded.
NUM_RUNNING = 1024
NUM_ACTORS = 1024
NUM_WAITS = 1024
WAIT_BYTES = 16
# Indexed by number of the name. Names beyond the table have no counters.
NUM_COUNTERS = 1024
# Power-of-two buckets from 256 ns, shorter than any endpoint takes, to 275 s. The first bucket also holds shorter
# durations, the last longer ones.
NUM_BUCKETS = 32
BUCKET_BITS = 8
COUNTER = struct.Struct(f"<6Q{NUM_BUCKETS}Q{NUM_BUCKETS}Q")
"""Number of calls handled, number of calls that raised; total and longest run time, total and longest queueing time, in
ns; histogram of run times; histogram of queueing times."""
NAMES_BYTES = 1 << 20

SENT_AT = 4096
OLD_AT = SENT_AT + NUM_SENT * RECORD_BYTES
EVENTS = Ring(OLD_AT + NUM_OLD * RECORD_BYTES, _NUM_EVENTS, CURSORS_AT)
COUNTERS_AT = EVENTS.at + EVENTS.num * RECORD_BYTES
# The next three tables have an overflow slot that is never read, so that writers need no check.
RUNNING_AT = COUNTERS_AT + NUM_COUNTERS * COUNTER.size
ACTORS_AT = RUNNING_AT + (NUM_RUNNING + 1) * RECORD_BYTES
WAITS_AT = ACTORS_AT + (NUM_ACTORS + 1) * RECORD_BYTES
NAMES_AT = WAITS_AT + (NUM_WAITS + 1) * WAIT_BYTES
"""The name table: bytes in use as u64, then entries of length as u32 and JSON."""
LENT = struct.Struct("<QQ")
LENT_AT = NAMES_AT + NAMES_BYTES
"""Number of arrays that an actor lends to others, and their bytes; by its place in the table of actors plus 1, the
program first."""
# One for each peer, path and direction.
NUM_MOVED = 256
MOVED_AT = LENT_AT + (NUM_ACTORS + 1) * LENT.size
# Rings apart from that of the calls, which a flood of calls overwrites: a thousand steps with a dozen metrics each.
METRICS = Ring(MOVED_AT + NUM_MOVED * RECORD_BYTES, 16384, CURSORS_AT + 8)
SPANS = Ring(METRICS.at + METRICS.num * RECORD_BYTES, 8192, CURSORS_AT + 16)
TRANSFERS = Ring(SPANS.at + SPANS.num * RECORD_BYTES, 4096, CURSORS_AT + 24)
TOTAL_BYTES = TRANSFERS.at + TRANSFERS.num * RECORD_BYTES
