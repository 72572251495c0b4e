"""Layout of the memory that a process records into: version 3, described in docs/telemetry.md.

A record is 64 bytes, little-endian:

    u64 t       CLOCK_MONOTONIC in nanoseconds, when it began
    u16 kind    `RecordKind`
    u16 flags   `FAILED`
    u32 actor   whose doing it is: a place in the actors' table plus 1; 0 for the program, or for the process
    u32 name    an entry of the names: endpoint, mesh or cause; 0 for none
    u32 peer    an entry of the names: the process at the other end; 0 for none, and for the many of a cast
    u64 msg     number of the call among those of its caller, with the bit `CAST` of one that goes through the agents'
                tree to many, which is counted apart; 0 for one without an answer; of an actor or a mesh its number
    u64 bytes   size of the arguments; of an actor its rank
    i64 dur     nanoseconds; `OPEN` while it goes on
    u64 value   of a call that was sent: number of the called actor; of one that was handled, in the low half: for how
                many microseconds it had waited here, in the high half: size of the answer; both end at 2**32 - 1;
                of a proc its rank
    u64 seq     not 0 in a record that is whole

`seq` is last because it is written last: `struct.pack_into` clears the record and then fills in its fields in order,
and a process may be killed between any two of them.
"""

from __future__ import annotations

import enum
import struct

__all__ = [
    "ACTORS_AT",
    "BUCKET_BITS",
    "CAST",
    "COUNTER",
    "COUNTERS_AT",
    "EVENTS_AT",
    "FAILED",
    "HALF",
    "HEADER",
    "MAGIC",
    "NAMES_AT",
    "NAMES_BYTES",
    "NUMBER",
    "NUM_ACTORS",
    "NUM_BUCKETS",
    "NUM_COUNTERS",
    "NUM_EVENTS",
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
    "TOTAL_BYTES",
    "VERSION",
    "WAITS_AT",
    "WAIT_BYTES",
    "RecordKind",
]

MAGIC = b"MHPCTELE"
VERSION = 3

HEADER = struct.Struct("<8sIIQQQQ")
"""Magic, version, bytes of it all, process id, incarnation, CLOCK_MONOTONIC and CLOCK_REALTIME at the start, in ns."""

REFUSED = struct.Struct("<Q")
REFUSED_AT = HEADER.size
"""How many connections the process has refused because they had no proof."""

RECORD = struct.Struct("<QHHIIIQQqQQ")
RECORD_BYTES = RECORD.size

NUMBER = (1 << 63) - 1
"""The bits of a call's number that count; who numbers calls may use the last one for a mark of its own."""

CAST = 1 << 62
"""In the number of a call: it is a cast, whose numbers are counted apart from those of direct calls."""

HALF = (1 << 32) - 1
"""The low half of a value."""

OPEN = -1
FAILED = 1


class RecordKind(enum.IntEnum):
    """What a record tells."""

    SENT = 1  # a call of this process
    HANDLED = 2  # a call by another, or by this one itself
    ACTOR_SPAWNED = 3  # its constructor runs
    ACTOR_READY = 4
    ACTOR_STOPPED = 5  # name = cause
    ACTOR_FAILED = 6  # name = cause
    MESH_SPAWNED = 7  # by this process; name = of the mesh, msg = its number, value = how many
    MESH_STOPPED = 8  # likewise
    PROC_STARTING = 9  # agents only: msg = number of its mesh, value = its rank
    PROC_READY = 10  # likewise; peer = the proc
    PROC_ENDED = 11  # likewise; name = cause


# Powers of two: a third of a second of a proc that handles 100 000 calls/s, minutes of others.
NUM_SENT = 16384
NUM_EVENTS = 32768
# Calls that were sent that long ago and have no answer yet: they are moved here before they are overwritten.
NUM_OLD = 1024
# What goes on at once. What finds no place is not seen, and works as well.
NUM_RUNNING = 1024
NUM_ACTORS = 1024
NUM_WAITS = 1024
WAIT_BYTES = 16
# By number of the name. Endpoints get theirs first; of later names nothing is counted.
NUM_COUNTERS = 1024
# Times are counted by powers of two from 256 ns, shorter than any endpoint takes, to 275 s. The first bucket holds
# what is shorter, the last what is longer.
NUM_BUCKETS = 32
BUCKET_BITS = 8
COUNTER = struct.Struct(f"<6Q{NUM_BUCKETS}Q{NUM_BUCKETS}Q")
"""Calls handled, those that raised; nanoseconds that all ran, and the longest; nanoseconds that all had waited, and the
longest; how many ran for how long; how many had waited for how long."""
NAMES_BYTES = 1 << 20

SENT_AT = 4096
OLD_AT = SENT_AT + NUM_SENT * RECORD_BYTES
EVENTS_AT = OLD_AT + NUM_OLD * RECORD_BYTES
COUNTERS_AT = EVENTS_AT + NUM_EVENTS * RECORD_BYTES
# Of the next three tables one place more than is read: it takes what finds no place, so that nobody has to look.
RUNNING_AT = COUNTERS_AT + NUM_COUNTERS * COUNTER.size
ACTORS_AT = RUNNING_AT + (NUM_RUNNING + 1) * RECORD_BYTES
WAITS_AT = ACTORS_AT + (NUM_ACTORS + 1) * RECORD_BYTES
NAMES_AT = WAITS_AT + (NUM_WAITS + 1) * WAIT_BYTES
"""Begins with the bytes in use, a u64; then entries: their length, a u32, and JSON."""
TOTAL_BYTES = NAMES_AT + NAMES_BYTES
