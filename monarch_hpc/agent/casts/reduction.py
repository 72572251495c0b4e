"""Reduction of a cast's answers: the agent holds them until all are there, then a proc of its host combines them.

A state machine without I/O. Only answers of consecutive places are combined, in their order: whatever the tree, the
caller gets the result of a fold over all ranks. A failure is passed on at once, and the answers that became useless
are replaced by notes without content.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.casts import Note, NoteKind
from monarch_hpc.wire.frames import MAX_BODY_BYTES, MAX_BUFFERS, Buffer, Frame
from monarch_hpc.wire.reductions import Order, pack_order, pack_span, span_of

__all__ = ["Reduction"]

_NOTE_BYTES = 64
"""Upper bound on a note's size without its body and its buffers, with their length fields."""


class _State(enum.Enum):
    """Treatment of arriving answers."""

    HOLDS = enum.auto()
    PASSES = enum.auto()  # answers are passed on unchanged
    FAILED = enum.auto()  # the call has failed: their content is dropped


@dataclass(frozen=True, slots=True)
class _PendingOrder:
    """An order to a proc, to combine *parts*."""

    proc: int
    parts: list[Note]


class Reduction:
    """One agent's part in the reduction of one cast; each method's notes are to be sent upstream at once.

    Args:
        functions: the caller's functions, serialized, for the procs.
        max_frame_bytes: config key `transport.max_frame_bytes`.
    """

    def __init__(self, functions: Buffer, max_frame_bytes: int) -> None:
        self._functions = functions
        self._max_frame_bytes = max_frame_bytes
        self.procs: dict[int, int] = {}
        """The procs that can combine: places in the target by incarnation, of this host's procs."""
        self._parts: list[Note] = []
        self._state = _State.HOLDS
        self._pending: _PendingOrder | None = None

    @property
    def working(self) -> bool:
        """Whether a proc is combining answers."""
        return self._pending is not None

    def add(self, note: Note) -> list[Note]:
        """Add a note of the cast.

        Raises:
            FrameError: the note names no places.
        """
        span = span_of(note)
        match note.tag:
            case NoteKind.RESULT | NoteKind.PARTIAL:
                if self._state is _State.HOLDS:
                    self._parts.append(note)
                    return []
                if self._state is _State.FAILED:
                    return [pack_span(NoteKind.VOID, (note.origin, note.number), span)]
                return [note]
            case NoteKind.FAILURE | NoteKind.DIED | NoteKind.UNKNOWN:
                return self._fail(note)
            case NoteKind.LOST | NoteKind.ELSEWHERE:
                # Some answers from behind a lost host may have arrived here, so the call need not fail.
                return [*self.release(), note]
            case NoteKind.VOID | NoteKind.LAST | NoteKind.DONE:
                return [note]

    def next(self) -> tuple[int, Frame] | None:
        """Return a proc and its order to combine held answers; None if there is nothing left to combine.

        Must be called once all answers are there.
        """
        if self._state is not _State.HOLDS or not self.procs:
            return None
        self._parts.sort(key=lambda note: note.place)
        for parts in self._batches():
            if len(parts) > 1:
                proc = min(self.procs, key=self.procs.__getitem__)
                self._pending = _PendingOrder(proc, parts)
                return proc, pack_order(Order(parts[0].origin, parts[0].number, self._functions, parts))
        return None

    def on_combined(self, proc: int, note: Note) -> list[Note]:
        """Handle the result of an order, or its failure; ignored if the proc has no order.

        Raises:
            FrameError: it covers other places than the order.
        """
        pending = self._pending
        if pending is None or pending.proc != proc:
            return []
        if note.tag is not NoteKind.PARTIAL:
            return self._fail(replace(note, place=self.procs[proc]))
        if span_of(note) != (pending.parts[0].place, span_of(pending.parts[-1])[1]):
            raise FrameError(f"answers of the places {span_of(note)}, which were not ordered")
        gone = {id(part) for part in pending.parts}
        self._parts = [note, *[part for part in self._parts if id(part) not in gone]]
        self._pending = None
        return []

    def on_proc_gone(self, proc: int, tag: NoteKind, key: tuple[int, int], cause: str) -> list[Note]:
        """Handle the loss of a proc; if it was combining, the call fails."""
        place = self.procs.pop(proc, None)
        if place is None or self._pending is None or self._pending.proc != proc:
            return []
        return self._fail(Note(tag, *key, place, cause.encode()))

    def release(self) -> list[Note]:
        """Return all held answers unchanged; later ones are passed on unchanged, too."""
        parts, self._parts, self._pending = self._parts, [], None
        if self._state is _State.HOLDS:
            self._state = _State.PASSES
        return parts

    def _fail(self, note: Note) -> list[Note]:
        parts = self.release()
        self._state = _State.FAILED
        key = note.origin, note.number
        return [note, *[pack_span(NoteKind.VOID, key, span) for span in _without(map(span_of, parts), note.place)]]

    def _batches(self) -> Iterator[list[Note]]:
        """Split the answers where places are missing, and where the frame to a proc would get too large."""
        some: list[Note] = []
        body_bytes = all_bytes = num_buffers = 0
        for note in self._parts:
            body = len(note.body) + _NOTE_BYTES
            size = body + sum(memoryview(buffer).nbytes + 8 for buffer in note.buffers)
            fits = (
                body_bytes + body <= MAX_BODY_BYTES
                and all_bytes + size <= self._max_frame_bytes
                and num_buffers + len(note.buffers) <= MAX_BUFFERS
            )
            if some and not (fits and span_of(some[-1])[1] == note.place):
                yield some
                some = []
            if not some:
                body_bytes = all_bytes = _NOTE_BYTES + len(self._functions)
                num_buffers = 0
            some.append(note)
            body_bytes += body
            all_bytes += size
            num_buffers += len(note.buffers)
        yield some


def _without(spans: Iterable[tuple[int, int]], place: int) -> list[tuple[int, int]]:
    """*spans* without *place*; adjacent spans are merged."""
    cut = [
        piece
        for start, end in sorted(spans)
        for piece in ([(start, place), (place + 1, end)] if start <= place < end else [(start, end)])
        if piece[0] < piece[1]
    ]
    joined = cut[:1]
    for (_, before), (start, end) in itertools.pairwise(cut):
        if before == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined
