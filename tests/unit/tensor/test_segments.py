"""Operators of a captured step are divided into graphs and others by what each does."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed._functional_collectives  # registers their operators

from monarch_hpc.tensor.worker.lowered.graphs.places import MemoryPlace, contested
from monarch_hpc.tensor.worker.lowered.graphs.segments import Segment, SegmentPiece, split
from monarch_hpc.tensor.worker.lowered.parts import PartKind, StepPart
from monarch_hpc.tensor.worker.lowered.recording import KeptResult, RecordedPart, ReplayRecording
from monarch_hpc.tensor.worker.lowered.trace import Call, Draw, Instruction, SlotFact, TensorSlot, WriteNote

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def call(op: Any, *args: Any, out: int | None = None) -> Call:
    return Call(op, args, {}, (out,), False)


def recorded(kind: PartKind, *instructions: Instruction) -> RecordedPart:
    return RecordedPart(StepPart(0, 1, 0, "a record", kind), instructions=instructions)


def recording(parts: list[RecordedPart], slots: list[SlotFact], *kept: int) -> ReplayRecording:
    """*kept*: slots of results of the last record."""
    last = parts[-1]
    parts = [*parts[:-1], last._replace(part=last.part._replace(results=range(len(kept))))]
    results = tuple(KeptResult(number, slot, None, False) for number, slot in enumerate(kept))
    return ReplayRecording(tuple(parts), tuple(slots), {}, {}, (), {}, results)


A, B, C, D, E, F = map(TensorSlot, range(6))
aten: Any = torch.ops.aten


def test_records_in_a_row_are_one_graph_and_other_records_end_it() -> None:
    parts = [
        recorded(PartKind.OPERATION, call(aten.mul.Tensor, A, B, out=2)),
        recorded(PartKind.DROPS),
        recorded(
            PartKind.BACKWARD,
            call(aten.t.default, A, out=3),
            WriteNote((3,)),
            call(aten.add_.Tensor, D, C),
            WriteNote((1,)),
            call(aten.add_.Tensor, B, C),
        ),
        recorded(PartKind.OPTIMIZER),
        recorded(PartKind.OPERATION, call(aten.neg.default, D, out=4), call(aten.t.default, E, out=5)),
    ]
    slots = [SlotFact(CUDA, slot) for slot in (0, 1, 2, 0, 4, 4)]
    assert split(recording(parts, slots, 5), {"cuda"}, 2) == [
        Segment(
            pieces=(
                SegmentPiece(0, 0, 1, True, True, frozenset()),
                SegmentPiece(1, 0, 0, True, True, frozenset()),
                SegmentPiece(2, 0, 5, True, True, frozenset({0, 1, 2})),
            ),
            num_ops=4,
            ins=(0, 1),
            outs=(3,),
            written=frozenset({0, 1}),
            escaping=frozenset(),
            notes=(0, 1),
            dead=(0, 1, 2),
            device="cuda",
            reason="",
        ),
        Segment(
            (SegmentPiece(4, 0, 2, True, True, frozenset({3, 4})),),
            2,
            (3,),
            (5,),
            frozenset(),
            frozenset({5}),
            (),
            (3, 4, 5),
            "cuda",
            "",
        ),
    ]


def test_what_no_graph_may_have_is_between_graphs_within_a_record_too() -> None:
    parts = [
        recorded(
            PartKind.OPERATION,
            call(aten.neg.default, A, out=2),
            call(torch.ops._c10d_functional.wait_tensor.default, C),
            Draw(begins=True),
            call(aten.rand_like.default, C, out=3),
            Draw(begins=False),
            call(aten.add.Tensor, C, B, out=4),
            call(aten.neg.default, C, out=5),
        ),
    ]
    slots = [SlotFact(CPU if slot == 1 else CUDA, slot) for slot in range(6)]
    found = split(recording(parts, slots, 5), {"cuda"}, 1)
    assert [(one.pieces[0][1:5], one.num_ops, one.outs, one.reason) for one in found] == [
        ((0, 1, True, False), 1, (2,), ""),
        ((1, 2, False, False), 1, (), "collectives"),
        ((2, 5, False, False), 1, (), "random numbers, which are those of a generator of the CPU"),
        ((5, 6, False, False), 1, (), "tensors on cpu"),
        ((6, 7, False, True), 1, (5,), ""),
    ]
    assert next(one.reason for one in split(recording(parts, slots, 5), {"cuda"}, 2) if one.num_ops == 1) == (
        "fewer than 2 operators in a row (tensor.graph_least_ops)"
    )


def test_memory_that_overlaps_is_contested_if_any_of_it_is_written_to() -> None:
    def at(begin: int, end: int) -> MemoryPlace:
        return MemoryPlace(CPU, torch.float32, (1,), (1,), 0, begin, end)

    places = [at(0, 100), at(20, 40), at(60, 80), at(100, 120), at(110, 130), at(7, 7)]
    assert contested(places, frozenset()) == contested(places, frozenset({5})) == frozenset()
    assert contested(places, frozenset({1})) == frozenset({0, 1, 2})
    assert contested(places, frozenset({3})) == frozenset({3, 4})
