"""Divides the operators of a captured step into runs that one graph can replay, and others; a pure function."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from monarch_hpc.tensor.worker.lowered.code import made_by, slots_in, used_by
from monarch_hpc.tensor.worker.lowered.parts import PartKind
from monarch_hpc.tensor.worker.lowered.recording import ReplayRecording
from monarch_hpc.tensor.worker.lowered.trace import Call, Draw, Instruction, SlotFact, WriteNote
from monarch_hpc.tensor.worker.sharded.traits import traits_of, written_arguments

__all__ = ["Segment", "SegmentPiece", "split"]

_BY_POSITION = "as_strided"
"""Operators of such names count from the start of a tensor's memory, of which a graph may use a copy of a part."""

_Kind = tuple[str, str]
"""Operators of one kind stay together: the device, and why no graph may have them."""

_NO_KIND: _Kind = ("", "")


class SegmentPiece(NamedTuple):
    """Instructions of one record.

    Attributes:
        part: place of the record.
        begin: the first instruction.
        end: behind the last one.
        is_first: whether the record begins with them.
        is_last: whether it ends with them.
        drops: slots that no operator needs after them, nor what the record does beside its operators.
    """

    part: int
    begin: int
    end: int
    is_first: bool
    is_last: bool
    drops: frozenset[int] = frozenset()


class Segment(NamedTuple):
    """A run of instructions.

    Attributes:
        pieces: the instructions, of records in a row.
        num_ops: number of operators among them.
        ins: slots that its operators use and others have filled.
        outs: slots that it fills, and that are used after it or by what its records do beside their operators.
        written: those of *ins* whose memory it may write to.
        escaping: those of *outs* in memory that it makes, and that outlives the step.
        notes: for each note of a write to memory that is older than the segment, a slot with that memory.
        dead: slots that nobody needs after it.
        device: type of the device; empty if there are no operators, or none that a graph may have.
        reason: why no graph can replay it; empty if one can.
    """

    pieces: tuple[SegmentPiece, ...]
    num_ops: int
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    written: frozenset[int]
    escaping: frozenset[int]
    notes: tuple[int, ...]
    dead: tuple[int, ...]
    device: str
    reason: str


def split(recording: ReplayRecording, devices: Collection[str], least_ops: int) -> list[Segment]:
    """All operators of a step, in order.

    Args:
        recording: the step.
        devices: types of devices that have graphs.
        least_ops: fewest operators of a graph.
    """
    uses = _Uses(recording)
    found = []
    for pieces, (device, reason) in _runs(recording, devices):
        segment = uses.segment(pieces, device.partition(":")[0])
        if not reason and segment.num_ops < max(least_ops, 1):
            reason = f"fewer than {least_ops} operators in a row (tensor.graph_least_ops)"
        found.append(segment._replace(reason=reason))
    return found


# ---- where one ends ----


def _runs(recording: ReplayRecording, devices: Collection[str]) -> Iterable[tuple[list[SegmentPiece], _Kind]]:
    """Pieces that stay together."""
    pieces: list[SegmentPiece] = []
    kind: _Kind | None = None  # of the operators so far
    for place, found in enumerate(recording.parts):
        if found.part.kind in (PartKind.GRADIENT, PartKind.OPTIMIZER):
            if pieces:
                yield pieces, kind or _NO_KIND
            if found.part.kind is PartKind.GRADIENT:
                yield [SegmentPiece(place, 0, 0, True, True)], _NO_KIND
            pieces, kind = [], None
            continue
        begin, draws = 0, False
        for at, one in enumerate(found.instructions):
            draws = one.begins if isinstance(one, Draw) else draws
            own = _kind(one, draws, recording.slots, devices)
            if own is None:
                continue
            if kind is not None and own != kind:
                if at > begin:
                    pieces.append(SegmentPiece(place, begin, at, begin == 0, False))
                if pieces:
                    yield pieces, kind
                pieces, begin = [], at
            kind = own
        pieces.append(SegmentPiece(place, begin, len(found.instructions), begin == 0, True))
    if pieces:
        yield pieces, kind or _NO_KIND


def _kind(one: Instruction, draws: bool, slots: Sequence[SlotFact], devices: Collection[str]) -> _Kind | None:
    """Of which runs an instruction may be a part; None if of any."""
    if isinstance(one, WriteNote):
        return None
    if isinstance(one, Draw) or draws:
        return "", "random numbers, which are those of a generator of the CPU"
    if one.op.namespace != "aten":
        return "", "collectives"
    if _BY_POSITION in str(one.op):
        return "", f"{_BY_POSITION}, which counts from the start of a tensor's memory"
    used = {slots[slot].device for slot in (*made_by((one,)), *used_by((one,)))}
    wrong = sorted(str(device) for device in used if device.type not in devices)
    if wrong or len(used) != 1:
        return "", f"tensors on {wrong[0]}" if wrong else "tensors on several devices, or none"
    return str(used.pop()), ""


# ---- what it uses ----


class _Uses:
    """When each slot is filled and used last: the place of a record, and that of an instruction in it."""

    def __init__(self, recording: ReplayRecording) -> None:
        self._recording = recording
        self._made: dict[int, tuple[int, int]] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self._bound: list[set[int]] = []
        kept = {one.number: one.slot for one in recording.kept}
        for place, found in enumerate(recording.parts):
            for at, one in enumerate(found.instructions):
                self._made.update(dict.fromkeys(made_by((one,)), (place, at)))
                self._last.update(dict.fromkeys((*used_by((one,)), *made_by((one,))), (place, at)))
            bound = {slot for _, slot, _ in found.grads} | {kept[n] for n in found.part.results if n in kept}
            self._last.update(dict.fromkeys(bound, (place, len(found.instructions))))
            self._bound.append(bound)
        self._outlives = {recording.slots[slot].memory for bound in self._bound for slot in bound}

    def segment(self, pieces: Sequence[SegmentPiece], device: str) -> Segment:
        slots, parts = self._recording.slots, self._recording.parts
        begin, last = (pieces[0].part, pieces[0].begin), pieces[-1]
        end = (last.part, last.end + last.is_last)  # what a record does beside its operators comes after them
        instructions = [one for piece in pieces for one in parts[piece.part].instructions[piece.begin : piece.end]]
        calls = [one for one in instructions if isinstance(one, Call)]
        bound = {slot for piece in pieces if piece.is_last for slot in self._bound[piece.part]}
        made = dict.fromkeys(made_by(calls))
        ins = tuple(slot for slot in dict.fromkeys(used_by(calls)) if slot not in made)
        outs = tuple(slot for slot in made if slot in bound or self._last[slot] >= end)
        own = {slots[slot].memory for slot in made} & made.keys()
        written = {slots[slot].memory for call in calls for slot in _written(call)} - own
        notes = []
        for slot in (slot for one in instructions if isinstance(one, WriteNote) for slot in one.slots):
            if slot not in made:
                notes.append(slot)
            elif slots[slot].memory not in own:
                notes.append(next(one for one in ins if slots[one].memory == slots[slot].memory))
        touched = {*used_by(instructions), *made, *bound} - self._recording.constants.keys()
        dying = [(self._last[slot], slot) for slot in sorted(touched) if begin <= self._last[slot] < end]
        return Segment(
            tuple(
                piece._replace(
                    drops=frozenset(s for at, s in dying if (piece.part, piece.begin) <= at < (piece.part, piece.end))
                )
                for piece in pieces
            ),
            len(calls),
            ins,
            outs,
            frozenset(slot for slot in ins if slots[slot].memory in written),
            frozenset(slot for slot in outs if slots[slot].memory in own & self._outlives),
            tuple(notes),
            tuple(slot for _, slot in dying),
            device,
            "",
        )


def _written(call: Call) -> Iterable[int]:
    """The slots that an operator may write to."""
    return slots_in(written_arguments(traits_of(call.op), call.args, call.kwargs))
