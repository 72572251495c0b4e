"""Writes the records of calls and metrics if the extension `_pen` is missing: the same bytes, several times slower."""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Callable, Mapping
from typing import SupportsFloat

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry.histogram import bucket_of
from monarch_hpc.telemetry.layout import (
    COUNTER,
    FAILED,
    HALF,
    METRIC,
    NO_STEP,
    NUM_BUCKETS,
    NUMBER,
    OPEN,
    RECORD,
    RECORD_BYTES,
    RecordKind,
)
from monarch_hpc.telemetry.names import key_of

__all__ = ["Handling", "Pen"]

_SENT = int(RecordKind.SENT)  # an enum member costs ten times a global
_HANDLED = int(RecordKind.HANDLED)
_METRIC = int(RecordKind.METRIC)

# Offsets in a record, in words of 8 bytes.
_WORDS = RECORD_BYTES // 8
_DUR, _SEQ = 5, 7
_FLAGS_AT = 10  # in bytes

_MAX_QUEUED = HALF * 1000

_pack = RECORD.pack_into
_pack_metric = METRIC.pack_into
_now = monotonic_ns


class Pen:
    """Writes records into *memory*; for any thread.

    Args:
        sent: offset and capacity of the table of sent calls; the capacity is a power of two.
        events: likewise, of the ring of events, and the offset of its cursor.
        running: likewise, of the table of running calls; any capacity.
        counters: likewise, of the endpoint counters; any capacity.
        metrics: as for events, of the ring of metrics.
        keep: called with the slot of an unanswered call, before that slot is overwritten.
        forget: called with the number of an answered call that is no longer in its slot.
        metric_names: numbers of the names of metrics.
        tags: numbers of tags, by `names.key_of`.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        sent: tuple[int, int],
        events: tuple[int, int, int],
        running: tuple[int, int],
        counters: tuple[int, int],
        metrics: tuple[int, int, int],
        keep: Callable[[int], None],
        forget: Callable[[int], None],
        metric_names: Mapping[str, int],
        tags: Mapping[object, int],
        /,
    ) -> None:
        self.memory = memory
        self.words = memoryview(memory).cast("q")
        self._next_event = itertools.count(1).__next__
        self._cursor = events[2] >> 3
        self._next_metric = itertools.count(1).__next__
        self._metrics_at, self._metrics_mask, self._metrics_cursor = metrics[0], metrics[1] - 1, metrics[2] >> 3
        self.running_at = running[0]
        self.counters_at, self.num_counters = counters
        self._sent_at, self._sent_mask = sent[0], sent[1] - 1
        self._sent_word = sent[0] >> 3
        self._events_at, self._events_mask = events[0], events[1] - 1
        self._keep = keep
        self._forget = forget
        self._metric_names = metric_names
        self._tags = tags

    def sent(self, msg: int, mark: int, name: int, peer: int, num_bytes: int, callee: int, /) -> None:
        """Record a call that is sent; *msg* is 0 for a call without an answer."""
        if not msg:
            self.put(_now(), _SENT, 0, mark, name, peer, 0, num_bytes, 0, callee)
            return
        msg &= NUMBER
        place = msg & self._sent_mask
        if self.words[self._sent_word + place * _WORDS + _DUR] == OPEN:
            self._keep(place)
        at = self._sent_at + place * RECORD_BYTES
        _pack(self.memory, at, _now(), _SENT, 0, mark, name, peer, msg, num_bytes, OPEN, callee, msg)

    def event(self) -> int:
        """Return the number of the next event."""
        index = self._next_event()
        self.words[self._cursor] = index
        return index

    def answered(self, msg: int, /) -> None:
        """Record that a call is answered, or never will be."""
        self._close(msg, 0)

    def failed(self, msg: int, /) -> None:
        """Record that a call is answered with an exception."""
        self._close(msg, FAILED)

    def _close(self, msg: int, flags: int) -> None:
        msg &= NUMBER
        word = self._sent_word + (msg & self._sent_mask) * _WORDS
        if self.words[word + _SEQ] == msg:
            if flags:
                self.memory[(word << 3) + _FLAGS_AT] = flags
            self.words[word + _DUR] = _now() - self.words[word]
        else:
            self._forget(msg)

    def metric(self, mark: int, name: int, tags: int, step: int, value: float, /) -> None:
        """Record a value; *step* is `layout.NO_STEP` for none."""
        value = float(value)  # before a number is taken
        index = self._next_metric()
        at = self._metrics_at + (index & self._metrics_mask) * RECORD_BYTES
        try:
            _pack_metric(self.memory, at, _now(), _METRIC, 0, mark, name, tags, 0, 0, step, value, index)
        except struct.error as error:
            raise OverflowError(str(error)) from error
        self.words[self._metrics_cursor] = index

    def known_metric(
        self, mark: int, name: object, tags: dict[str, object], step: object, value: SupportsFloat, /
    ) -> bool:
        """Record a value; False if name or tags have no number yet, or an argument is not what it should be."""
        if type(name) is not str or not (step is None or type(step) is int):
            return False
        try:
            number, labels = self._metric_names.get(name, 0), self._tags.get(key_of(tags), 0) if tags else 0
            if not number or (tags and not labels) or step == NO_STEP:
                return False
            self.metric(mark, number, labels, NO_STEP if step is None else step, float(value))
        except (TypeError, ValueError, OverflowError):  # a tag without a hash, a number beyond all floats or steps
            return False
        return True

    def put(
        self, t: int, kind: int, flags: int, mark: int, name: int, peer: int, msg: int, size: int, dur: int, value: int
    ) -> None:
        """Write the next event."""
        index = self.event()
        at = self._events_at + (index & self._events_mask) * RECORD_BYTES
        _pack(self.memory, at, t, kind, flags, mark, name, peer, msg, size, dur, value, index)


class Handling:
    """Records consecutive handled calls in one slot of the table of running calls.

    Attributes:
        place: index of the slot.
    """

    def __init__(self, pen: Pen, place: int, mark: int, /) -> None:
        self.place = place
        self._pen = pen
        self._at = pen.running_at + place * RECORD_BYTES
        self._mark = mark
        self._call: tuple[int, int, int, int, int, int] | None = None

    def begin(self, name: int, peer: int, msg: int, num_bytes: int, arrived_ns: int, /) -> None:
        """Record that call *msg* of process *peer*, which arrived at *arrived_ns*, begins to run endpoint *name*."""
        t = _now()
        msg &= NUMBER
        queued = t - arrived_ns if t > arrived_ns else 0  # max() and min() would double the time of this method
        self._call = t, name, peer, msg, num_bytes, queued
        value = queued // 1000 if queued < _MAX_QUEUED else HALF
        _pack(self._pen.memory, self._at, t, _HANDLED, 0, self._mark, name, peer, msg, num_bytes, OPEN, value, 1)

    def end(self, num_bytes: int, /) -> None:
        """Record the end of the call, with an answer of *num_bytes* bytes; 0 for none. No-op if no call runs."""
        self._finish(0, num_bytes)

    def fail(self, error: int, /) -> None:
        """Likewise, for an exception; *error* is the number of its name."""
        self._finish(FAILED, error)

    def _finish(self, flags: int, answer: int) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        pen = self._pen
        t, name, peer, msg, num_bytes, queued = call
        dur = _now() - t
        value = (answer if answer < HALF else HALF) << 32
        value |= queued // 1000 if queued < _MAX_QUEUED else HALF
        pen.put(t, _HANDLED, flags, self._mark, name, peer, msg, num_bytes, dur, value)
        pen.words[(self._at >> 3) + _SEQ] = 0
        if name < pen.num_counters:
            words, word = pen.words, (pen.counters_at + name * COUNTER.size) >> 3
            words[word] += 1
            words[word + 1] += flags & FAILED
            words[word + 2] += dur
            if dur > words[word + 3]:
                words[word + 3] = dur
            words[word + 4] += queued
            if queued > words[word + 5]:
                words[word + 5] = queued
            words[word + 6 + bucket_of(dur)] += 1
            words[word + 6 + NUM_BUCKETS + bucket_of(queued)] += 1
