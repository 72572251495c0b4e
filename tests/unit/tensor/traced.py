"""Functions of plain tensors as captured steps of one rank, without a mesh: for tests of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.graphs.plan import Stretch, plan
from monarch_hpc.tensor.worker.lowered.parts import PartKind, StepPart
from monarch_hpc.tensor.worker.lowered.recording import KeptResult, RecordedPart, ReplayRecording
from monarch_hpc.tensor.worker.lowered.trace import Instruction, StepTrace
from monarch_hpc.tensor.worker.sharded.modes import BelowAll

__all__ = ["TracedStep", "recording_of"]

Function = Callable[[list[Any]], Sequence[torch.Tensor]]


def recording_of(
    function: Function, given: Sequence[torch.Tensor], cuts: Sequence[int] = ()
) -> tuple[ReplayRecording, list[int], list[int]]:
    """What a function does to tensors, which are as they were afterwards.

    Args:
        cuts: numbers of instructions after which a record ends.

    Returns:
        The recording, and the slots of arguments and of results.
    """
    trace = StepTrace()
    memories = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in given}
    saved = [(memory, memory.clone()) for memory in memories.values()]  # type: ignore[no-untyped-call]
    with torch.no_grad(), trace:
        ins = []
        for tensor in given:
            slot = trace.slot_of(tensor)
            ins.append(trace.define(tensor) if slot is None else slot)
        trace.is_paused = False
        results = function(list(given))
        trace.is_paused = True
    for memory, before in saved:
        memory.copy_(before)
    assert not trace.reason, trace.reason
    outs = [trace.slot_of(tensor) for tensor in results]
    assert None not in outs
    bounds = [0, *(cut for cut in sorted(set(cuts)) if 0 < cut < len(trace.instructions)), len(trace.instructions)]
    parts = [_part(seq, trace.instructions[begin:end]) for seq, (begin, end) in enumerate(itertools.pairwise(bounds))]
    last = parts[-1].part._replace(results=range(len(outs)))
    parts[-1] = parts[-1]._replace(part=last)
    kept = tuple(KeptResult(number, slot, None, False) for number, slot in enumerate(outs) if slot is not None)
    recording = ReplayRecording(tuple(parts), tuple(trace.slots), trace.constants, {}, (), {}, kept)
    return recording, ins, [slot for slot in outs if slot is not None]


def _part(seq: int, instructions: Sequence[Instruction]) -> RecordedPart:
    return RecordedPart(
        StepPart(seq, seq + 1, seq, f"record {seq}", PartKind.OPERATION), instructions=tuple(instructions)
    )


class TracedStep:
    """A function whose calls run its operators, by graphs where there are.

    Args:
        function: takes tensors, writes to them, and returns others.
        given: such tensors.
        limits: of graphs.
        cuts: see `recording_of`.
    """

    def __init__(
        self, function: Function, given: Sequence[torch.Tensor], limits: GraphLimits, cuts: Sequence[int] = ()
    ) -> None:
        self.recording, self._ins, self._outs = recording_of(function, given, cuts)
        self.stretches: list[Stretch] = plan(self.recording, limits)
        self.num_replays = 0

    def __call__(self, given: Sequence[torch.Tensor], *, graphs: bool = True) -> list[torch.Tensor]:
        """Run it once."""
        slots: list[Any] = [None] * len(self.recording.slots)
        for slot, tensor in self.recording.constants.items():
            slots[slot] = tensor.clone()
        for slot, tensor in zip(self._ins, given, strict=True):
            slots[slot] = tensor
        with BelowAll():
            for segment, codes, graph in self.stretches:
                if graphs and graph is not None and graph.is_ready(slots):
                    graph.replay(slots)
                    self.num_replays += 1
                    for slot in segment.dead:
                        if slot not in self._outs:
                            slots[slot] = None
                    continue
                for code in codes:
                    code(slots, _Heedless)
        return [slots[slot] for slot in self._outs]


class _Heedless:
    @staticmethod
    def save(*_tensors: torch.Tensor) -> None:
        """There is no journal."""
