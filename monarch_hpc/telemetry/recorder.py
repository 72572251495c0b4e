"""Records the calls, waits and states of a process, in memory that its agent holds too: a kill loses nothing."""

from __future__ import annotations

import mmap
import os
from _thread import RLock
from collections import deque
from collections.abc import Callable
from time import CLOCK_REALTIME, clock_gettime_ns
from typing import TYPE_CHECKING

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.telemetry import layout, pen
from monarch_hpc.telemetry.layout import (
    HEADER,
    LENT,
    NUMBER,
    OPEN,
    RECORD,
    RECORD_BYTES,
    REFUSED,
    REFUSED_AT,
    RecordKind,
)
from monarch_hpc.telemetry.memory import disown_memory, make_memory, map_memory
from monarch_hpc.telemetry.names import Names
from monarch_hpc.telemetry.pen import Handling
from monarch_hpc.telemetry.rings import Rings

if TYPE_CHECKING:
    from monarch_hpc.telemetry import pen as _fastest
else:
    try:
        from monarch_hpc.telemetry import _pen as _fastest
    except ImportError:  # built without a compiler
        from monarch_hpc.telemetry import pen as _fastest

__all__ = ["ActorRecord", "Recorder"]

# Offsets in a record, in words of 8 bytes.
_MSG, _DUR, _SEQ = 3, 5, 7

_pack = RECORD.pack_into
_now = monotonic_ns


class Recorder:
    """Writes the records of one process; for any thread.

    `sent`, `answered`, `wait`, `waited` and the methods of `Handling` are on the path of every call, so they take plain
    numbers.

    Args:
        fd: a descriptor from `make_memory`, which is closed; None creates memory that only this process can read.
        plain: do not use the extension.

    Attributes:
        sent: records a call: its number (0 without an answer), mark of the calling actor, name numbers of the endpoint
            and of the called process (for a cast, the number of its receivers), size in bytes, number of the called
            actor.
        answered: records that the call with that number is answered, or never will be.
        failed: likewise, that it is answered with an exception.
        metric: records a value: mark of the actor, numbers of the names of the metric and of its tags, step or
            `layout.NO_STEP`, and the value. Raises OverflowError if the step does not fit into 64 bits.
        known_metric: likewise, by the name of the metric, the dict of its tags, and a step or None. False if nothing is
            recorded: name or tags have no number yet, or an argument is not what it should be.
        rings: records spans and transfers.
        words: the memory, in words of 8 bytes.
        wait: records that a thread or task waits for the calls numbered from first to last; returns a token for
            `waited`.
        waited: records the end of that wait.
    """

    def __init__(self, fd: int | None = None, incarnation: int = 0, *, plain: bool = False) -> None:
        fd = make_memory("recorder") if fd is None else fd
        try:
            self.memory = map_memory(fd)
        finally:
            os.close(fd)
        self.names = Names(self.memory)
        words = memoryview(self.memory).cast("q")
        self._library = pen if plain else _fastest
        self._pen = self._library.Pen(
            self.memory,
            (layout.SENT_AT, layout.NUM_SENT),
            layout.EVENTS,
            (layout.RUNNING_AT, layout.NUM_RUNNING + 1),
            (layout.COUNTERS_AT, layout.NUM_COUNTERS),
            layout.METRICS,
            *_old_calls(self.memory, words),
            self.names.metrics,
            self.names.labels,
        )
        self.words = words
        self._changing = RLock()
        self._moved: dict[tuple[int, int, bool], int] = {}  # place, by name numbers of path and peer, and direction
        self.sent = self._pen.sent
        self.answered = self._pen.answered
        self.failed = self._pen.failed
        self.metric = self._pen.metric
        self.known_metric = self._pen.known_metric
        self.rings = Rings(self.memory, words)
        self.wait, self.waited = _wait_table(words)
        self._running = list(range(layout.NUM_RUNNING))
        # The slot of the actor that ended first is reused first, so that ended actors stay visible for long.
        self._actors = deque(range(layout.NUM_ACTORS))
        self.open(incarnation)
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """In a forked child: stop recording, because the memory belongs to *parent*."""
        disown_memory(self.memory)

    def open(self, incarnation: int) -> None:
        """Write the header, which identifies the process."""
        HEADER.pack_into(
            self.memory,
            0,
            layout.MAGIC,
            layout.VERSION,
            layout.TOTAL_BYTES,
            os.getpid(),
            incarnation,
            _now(),
            max(clock_gettime_ns(CLOCK_REALTIME), 0),  # tests replace `time.time_ns`
        )

    def close(self) -> None:
        """Free the pages of the memory. Later records are lost; the mapping lives as long as the recorder."""
        self.memory.madvise(mmap.MADV_REMOVE)

    def refused(self, num_refused: int) -> None:
        """Record the total number of refused connections."""
        REFUSED.pack_into(self.memory, REFUSED_AT, num_refused)

    def wait_for(self, what: str, mark: int) -> int:
        """Record that the actor with that mark waits for something other than a call; otherwise like `wait`."""
        return self.wait(-self.names.text(what), mark)

    def change(
        self, kind: RecordKind, *, mark: int = 0, name: int = 0, peer: int = 0, msg: int = 0, value: int = 0
    ) -> None:
        """Record a change of state; see `layout` for the meaning of the numbers."""
        index = self._pen.event()
        at = layout.EVENTS.at + (index & (layout.EVENTS.num - 1)) * RECORD_BYTES
        _pack(self.memory, at, _now(), kind, 0, mark, name, peer, msg, 0, 0, value, index)

    def lent(self, mark: int, num: int, num_bytes: int) -> None:
        """Record that the actor with that mark lends so many arrays more to others; below 0: fewer."""
        word = (layout.LENT_AT + mark * LENT.size) >> 3
        with self._changing:
            self.words[word] += num
            self.words[word + 1] += num_bytes

    def moved(self, path: str, peer: int, num_bytes: int, duration_ns: int, *, write: bool, failed: bool) -> None:
        """Record a transfer of memory that has ended; *peer* is a name number."""
        name = self.names.text(path)
        num = 0 if failed else self._count_moved(name, peer, num_bytes, duration_ns, write=write)
        flags = layout.FAILED if failed else 0
        self.rings.transfer(flags, name, peer, num, num_bytes, duration_ns, write=write)

    def _count_moved(self, name: int, peer: int, num_bytes: int, duration_ns: int, *, write: bool) -> int:
        """Update the table of transfers; return how many there were like this one, 0 if the table is full."""
        key = name, peer, write
        with self._changing:
            place = self._moved.setdefault(key, len(self._moved))
            if place >= layout.NUM_MOVED:
                del self._moved[key]
                return 0
            at = layout.MOVED_AT + place * RECORD_BYTES
            num = self.words[(at >> 3) + _MSG] + 1
            _pack(
                self.memory,
                at,
                *(_now(), RecordKind.MOVED, 0, 0, name, peer, num, num_bytes, duration_ns, int(write), num),
            )
            return num

    def actor(self, number: int, name: str, rank: int) -> ActorRecord:
        """Return the record of a new actor, whose constructor is about to run."""
        try:
            place = self._actors.popleft()
        except IndexError:
            place = layout.NUM_ACTORS
        return ActorRecord(self, place, self._actors, number, self.names.text(name), rank)

    def handling(self, mark: int) -> Handling:
        """Return a slot for consecutive calls of the actor with that mark; free it with `release`."""
        try:
            place = self._running.pop()
        except IndexError:
            place = layout.NUM_RUNNING
        handling: Handling = self._library.Handling(self._pen, place, mark)
        return handling

    def release(self, handling: Handling) -> None:
        """Free the slot of a `Handling`."""
        handling.end(0)
        if handling.place < layout.NUM_RUNNING:
            self._running.append(handling.place)


class ActorRecord:
    """The record of one actor's state.

    Attributes:
        mark: identifies the actor in the records of this process; 0 if the table of actors was full.
    """

    __slots__ = ("_name", "_number", "_place", "_places", "_rank", "_recorder", "mark")

    def __init__(self, recorder: Recorder, place: int, places: deque[int], number: int, name: int, rank: int) -> None:
        self._recorder = recorder
        self._place = place
        self._places = places
        self._number = number
        self._name = name
        self._rank = rank
        self.mark = place + 1 if place < layout.NUM_ACTORS else 0
        self.change(RecordKind.ACTOR_SPAWNED)

    def change(self, kind: RecordKind, cause: str = "") -> None:
        """Record a new state. A final state frees the slot, whose content stays until the slot is reused."""
        recorder = self._recorder
        why = recorder.names.text(cause) if cause else 0
        at = layout.ACTORS_AT + self._place * RECORD_BYTES
        _pack(recorder.memory, at, _now(), kind, 0, self.mark, self._name, why, self._number, self._rank, 0, 0, 1)
        recorder.change(kind, mark=self.mark, name=why, msg=self._number)
        if kind in (RecordKind.ACTOR_STOPPED, RecordKind.ACTOR_FAILED) and self.mark:
            self._places.append(self._place)


def _old_calls(memory: mmap.mmap, words: memoryview[int]) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """The table of old unanswered calls, moved here when a later call needs their slot; return `keep` and `forget`."""
    sent = layout.SENT_AT >> 3
    old: dict[int, int] = {}  # call number -> slot
    places = list(range(layout.NUM_OLD))
    lock = RLock()

    def keep(sent_place: int) -> None:
        word = sent + sent_place * (RECORD_BYTES >> 3)
        msg = words[word + _SEQ]
        with lock:
            place = places.pop() if places else old.pop(next(iter(old)))
            old[msg] = place
            source = layout.SENT_AT + sent_place * RECORD_BYTES
            target = layout.OLD_AT + place * RECORD_BYTES
            words[(target >> 3) + _SEQ] = 0
            memory[target : target + RECORD_BYTES - 8] = memory[source : source + RECORD_BYTES - 8]
            words[(target >> 3) + _SEQ] = msg
        if words[word + _DUR] != OPEN:  # answered meanwhile
            forget(msg)

    def forget(msg: int) -> None:
        if msg in old:
            with lock:
                place = old.pop(msg, None)
                if place is not None:
                    words[((layout.OLD_AT + place * RECORD_BYTES) >> 3) + _SEQ] = 0
                    places.append(place)

    return keep, forget


def _wait_table(words: memoryview[int]) -> tuple[Callable[[int, int], int], Callable[[int], None]]:
    """The table of waits, two words per slot; return `wait` and `waited`."""
    start = layout.WAITS_AT >> 3
    scratch = start + 2 * layout.NUM_WAITS
    places = list(range(start, scratch, 2))

    def wait(first: int, last: int) -> int:
        try:
            place = places.pop()
        except IndexError:
            place = scratch
        words[place + 1] = last & NUMBER
        words[place] = first & NUMBER if first > 0 else first
        return place

    def waited(place: int) -> None:
        words[place] = 0
        if place != scratch:
            places.append(place)

    return wait, waited
