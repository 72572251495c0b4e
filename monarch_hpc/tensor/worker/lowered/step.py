"""A captured step as the operators on this rank's parts: compiled of two recordings that are alike, and run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.compiled import CompiledGroup, CompiledPart, groups_of
from monarch_hpc.tensor.worker.lowered.graphs.plan import Stretch, describe, plan
from monarch_hpc.tensor.worker.lowered.recording import Replay, ReplayRecording, ValueGuard
from monarch_hpc.tensor.worker.lowered.run import StepRun
from monarch_hpc.tensor.worker.lowered.trace import CannotLower, own_part, place_of
from monarch_hpc.tensor.worker.programs import ReplayReports

__all__ = ["LoweredStep", "check_alike"]


def check_alike(one: ReplayRecording, other: ReplayRecording) -> None:
    """Check that two replays have done the same.

    Raises:
        CannotLower: they have not.
    """
    if one.constants.keys() != other.constants.keys() or not all(
        _are_equal(tensor, other.constants[slot]) for slot, tensor in one.constants.items()
    ):
        raise CannotLower("a number in some code differs from replay to replay")
    if one.grads != other.grads:
        raise CannotLower("gradients that it adds to differ from replay to replay")
    outside = one.guards == other.guards and one.same == other.same and one.slots == other.slots
    if not outside or one.kept != other.kept or not _is_alike(one.parts, other.parts):
        raise CannotLower("what runs differs from replay to replay")


class LoweredStep:
    """A captured step on one rank.

    Args:
        recording: what a replay did.
        reports: of the executor.
        limits: of graphs of its operators; None if there are to be none.
    """

    def __init__(self, recording: ReplayRecording, reports: ReplayReports, limits: GraphLimits | None) -> None:
        self._reports = reports
        self._guards = recording.guards
        self._same = recording.same
        self._grads = recording.grads
        self._constants = recording.constants
        self._memories = [fact.memory for fact in recording.slots]
        self._groups = groups_of(recording)
        self._stretches = [] if limits is None else plan(recording, limits)
        self._graphed = _in_groups(self._groups, self._stretches)

    def graphs(self) -> str:
        """Why operators are not replayed by graphs that were asked for; empty if all are."""
        return describe(self._stretches)

    def holds(self, replay: Replay) -> bool:
        """Whether what it uses from outside is as it was when it was recorded."""
        for source, guard in self._guards.items():
            value = replay.value(source)
            if not isinstance(value, DTensor) or ValueGuard.of(value) != guard:
                return False
        for source, other in self._same:
            if place_of(own_part(replay.value(source))) != place_of(own_part(replay.value(other))):
                return False
        for leaf, spec in self._grads.items():
            grad = getattr(replay.value(leaf), "grad", None)
            if (None if grad is None else grad._spec) != spec:
                return False
        return True

    def run(self, replay: Replay) -> None:
        """Execute a replay."""
        run = StepRun(replay, self._reports, self._memories, self._constants)
        for group, graphed in zip(self._groups, self._graphed, strict=True):
            if group.lowers:
                with run.below if group.has_ops else nullcontext():
                    if graphed:
                        run.graphed(graphed)
                    else:
                        run.lowered(group)
                run.spend()
            elif not self._reports.is_over():
                replay.run_parts(group.parts[0].part, group.parts[-1].part)


def _in_groups(
    groups: Sequence[CompiledGroup], stretches: Sequence[Stretch]
) -> list[list[tuple[Stretch, tuple[CompiledPart, ...]]]]:
    """For each group, its stretches with their records; none where no graph is among them."""
    found: list[list[tuple[Stretch, tuple[CompiledPart, ...]]]] = []
    begin = 0
    for group in groups:
        end = begin + len(group.parts)
        own = [one for one in stretches if begin <= one.segment.pieces[0].part < end]
        if all(one.graph is None for one in own):
            own = []
        found.append([(one, tuple(group.parts[piece.part - begin] for piece in one.segment.pieces)) for one in own])
        begin = end
    return found


def _is_alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_alike(value, other[key]) for key, value in one.items())
    return bool(repr(one) == repr(other) if isinstance(one, float) else one == other)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
