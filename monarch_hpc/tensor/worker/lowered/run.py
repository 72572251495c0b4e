"""One replay of a captured step under way: what its operators find and leave, and what happens where one fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from monarch_hpc.tensor.worker.gradients import get_grad, set_grad
from monarch_hpc.tensor.worker.lowered.code import Code
from monarch_hpc.tensor.worker.lowered.compiled import CompiledGroup, CompiledPart
from monarch_hpc.tensor.worker.lowered.graphs.graph import SegmentGraph
from monarch_hpc.tensor.worker.lowered.graphs.plan import Stretch
from monarch_hpc.tensor.worker.lowered.parts import PartKind
from monarch_hpc.tensor.worker.lowered.recording import Replay
from monarch_hpc.tensor.worker.programs import ReplayReports
from monarch_hpc.tensor.worker.sharded.modes import Above, BelowAll, WithoutModes
from monarch_hpc.tensor.worker.sharded.wrapping import with_spec
from monarch_hpc.tensor.worker.values import Dependent, Failure

__all__ = ["StepRun"]


class StepRun:
    """One replay under way.

    Args:
        replay: the replay.
        reports: of the executor.
        memories: the memory of each slot, see `SlotFact`.
        constants: tensors by slot.

    Attributes:
        below: is entered while operators run.
        begin: see `ReplayReports`.
        seq: the replay's first sequence number.
        at: place of the record under way in the code of a group.
    """

    def __init__(
        self, replay: Replay, reports: ReplayReports, memories: Sequence[int], constants: dict[int, torch.Tensor]
    ) -> None:
        self.below = BelowAll()
        self.begin = reports.begin
        self.seq = replay.seq
        self.at = 0
        self._replay = replay
        self._reports = reports
        self._ops = replay.sharding.ops
        self._memories = memories
        self._slots: list[Any] = [None] * len(memories)
        for slot, tensor in constants.items():
            self._slots[slot] = tensor.clone()  # which the step may write to
        self._poisoned: dict[int, int] = {}  # the root by slot
        self._spoilt: dict[int, int] = {}  # the root by memory that a write has left unfinished
        self._failed: set[CompiledPart] = set()
        self._is_over = False
        self._spent: list[tuple[int, Any]] = []
        self._draw: AbstractContextManager[None] | None = None

    def lowered(self, group: CompiledGroup) -> None:
        """Run records in a row: as one, or one by one from where one has failed."""
        done = 0
        if not self._failed:
            try:
                group.code(self._slots, self)
            except BaseException as error:  # noqa: BLE001 torch's errors of any class
                self.end_draw()
                self._fail(group.parts[self.at], error)
                done = self.at + 1
            else:
                return
        for one in group.parts[done:]:
            if self._is_over:
                return
            self._run(one, one.code)

    def graphed(self, stretches: Iterable[tuple[Stretch, tuple[CompiledPart, ...]]]) -> None:
        """Replay graphs of operators of records, and run the others."""
        for stretch, parts in stretches:
            if stretch.graph is None or not self._replayed(stretch, stretch.graph, parts):
                for one, piece, code in zip(parts, stretch.segment.pieces, stretch.codes, strict=True):
                    if one not in self._failed and not self._is_over:
                        self._run(one, code, is_first=piece.is_first, is_last=piece.is_last)
            if self._is_over:
                return

    def _run(self, one: CompiledPart, code: Code, *, is_first: bool = True, is_last: bool = True) -> None:
        """Run operators of a record, and what it does before its first and after its last one."""
        kind = one.part.kind
        if kind is PartKind.DROPS:
            self.drop(one)
            return
        try:
            if is_first:
                self._begin(one)
                self._load(one)
                self._check(one)
            if kind is PartKind.GRADIENT:
                self.take_gradient(one)
            code(self._slots, self)
            if is_last:
                self.bind(one)
        except BaseException as error:  # noqa: BLE001 torch's errors of any class
            self.end_draw()
            self._fail(one, error)
            return
        if is_last:
            self.end(one)

    def _replayed(self, stretch: Stretch, graph: SegmentGraph, parts: tuple[CompiledPart, ...]) -> bool:
        """Replay a graph, with what its records do beside their operators before and after it.

        Returns:
            Whether it was done, or has failed; if not, nothing was.
        """
        segment, slots = stretch.segment, self._slots
        if self._failed:
            return False
        pieces = list(zip(parts, segment.pieces, strict=True))
        begun = [one for one, piece in pieces if piece.is_first and one.part.kind is not PartKind.DROPS]
        try:
            for one in begun:
                self.load(one)
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
                    self.drop(one)
                else:
                    self._fail(one, error if root < 0 else Dependent(root))
                    root = self._replay.seq + one.part.seq if root < 0 else root
            return True
        for one, piece in pieces:
            if one.part.kind is PartKind.DROPS:
                self.drop(one)
            elif piece.is_last:
                self.bind(one)
                self.end(one)
        for slot in segment.dead:
            slots[slot] = None
        return True

    def _begin(self, one: CompiledPart) -> None:
        self.begin(self.seq + one.part.seq, one.part.name)
        if one.part.kind is PartKind.BACKWARD:
            self.begin_backward()

    def spend(self) -> None:
        """Give results the history that they have in a step as written: one that is used up."""
        if not self._spent:
            return
        with WithoutModes():
            for number, value in self._spent:
                if self._replay.values.get(number) is value:
                    anchor = torch.zeros((), requires_grad=True)
                    self._replay.values[number] = _Spent.apply(value, anchor)  # type: ignore[no-untyped-call]
        self._spent.clear()

    # ---- what compiled code calls ----

    def begin_backward(self) -> None:
        """A backward pass begins."""
        self._ops.journal.effects += 1

    def load(self, one: CompiledPart) -> None:
        """Fill slots with values from outside of the step, or with their gradients."""
        if not self._load(one):
            self._check(one)

    def bind(self, one: CompiledPart) -> None:
        """Give leaves the gradients of a backward pass."""
        replay, leaves = self._replay, one.part.leaves
        for leaf, slot, spec in one.grads:
            replay.value(leaf).grad = with_spec(self._slots[slot], spec)
        if leaves:
            replay.sharding.note_backward([replay.number(leaf) for leaf in leaves])

    def end(self, one: CompiledPart) -> None:
        """Keep the results of a record, and count its writes."""
        replay = self._replay
        for kept in one.kept:
            value = with_spec(self._slots[kept.slot], kept.spec)
            number = replay.first + kept.number
            replay.values[number] = value
            if kept.is_spent:
                self._spent.append((number, value))
        for source, count in one.writes:
            value = replay.value(source)
            if isinstance(value, torch.Tensor):  # a gradient that was read may be dropped, and is added to
                for _ in range(count):
                    torch.autograd.graph.increment_version(value)
        for slot in one.after:
            self._slots[slot] = None

    def take_gradient(self, one: CompiledPart) -> None:
        """Make the gradient of a leaf a value of its own, summed over ranks."""
        replay = self._replay
        values, sharding = replay.values, replay.sharding
        leaf, out = replay.number(one.part.refs[0]), replay.first + one.part.results[0]
        grad = sharding.settled_grad(leaf, values)
        if grad is not None:
            values[out] = grad
            return
        with Above(self.below):
            get_grad(values, sharding, leaf, out)

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

    def drop(self, one: CompiledPart) -> None:
        """Drop values, or a gradient."""
        replay, part = self._replay, one.part
        if part.resets is not None:
            set_grad(replay.values, replay.sharding, replay.number(part.resets), 0)
        numbers = part.drops if self._failed else one.held
        if numbers:
            replay.values.free([replay.first + number for number in numbers])

    # ---- what may fail ----

    def _load(self, one: CompiledPart) -> bool:
        """Fill the slots whose values are there, for other records, too; return whether all are."""
        are_all = True
        for slot, source, is_grad in one.loads:
            value = self._replay.value(source)
            if is_grad and type(value) is not Failure and value.grad is None:  # a backward pass has failed
                value = self._replay.values.grads.get(self._replay.number(source))
            if type(value) is Failure:
                self._poisoned[slot] = value.root
                are_all = False
                continue
            if is_grad:
                value = value.grad
            part: Any = value._local_tensor
            self._slots[slot] = part.wait() if isinstance(part, AsyncCollectiveTensor) else part
        return are_all

    def _check(self, one: CompiledPart) -> None:
        """Raise the failure of what a record uses: first of its values in their order, as when it is executed."""
        for source, slot in one.uses:
            value = self._replay.value(source)
            if type(value) is Failure:
                raise Dependent(value.root)
            root = self._spoilt.get(self._memories[slot])
            if value is None and root is not None:  # no value of the rank's, which would have failed
                raise Dependent(root)
            if slot in self._poisoned:
                raise Dependent(self._poisoned[slot])
        for slot in one.ins:
            if slot in self._poisoned:
                raise Dependent(self._poisoned[slot])

    def _fail(self, one: CompiledPart, error: BaseException) -> None:
        replay, part = self._replay, one.part
        seq = replay.seq + part.seq
        self._failed.add(one)
        root = error.root if isinstance(error, Dependent) else seq
        self._poisoned.update(dict.fromkeys(one.outs, root))
        if part.kind is PartKind.BACKWARD:
            numbers = [number for leaf in part.leaves if (number := replay.number(leaf)) in replay.values]
            replay.values.grads.update(dict.fromkeys(numbers, Failure(root)))
        results = [replay.first + number for number in part.results]
        hit = [slot for source, slot in one.uses if source in part.written]
        self._spoilt.update(dict.fromkeys([self._memories[slot] for slot in hit], root))
        written = [replay.number(source) for source in (*part.written, *one.spoils)]
        self._reports.fail(seq, error, part.name, results, written)
        self._is_over = self._reports.is_over()


class _Spent(torch.autograd.Function):
    """The history of a result whose backward pass the step has done."""

    @staticmethod
    def forward(ctx: Any, value: Any, anchor: Any) -> Any:
        return with_spec(value._local_tensor, value._spec)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "Trying to backward through the graph a second time: a captured step has called backward() of this tensor"
        )
