"""The answers to one cast that an agent holds back until they are all there, so that a proc of its host combines them.

A machine without I/O. Only answers of places that follow each other are combined, and in their order: so whatever the
tree, the caller gets what it would have got from a fold over all ranks. Where something fails it is told at once, and
the answers that nobody will read any more become notes without content.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.casts import Note, NoteKind
from monarch_hpc.wire.frames import MAX_BODY_BYTES, MAX_BUFFERS, Buffer, Frame
from monarch_hpc.wire.reductions import Order, pack_order, pack_span, span_of

__all__ = ["Reduction"]

_NOTE_BYTES = 64
"""More than a note takes beside its body and its buffers, with their lengths."""


class _State(enum.Enum):
    """What becomes of answers that come."""

    HOLDS = enum.auto()
    PASSES = enum.auto()  # they go up as they are
    FAILED = enum.auto()  # the call fails: what they say goes nowhere


@dataclass(frozen=True, slots=True)
class _Asked:
    """A proc that combines."""

    proc: int
    parts: list[Note]


class Reduction:
    """One agent's part in the reduction of one cast; each method returns the notes that are to go up at once.

    Args:
        functions: of the caller, for the procs.
        max_frame_bytes: config key `transport.max_frame_bytes`.
    """

    def __init__(self, functions: Buffer, max_frame_bytes: int) -> None:
        self._functions = functions
        self._max_frame_bytes = max_frame_bytes
        self.procs: dict[int, int] = {}
        """Who can combine: incarnations of the procs of the target on this host, with their places."""
        self._parts: list[Note] = []
        self._state = _State.HOLDS
        self._asked: _Asked | None = None

    @property
    def working(self) -> bool:
        """Whether a proc combines."""
        return self._asked is not None

    def add(self, note: Note) -> list[Note]:
        """News of the cast.

        Raises:
            FrameError: it is about no places.
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
                # Behind a host that is lost may be some whose answers are here, so the call need not fail.
                return [*self.release(), note]
            case NoteKind.VOID | NoteKind.LAST | NoteKind.DONE:
                return [note]

    def next(self) -> tuple[int, Frame] | None:
        """Once all have answered: who is to combine what; None if there is nothing to combine any more."""
        if self._state is not _State.HOLDS or not self.procs:
            return None
        self._parts.sort(key=lambda note: note.place)
        for parts in self._batches():
            if len(parts) > 1:
                proc = min(self.procs, key=self.procs.__getitem__)
                self._asked = _Asked(proc, parts)
                return proc, pack_order(Order(parts[0].origin, parts[0].number, self._functions, parts))
        return None

    def on_combined(self, proc: int, note: Note) -> list[Note]:
        """A proc has combined what it was asked to, or failed to; ignored if it was not asked.

        Raises:
            FrameError: this is about something else.
        """
        asked = self._asked
        if asked is None or asked.proc != proc:
            return []
        if note.tag is not NoteKind.PARTIAL:
            return self._fail(replace(note, place=self.procs[proc]))
        if span_of(note) != (asked.parts[0].place, span_of(asked.parts[-1])[1]):
            raise FrameError(f"answers of the places {span_of(note)}, which nobody asked for")
        gone = {id(part) for part in asked.parts}
        self._parts = [note, *[part for part in self._parts if id(part) not in gone]]
        self._asked = None
        return []

    def on_proc_gone(self, proc: int, tag: NoteKind, key: tuple[int, int], cause: str) -> list[Note]:
        """A proc cannot be asked any more."""
        place = self.procs.pop(proc, None)
        if place is None or self._asked is None or self._asked.proc != proc:
            return []
        return self._fail(Note(tag, *key, place, cause.encode()))

    def release(self) -> list[Note]:
        """Let go of all answers as they are; also of those that come from now on."""
        parts, self._parts, self._asked = self._parts, [], None
        if self._state is _State.HOLDS:
            self._state = _State.PASSES
        return parts

    def _fail(self, note: Note) -> list[Note]:
        parts = self.release()
        self._state = _State.FAILED
        key = note.origin, note.number
        return [note, *[pack_span(NoteKind.VOID, key, span) for span in _without(map(span_of, parts), note.place)]]

    def _batches(self) -> Iterator[list[Note]]:
        """Cut the answers where places are missing, and where a frame to a proc is full."""
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
    """*spans* without *place*, those that follow each other as one."""
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
