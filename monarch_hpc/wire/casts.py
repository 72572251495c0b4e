"""Casts, which carry one message to many procs down the agents' tree, and the notes about them that come back up.

Compact and binary, since agents parse every one. The message for the actors is opaque to agents: a body behind the
header, and buffers that are never copied. The parsers are total: any bytes give a value or a `FrameError`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = [
    "Cast",
    "Lost",
    "Mark",
    "Note",
    "NoteKind",
    "Spans",
    "Target",
    "pack_cast",
    "pack_lost",
    "pack_notes",
    "pack_number",
    "pack_target",
    "parse_cast",
    "parse_lost",
    "parse_notes",
    "parse_number",
    "parse_target",
    "spans_of",
]

Spans = tuple[tuple[int, int], ...]
"""Whole numbers as half-open intervals, sorted and disjoint: ranks of hosts, which are mostly consecutive."""

_HEAD = struct.Struct("<BBQIIIHIII")  # kind, flags, origin, root, low, high, sizes of target, waits, hosts, functions
_SPAN = struct.Struct("<II")
_NOTE = struct.Struct("<BQQIIH")
_TARGET = struct.Struct("<QqBBI")  # mesh, offset, number of dimensions, bytes of the run, number of lives
_NUMBER = struct.Struct("<Q")
_DIM = struct.Struct("<Iq")
_LIFE = struct.Struct("<QI")
_CARRIED = frozenset({Kind.SPAWN, Kind.CALL, Kind.STOP, Kind.CANCEL})


class Mark(enum.IntEnum):
    """The meaning of a MARK frame: `Frame.dest` is one of these, `Frame.reply` the number of a cast of its sender."""

    BEFORE = 1  # all direct messages to this proc before that cast have been sent
    AFTER = 2  # the direct messages that follow were sent after that cast
    SKIP = 3  # that cast, and earlier ones, will not come any more


class NoteKind(enum.IntEnum):
    """The kind of a note."""

    RESULT = 1  # the body of a RESULT frame, with its buffers
    FAILURE = 2  # the body of a FAILURE frame
    ELSEWHERE = 3  # the answer is large, and is sent directly to the origin
    DIED = 4  # the proc is gone; the body says why
    UNKNOWN = 5  # the proc may or may not have received it; the body says why
    LOST = 6  # the same for all procs of some hosts, see `Lost`
    LAST = 7  # all answers from this subtree have been sent
    DONE = 8  # all actors of this subtree have handled it
    PARTIAL = 9  # combined answers of consecutive places; see `wire.reductions`
    VOID = 10  # consecutive places have answered, but the call fails and the answers are dropped


_TAGS = {int(tag): tag for tag in NoteKind}


@dataclass(frozen=True, slots=True)
class Target:
    """The recipients of a cast: the procs of a mesh whose ranks are in a region.

    Attributes:
        lives: the number of earlier procs of each rank whose proc has replaced another; a cast is for that life alone.
    """

    run: str
    mesh: int
    region: Region
    lives: Mapping[int, int] = field(default_factory=dict)

    def place_of(self, rank: int) -> int | None:
        """The place of a proc in the region; None if it is not in the region."""
        try:
            return self.region.rank_of(rank)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Cast:
    """One message to many procs.

    Attributes:
        kind: SPAWN, CALL, STOP or CANCEL: the frame for each proc; the body of a CANCEL is `pack_number`.
        answered: whether the procs are to answer.
        limited: whether the body begins with a time limit, see `actor.cell.cancellation.LIMITED`.
        origin: incarnation of the sender.
        number: counts the casts of this sender, from 1.
        root: rank of the host where it entered the tree.
        low, high: the positions of the tree that the receiver is responsible for, see `agent.casts.tree`.
        target: a packed `Target`.
        hosts: ranks of those hosts in the receiver's part of the tree that have procs of the target.
        waits: ranks of procs that must wait for a BEFORE mark with this cast's number.
        actor: number of the actor.
        body, buffers: of the frame for each proc.
        functions: the functions with which procs combine the answers on their way up; empty if they do not.
    """

    kind: Kind
    answered: bool
    limited: bool
    origin: int
    number: int
    root: int
    low: int
    high: int
    target: bytes
    hosts: Spans
    waits: tuple[int, ...]
    actor: int
    body: Buffer
    buffers: Sequence[Buffer] = ()
    functions: Buffer = b""


@dataclass(frozen=True, slots=True)
class Note:
    """One event of a cast.

    Attributes:
        place: place of the proc in the target's region; 0 if the note is not about a single proc.
    """

    tag: NoteKind
    origin: int
    number: int
    place: int = 0
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """Nothing more comes from these hosts: they, or the route to them, are lost."""

    hosts: Spans
    cause: str


def spans_of(numbers: Iterable[int]) -> Spans:
    """Render *numbers*, in any order, as intervals."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number:
            spans[-1] = spans[-1][0], number + 1
        else:
            spans.append((number, number + 1))
    return tuple(spans)


def pack_target(target: Target) -> bytes:
    """Render *target*."""
    region, run = target.region, target.run.encode()
    sizes = region.extent.shape
    dims = b"".join(_DIM.pack(*dim) for dim in zip(sizes, region.strides, strict=True))
    lives = b"".join(_LIFE.pack(*life) for life in sorted(target.lives.items()))
    return _TARGET.pack(target.mesh, region.offset, len(sizes), len(run), len(target.lives)) + dims + lives + run


def parse_target(data: bytes) -> Target:
    """Read what `pack_target` rendered; the dimensions lose their names.

    Raises:
        FrameError: *data* is not a target.
    """
    try:
        mesh, offset, num_dims, run_bytes, num_lives = _TARGET.unpack_from(data)
        begin = _TARGET.size + num_dims * _DIM.size
        end = begin + num_lives * _LIFE.size
        if end > len(data):
            raise FrameError(f"the target of a cast has {len(data)} bytes, less than its {num_lives} lives take")
        dims = [_DIM.unpack_from(data, at) for at in range(_TARGET.size, begin, _DIM.size)]
        lives = dict(_LIFE.unpack_from(data, at) for at in range(begin, end, _LIFE.size))
        if len(data) != end + run_bytes:
            raise FrameError(f"the target of a cast has {len(data)} bytes, not {end + run_bytes}")
        run = data[end:].decode()
        extent = Extent(tuple(str(axis) for axis in range(num_dims)), tuple(size for size, _ in dims))
    except (struct.error, ValueError) as error:
        raise FrameError(f"the target of a cast: {error}") from error
    if any(not stride and size > 1 for size, stride in dims):
        raise FrameError("the target of a cast names a rank twice")
    return Target(run, mesh, Region(extent, offset, tuple(stride for _, stride in dims)), lives)


def pack_cast(cast: Cast) -> Frame:
    """Render *cast*; its body is copied, its buffers are not."""
    spans, waits = cast.hosts, cast.waits
    parts = (
        _HEAD.pack(
            *(cast.kind, cast.answered | cast.limited << 1, cast.origin, cast.root, cast.low, cast.high),
            *(len(cast.target), len(waits), len(spans), len(cast.functions)),
        ),
        cast.target,
        struct.pack(f"<{len(waits)}I", *waits),
        b"".join(_SPAN.pack(*span) for span in spans),
        cast.functions,
        cast.body,
    )
    return Frame(Kind.CAST, cast.actor, cast.number, b"".join(parts), cast.buffers)


def parse_cast(frame: Frame) -> Cast:
    """Read what `pack_cast` rendered.

    Raises:
        FrameError: *frame* is not a cast.
    """
    view = memoryview(frame.body)
    try:
        kind, flags, origin, root, low, high, *sizes = _HEAD.unpack_from(view)
        target_bytes, num_waits, num_spans, functions_bytes = sizes
        at = _HEAD.size
        target = bytes(view[at : at + target_bytes])
        at += target_bytes
        waits = struct.unpack_from(f"<{num_waits}I", view, at)
        at += 4 * num_waits
        ends = struct.unpack_from(f"<{2 * num_spans}I", view, at)
        at += _SPAN.size * num_spans
        functions = bytes(view[at : at + functions_bytes])
        at += functions_bytes
    except struct.error as error:
        raise FrameError(f"a cast ends early: {error}") from error
    if at > len(view):
        raise FrameError(f"a cast ends early: {len(view)} bytes of {at} and more")
    if kind not in _CARRIED:
        raise FrameError(f"a cast of kind {kind}")
    hosts = tuple(zip(ends[::2], ends[1::2], strict=True))
    if low > high or not _in_order(hosts):
        raise FrameError("the hosts of a cast are not in order")
    return Cast(
        kind=Kind(kind),
        answered=bool(flags & 1),
        limited=bool(flags & 2),
        origin=origin,
        number=frame.reply,
        root=root,
        low=low,
        high=high,
        target=target,
        hosts=hosts,
        waits=waits,
        actor=frame.dest,
        body=view[at:],
        buffers=frame.buffers,
        functions=functions,
    )


def pack_notes(notes: Iterable[Note]) -> Frame:
    """Render *notes* as one frame, in order."""
    parts: list[Buffer] = []
    buffers: list[Buffer] = []
    for note in notes:
        head = note.tag, note.origin, note.number, note.place, len(note.body), len(note.buffers)
        parts += (_NOTE.pack(*head), note.body)
        buffers += note.buffers
    return Frame(Kind.NOTES, 0, 0, b"".join(parts), buffers)


def parse_notes(frame: Frame) -> list[Note]:
    """Read what `pack_notes` rendered.

    Raises:
        FrameError: *frame* does not hold notes.
    """
    view = memoryview(frame.body)
    notes: list[Note] = []
    at = taken = 0
    while at < len(view):
        if len(view) - at < _NOTE.size:
            raise FrameError("a note ends early")
        number, origin, cast, place, body_bytes, num_buffers = _NOTE.unpack_from(view, at)
        tag = _TAGS.get(number)
        at += _NOTE.size
        if tag is None or at + body_bytes > len(view) or taken + num_buffers > len(frame.buffers):
            raise FrameError(f"a note of kind {number} with {body_bytes} bytes and {num_buffers} buffers")
        buffers = frame.buffers[taken : taken + num_buffers]
        notes.append(Note(tag, origin, cast, place, view[at : at + body_bytes], buffers))
        at += body_bytes
        taken += num_buffers
    return notes


def pack_lost(lost: Lost) -> bytes:
    """Render *lost* for the body of a note."""
    spans = b"".join(_SPAN.pack(*span) for span in lost.hosts)
    return struct.pack("<I", len(lost.hosts)) + spans + lost.cause.encode()


def pack_number(number: int) -> bytes:
    """Render the number of a cast, for the body of a CANCEL."""
    return _NUMBER.pack(number)


def parse_number(body: Buffer) -> int:
    """Read what `pack_number` rendered; 0, which is not a cast's number, for anything else."""
    return int(_NUMBER.unpack(body)[0]) if len(body) == _NUMBER.size else 0


def parse_lost(body: Buffer) -> Lost:
    """Read what `pack_lost` rendered.

    Raises:
        FrameError: *body* is malformed.
    """
    try:
        (num,) = struct.unpack_from("<I", body)
        ends = struct.unpack_from(f"<{2 * num}I", body, 4)
    except struct.error as error:
        raise FrameError(f"the list of lost hosts ends early: {error}") from error
    cause = bytes(body[4 + _SPAN.size * num :]).decode(errors="replace")
    return Lost(tuple(zip(ends[::2], ends[1::2], strict=True)), cause)


def _in_order(spans: Spans) -> bool:
    end = 0
    for start, stop in spans:
        if not end <= start < stop:
            return False
        end = stop
    return True
