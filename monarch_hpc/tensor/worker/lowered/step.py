"""A captured step as the operators on this rank's parts: compiled of two recordings that are alike, and run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.gradients import set_grad
from monarch_hpc.tensor.worker.lowered.code import Code, compile_code, made_by, used_by
from monarch_hpc.tensor.worker.lowered.graphs.graph import SegmentGraph
from monarch_hpc.tensor.worker.lowered.graphs.plan import Stretch, describe, plan
from monarch_hpc.tensor.worker.lowered.parts import PartKind, StepPart
from monarch_hpc.tensor.worker.lowered.recording import KeptResult, RecordedPart, Replay, ReplayRecording, ValueGuard
from monarch_hpc.tensor.worker.lowered.trace import CannotLower, own_part, place_of
from monarch_hpc.tensor.worker.programs import ReplayReports
from monarch_hpc.tensor.worker.sharded.modes import BelowAll, WithoutModes
from monarch_hpc.tensor.worker.sharded.wrapping import with_spec
from monarch_hpc.tensor.worker.values import Dependent, Failure

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
        self._num_slots = len(recording.slots)
        kept: dict[int, KeptResult] = {one.number: one for one in recording.kept}
        drops = _drops(recording, kept)
        read = {n for one in recording.parts if one.part.kind is PartKind.AS_RECORDED for n in one.part.results}
        held = kept.keys() | read
        parts = [_Compiled(found, kept, held, drops[place]) for place, found in enumerate(recording.parts)]
        self._groups = [(lowers, tuple(group)) for lowers, group in groupby(parts, lambda one: one.lowers)]
        self._stretches = [] if limits is None else plan(recording, limits)
        self._graphed = _in_groups(self._groups, parts, self._stretches)

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
        run = _Run(replay, self._reports, self._num_slots, self._constants)
        for (lowers, parts), graphed in zip(self._groups, self._graphed, strict=True):
            if lowers:
                with BelowAll():
                    if graphed:
                        run.graphed(graphed)
                    else:
                        run.lowered(parts)
                run.spend()
            elif not self._reports.is_over():
                replay.run_parts(parts[0].part, parts[-1].part)


class _Compiled:
    """A record, and a function of the slots that does what it did."""

    def __init__(self, found: RecordedPart, kept: dict[int, KeptResult], held: set[int], drops: set[int]) -> None:
        self.part: StepPart = found.part
        self.lowers = found.part.kind is not PartKind.AS_RECORDED
        self.loads = found.loads
        self.grads = found.grads
        self.writes = found.writes
        self.spoils = found.spoils
        self.kept = tuple(kept[number] for number in found.part.results if number in kept)
        self.held = tuple(number for number in found.part.drops if number in held)
        bound = {slot for _, slot, _ in found.grads} | {one.slot for one in self.kept}
        self.outs = frozenset(made_by(found.instructions))
        self.ins = frozenset(used_by(found.instructions)) | (bound - self.outs)
        self.after = tuple(drops & bound)
        self.code = compile_code(found.instructions, drops - bound) if self.lowers else _nothing


class _Run:
    """One replay under way.

    Attributes:
        slots: tensors by slot.
    """

    def __init__(
        self, replay: Replay, reports: ReplayReports, num_slots: int, constants: dict[int, torch.Tensor]
    ) -> None:
        self._replay = replay
        self._reports = reports
        self._ops = replay.sharding.ops
        self.slots: list[Any] = [None] * num_slots
        for slot, tensor in constants.items():
            self.slots[slot] = tensor.clone()  # which the step may write to
        self._poisoned: dict[int, int] = {}  # the root by slot
        self._failed: set[_Compiled] = set()
        self._is_over = False
        self._spent: list[tuple[int, Any]] = []
        self._draw: AbstractContextManager[None] | None = None

    def lowered(self, parts: Iterable[_Compiled]) -> None:
        """Run operators of records."""
        for one in parts:
            self._run(one, one.code)
            if self._is_over:
                return

    def graphed(self, stretches: Iterable[tuple[Stretch, tuple[_Compiled, ...]]]) -> None:
        """Replay graphs of operators of records, and run the others."""
        for stretch, parts in stretches:
            if stretch.graph is None or not self._replayed(stretch, stretch.graph, parts):
                for one, piece, code in zip(parts, stretch.segment.pieces, stretch.codes, strict=True):
                    if one not in self._failed and not self._is_over:
                        self._run(one, code, is_first=piece.is_first, is_last=piece.is_last)
            if self._is_over:
                return

    def _run(self, one: _Compiled, code: Code, *, is_first: bool = True, is_last: bool = True) -> None:
        """Run operators of a record, and what it does before its first and after its last one."""
        if one.part.kind is PartKind.DROPS:
            self._drop(one)
            return
        try:
            if is_first:
                self._begin(one)
                if one.loads:
                    self._load(one)
                if self._poisoned:
                    self._check(one)
            code(self.slots, self)
            if is_last:
                self._bind(one)
        except BaseException as error:  # noqa: BLE001 torch's errors of any class
            self.end_draw()
            self._fail(one, error)
            return
        if is_last:
            self._end(one)

    def _replayed(self, stretch: Stretch, graph: SegmentGraph, parts: tuple[_Compiled, ...]) -> bool:
        """Replay a graph, with what its records do beside their operators before and after it.

        Returns:
            Whether it was done, or has failed; if not, nothing was.
        """
        segment, slots = stretch.segment, self.slots
        if self._failed:
            return False
        pieces = list(zip(parts, segment.pieces, strict=True))
        begun = [one for one, piece in pieces if piece.is_first and one.part.kind is not PartKind.DROPS]
        try:
            for one in begun:
                self._load(one)
        except Exception:  # noqa: BLE001 the operation whose value it is fails when its operators run
            return False
        if not graph.is_ready(slots):
            return False
        try:
            for one in begun:
                self._begin(one)
            for slot in segment.notes:
                self.save(slots[slot])
            graph.replay(slots)
        except BaseException as error:  # noqa: BLE001 torch's errors of any class
            graph.give_up(f"{type(error).__name__} in a replay")
            root = -1
            for one, _ in pieces:  # which of them it was is not known
                if one.part.kind is PartKind.DROPS:
                    self._drop(one)
                else:
                    self._fail(one, error if root < 0 else Dependent(root))
                    root = self._replay.seq + one.part.seq if root < 0 else root
            return True
        for one, piece in pieces:
            if one.part.kind is PartKind.DROPS:
                self._drop(one)
            elif piece.is_last:
                self._bind(one)
                self._end(one)
        for slot in segment.dead:
            slots[slot] = None
        return True

    def _begin(self, one: _Compiled) -> None:
        self._reports.begin(self._replay.seq + one.part.seq, one.part.name)
        if one.part.kind is PartKind.BACKWARD:
            self._ops.journal.effects += 1

    def _bind(self, one: _Compiled) -> None:
        """Give leaves the gradients of a backward pass."""
        replay, leaves = self._replay, one.part.leaves
        for leaf, slot, spec in one.grads:
            replay.value(leaf).grad = with_spec(self.slots[slot], spec)
        if leaves:
            replay.sharding.note_backward([replay.number(leaf) for leaf in leaves])

    def _end(self, one: _Compiled) -> None:
        """Keep the results of a record, and count its writes."""
        replay = self._replay
        for kept in one.kept:
            value = with_spec(self.slots[kept.slot], kept.spec)
            number = replay.first + kept.number
            replay.values[number] = value
            if kept.is_spent:
                self._spent.append((number, value))
        for source, count in one.writes:
            value = replay.value(source)
            for _ in range(count):
                torch.autograd.graph.increment_version(value)
        for slot in one.after:
            self.slots[slot] = None

    def spend(self) -> None:
        """Give results the history that they have in a step as written: one that is used up."""
        for number, value in self._spent:
            if self._replay.values.get(number) is value:
                self._replay.values[number] = _Spent.apply(value, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        self._spent.clear()

    # ---- what compiled code calls ----

    def save(self, *tensors: torch.Tensor) -> None:
        """They are about to be written to."""
        self._ops.journal.save(tensors)

    def begin_draw(self) -> None:
        """The mesh's random numbers are in force from here on."""
        self._draw = self._ops.random_numbers()
        self._draw.__enter__()

    def end_draw(self) -> None:
        """They are no longer, if they were."""
        draw, self._draw = self._draw, None
        if draw is not None:
            draw.__exit__(None, None, None)

    def _drop(self, one: _Compiled) -> None:
        """Drop values, or a gradient."""
        replay, part = self._replay, one.part
        if part.resets is not None:
            set_grad(replay.values, replay.sharding, replay.number(part.resets), 0)
        numbers = part.drops if self._poisoned else one.held
        if numbers:
            replay.values.free([replay.first + number for number in numbers])

    # ---- what may fail ----

    def _load(self, one: _Compiled) -> None:
        for slot, source, is_grad in one.loads:
            value = self._replay.value(source)
            if type(value) is Failure:
                raise Dependent(value.root)
            if is_grad:
                value = value.grad
            part: Any = value._local_tensor
            self.slots[slot] = part.wait() if isinstance(part, AsyncCollectiveTensor) else part

    def _check(self, one: _Compiled) -> None:
        root = next((self._poisoned[slot] for slot in one.ins if slot in self._poisoned), None)
        if root is not None:
            raise Dependent(root)

    def _fail(self, one: _Compiled, error: BaseException) -> None:
        replay, part = self._replay, one.part
        seq = replay.seq + part.seq
        self._failed.add(one)
        root = error.root if isinstance(error, Dependent) else seq
        self._poisoned.update(dict.fromkeys(one.outs, root))
        if part.kind is PartKind.BACKWARD:
            numbers = [number for leaf in part.leaves if (number := replay.number(leaf)) in replay.values]
            replay.values.grads.update(dict.fromkeys(numbers, Failure(root)))
        results = [replay.first + number for number in part.results]
        written = [replay.number(source) for source in (*part.written, *one.spoils)]
        self._reports.fail(seq, error, part.name, results, written)
        self._is_over = self._reports.is_over()


class _Spent(torch.autograd.Function):
    """The history of a result whose backward pass the step has done."""

    @staticmethod
    def forward(ctx: Any, value: Any, anchor: Any) -> Any:
        with WithoutModes():
            return with_spec(value._local_tensor, value._spec)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time: a captured step has called backward() of this tensor"
        )


def _in_groups(
    groups: Sequence[tuple[bool, tuple[_Compiled, ...]]], parts: Sequence[_Compiled], stretches: Sequence[Stretch]
) -> list[list[tuple[Stretch, tuple[_Compiled, ...]]]]:
    """For each group, its stretches with their records; none where no graph is among them."""
    found: list[list[tuple[Stretch, tuple[_Compiled, ...]]]] = []
    begin = 0
    for _, group in groups:
        end = begin + len(group)
        own = [one for one in stretches if begin <= one.segment.pieces[0].part < end]
        if all(one.graph is None for one in own):
            own = []
        found.append([(one, tuple(parts[piece.part] for piece in one.segment.pieces)) for one in own])
        begin = end
    return found


def _nothing(_slots: list[Any], _run: _Run) -> None:
    """A record that is executed as it is."""


def _drops(recording: ReplayRecording, kept: dict[int, KeptResult]) -> list[set[int]]:
    """The slots that no part after each one needs."""
    last: dict[int, int] = {}
    for place, found in enumerate(recording.parts):
        grads = [slot for _, slot, _ in found.grads]
        results = [kept[number].slot for number in found.part.results if number in kept]
        for slot in (*used_by(found.instructions), *made_by(found.instructions), *grads, *results):
            last[slot] = place
    drops: list[set[int]] = [set() for _ in recording.parts]
    for slot, place in last.items():
        if slot not in recording.constants:
            drops[place].add(slot)
    return drops


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
