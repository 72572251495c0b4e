"""Writes down what a process does, in memory that its agent holds too: nothing is lost when it is killed."""

from __future__ import annotations

import _thread
import mmap
import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch_hpc.core.fork import watch_forks
from monarch_hpc.telemetry import layout, pen
from monarch_hpc.telemetry.layout import HEADER, NUMBER, OPEN, RECORD, RECORD_BYTES, REFUSED, REFUSED_AT, RecordKind
from monarch_hpc.telemetry.memory import disown_memory, make_memory, map_memory
from monarch_hpc.telemetry.names import Names
from monarch_hpc.telemetry.pen import Handling

if TYPE_CHECKING:
    from monarch_hpc.telemetry import pen as _fastest
else:
    try:
        from monarch_hpc.telemetry import _pen as _fastest
    except ImportError:  # there was no compiler
        from monarch_hpc.telemetry import pen as _fastest

__all__ = ["ActorRecord", "Recorder"]

# In words of 8 bytes from the start of a record.
_DUR, _SEQ = 5, 7

_pack = RECORD.pack_into
_now = time.monotonic_ns


class Recorder:
    """The pen of one process, and what it writes with it; for any thread.

    `sent`, `answered`, `wait`, `waited` and the methods of `Handling` are on the way of every call: they take numbers.

    Args:
        fd: what `make_memory` gave, which is closed; None makes one that only this process can read.
        plain: do not use the extension.

    Attributes:
        sent: writes down a call: its number (0: no answer comes), the calling actor's mark, the names of the endpoint
            and of the called process, bytes, number of the called actor.
        answered: the call with that number has its answer, or will never have one.
        wait: a thread or a task now waits for the answers to the calls with numbers from first to last; returns what
            `waited` takes.
        waited: it does not wait any more.
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
            (layout.EVENTS_AT, layout.NUM_EVENTS),
            (layout.RUNNING_AT, layout.NUM_RUNNING + 1),
            (layout.COUNTERS_AT, layout.NUM_COUNTERS),
            *_old_calls(self.memory, words),
        )
        self.sent = self._pen.sent
        self.answered = self._pen.answered
        self.wait, self.waited = _wait_table(words)
        self._running = list(range(layout.NUM_RUNNING))
        # The one that ended first is taken first: what became of the others can be seen for longer.
        self._actors = deque(range(layout.NUM_ACTORS))
        self.open(incarnation)
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """The memory is the *parent*'s: what this process still does is written nowhere."""
        disown_memory(self.memory)

    def open(self, incarnation: int) -> None:
        """Say who writes here."""
        HEADER.pack_into(
            self.memory,
            0,
            layout.MAGIC,
            layout.VERSION,
            layout.TOTAL_BYTES,
            os.getpid(),
            incarnation,
            _now(),
            time.time_ns(),
        )

    def close(self) -> None:
        """Give the memory back. What is still written is forgotten; the place for it goes with the recorder."""
        self.memory.madvise(mmap.MADV_REMOVE)

    def refused(self, num_refused: int) -> None:
        """So many connections have been refused by now."""
        REFUSED.pack_into(self.memory, REFUSED_AT, num_refused)

    def wait_for(self, what: str, mark: int) -> int:
        """The actor with that mark now waits for something that is no call; otherwise as `wait`."""
        return self.wait(-self.names.text(what), mark)

    def change(
        self, kind: RecordKind, *, mark: int = 0, name: int = 0, peer: int = 0, msg: int = 0, value: int = 0
    ) -> None:
        """Write down a change of state; see `layout` for the meaning of the numbers."""
        index = self._pen.event()
        at = layout.EVENTS_AT + (index & (layout.NUM_EVENTS - 1)) * RECORD_BYTES
        _pack(self.memory, at, _now(), kind, 0, mark, name, peer, msg, 0, 0, value, index)

    def actor(self, number: int, name: str, rank: int) -> ActorRecord:
        """A new actor of this process, whose constructor now runs."""
        try:
            place = self._actors.popleft()
        except IndexError:
            place = layout.NUM_ACTORS
        return ActorRecord(self, place, self._actors, number, self.names.text(name), rank)

    def handling(self, mark: int) -> Handling:
        """A place for the calls that the actor with that mark handles, one after the other; `release` it."""
        try:
            place = self._running.pop()
        except IndexError:
            place = layout.NUM_RUNNING
        handling: Handling = self._library.Handling(self._pen, place, mark)
        return handling

    def release(self, handling: Handling) -> None:
        """No more calls come there."""
        handling.end(0)
        if handling.place < layout.NUM_RUNNING:
            self._running.append(handling.place)


class ActorRecord:
    """The state of one actor.

    Attributes:
        mark: stands for it in records of this process; 0 where there were too many actors to have one.
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
        """It is in that state now. After the last one its place is free, but stays as it is until it is needed."""
        recorder = self._recorder
        why = recorder.names.text(cause) if cause else 0
        at = layout.ACTORS_AT + self._place * RECORD_BYTES
        _pack(recorder.memory, at, _now(), kind, 0, self.mark, self._name, why, self._number, self._rank, 0, 0, 1)
        recorder.change(kind, mark=self.mark, name=why, msg=self._number)
        if kind in (RecordKind.ACTOR_STOPPED, RecordKind.ACTOR_FAILED) and self.mark:
            self._places.append(self._place)


def _old_calls(memory: mmap.mmap, words: memoryview[int]) -> tuple[Callable[[int], None], Callable[[int], None]]:
    """Where calls without an answer go when the place that their number gives them is needed for later ones."""
    sent = layout.SENT_AT >> 3
    old: dict[int, int] = {}  # number -> place
    places = list(range(layout.NUM_OLD))
    lock = _thread.allocate_lock()

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
    """Who waits for what: two words a place."""
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
