"""A captured step as the operators on this rank's parts: compiled of two recordings that are alike, and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.worker.gradients import set_grad
from monarch_hpc.tensor.worker.lowered.parts import PartKind, StepPart
from monarch_hpc.tensor.worker.lowered.recording import KeptResult, RecordedPart, Replay, ReplayRecording, ValueGuard
from monarch_hpc.tensor.worker.lowered.trace import (
    Call,
    CannotLower,
    Draw,
    Instruction,
    TensorSlot,
    WriteNote,
    own_part,
    place_of,
)
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
    outside = one.guards == other.guards and one.same == other.same
    if not outside or one.kept != other.kept or not _is_alike(one.parts, other.parts):
        raise CannotLower("what runs differs from replay to replay")


class LoweredStep:
    """A captured step on one rank.

    Args:
        recording: what a replay did.
        reports: of the executor.
    """

    def __init__(self, recording: ReplayRecording, reports: ReplayReports) -> None:
        self._reports = reports
        self._guards = recording.guards
        self._same = recording.same
        self._grads = recording.grads
        self._constants = recording.constants
        self._num_slots = recording.num_slots
        kept: dict[int, KeptResult] = {one.number: one for one in recording.kept}
        drops = _drops(recording, kept)
        read = {n for one in recording.parts if one.part.kind is PartKind.AS_RECORDED for n in one.part.results}
        held = kept.keys() | read
        parts = [_Compiled(found, kept, held, drops[place]) for place, found in enumerate(recording.parts)]
        self._groups = [(lowers, tuple(group)) for lowers, group in groupby(parts, lambda one: one.lowers)]

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
        for lowers, parts in self._groups:
            if lowers:
                with BelowAll():
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
        self.outs = frozenset(_made(found.instructions))
        self.ins = frozenset(_used(found.instructions)) | (bound - self.outs)
        self.after = tuple(drops & bound)
        self.code = _compile(found.instructions, drops - bound) if self.lowers else _nothing


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
        self._spent: list[tuple[int, Any]] = []
        self._draw: AbstractContextManager[None] | None = None

    def lowered(self, parts: Iterable[_Compiled]) -> None:
        replay, reports, slots = self._replay, self._reports, self.slots
        for one in parts:
            part = one.part
            seq = replay.seq + part.seq
            if part.kind is PartKind.DROPS:
                self._drop(one)
                continue
            reports.begin(seq, part.name)
            try:
                if part.kind is PartKind.BACKWARD:
                    self._ops.journal.effects += 1
                if one.loads:
                    self._load(one)
                if self._poisoned:
                    self._check(one)
                one.code(slots, self)
                for leaf, slot, spec in one.grads:
                    replay.value(leaf).grad = with_spec(slots[slot], spec)
                if part.leaves:
                    replay.sharding.note_backward([replay.number(leaf) for leaf in part.leaves])
            except BaseException as error:  # noqa: BLE001 torch's errors of any class
                self.end_draw()
                self._fail(one, seq, error)
                if reports.is_over():
                    return
                continue
            for kept in one.kept:
                value = with_spec(slots[kept.slot], kept.spec)
                number = replay.first + kept.number
                replay.values[number] = value
                if kept.is_spent:
                    self._spent.append((number, value))
            for source, count in one.writes:
                value = replay.value(source)
                for _ in range(count):
                    torch.autograd.graph.increment_version(value)
            for slot in one.after:
                slots[slot] = None

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

    def _fail(self, one: _Compiled, seq: int, error: BaseException) -> None:
        replay, part = self._replay, one.part
        root = error.root if isinstance(error, Dependent) else seq
        self._poisoned.update(dict.fromkeys(one.outs, root))
        if part.kind is PartKind.BACKWARD:
            numbers = [number for leaf in part.leaves if (number := replay.number(leaf)) in replay.values]
            replay.values.grads.update(dict.fromkeys(numbers, Failure(root)))
        results = [replay.first + number for number in part.results]
        written = [replay.number(source) for source in (*part.written, *one.spoils)]
        self._reports.fail(seq, error, part.name, results, written)


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


# ---- code ----


def _compile(instructions: Sequence[Instruction], drops: set[int]) -> Callable[[list[Any], _Run], None]:
    names: dict[str, Any] = {}
    last: dict[int, int] = {}
    for at, instruction in enumerate(instructions):
        for slot in (*_used((instruction,)), *_made((instruction,))):
            last[slot] = at
    lines = []
    for at, instruction in enumerate(instructions):
        lines.append(_line(instruction, names))
        dead = [f"S[{slot}]" for slot, end in last.items() if end == at and slot in drops]
        if dead:
            lines.append(f"{'='.join(dead)}=None")
    exec("def run(S,X):\n " + "\n ".join(lines or ["pass"]), names)  # made of numbers and names of ours alone
    run: Callable[[list[Any], _Run], None] = names["run"]
    return run


def _line(instruction: Instruction, names: dict[str, Any]) -> str:
    if isinstance(instruction, WriteNote):
        return f"X.save({','.join(f'S[{slot}]' for slot in instruction.slots)})"
    if isinstance(instruction, Draw):
        return "X.begin_draw()" if instruction.begins else "X.end_draw()"
    given = [_expression(arg, names) for arg in instruction.args]
    given += [f"{name}={_expression(arg, names)}" for name, arg in instruction.kwargs.items()]
    call = f"{_named(instruction.op, names)}({','.join(given)})"
    outs = ["_" if slot is None else f"S[{slot}]" for slot in instruction.outs]
    if all(slot is None for slot in instruction.outs):
        return call
    return f"{','.join(outs)}{',' if instruction.is_many else ''}={call}"


def _expression(arg: Any, names: dict[str, Any]) -> str:
    if isinstance(arg, TensorSlot):
        return f"S[{arg.number}]"
    if isinstance(arg, list):
        return f"[{','.join(_expression(item, names) for item in arg)}]"
    if isinstance(arg, tuple):
        return f"({''.join(_expression(item, names) + ',' for item in arg)})"
    if arg is None or type(arg) in (bool, int):
        return repr(arg)
    return _named(arg, names)


def _named(one: Any, names: dict[str, Any]) -> str:
    name = f"c{len(names)}"
    names[name] = one
    return name


def _nothing(_slots: list[Any], _run: _Run) -> None:
    """A record that is executed as it is."""


def _slots_in(arg: Any) -> Iterator[int]:
    if isinstance(arg, TensorSlot):
        yield arg.number
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _slots_in(item)


def _used(instructions: Iterable[Instruction]) -> Iterator[int]:
    for one in instructions:
        if isinstance(one, WriteNote):
            yield from one.slots
        elif isinstance(one, Call):
            yield from _slots_in(list(one.args))
            yield from _slots_in(list(one.kwargs.values()))


def _made(instructions: Iterable[Instruction]) -> Iterator[int]:
    for one in instructions:
        if isinstance(one, Call):
            yield from (slot for slot in one.outs if slot is not None)


def _drops(recording: ReplayRecording, kept: dict[int, KeptResult]) -> list[set[int]]:
    """The slots that no part after each one needs."""
    last: dict[int, int] = {}
    for place, found in enumerate(recording.parts):
        grads = [slot for _, slot, _ in found.grads]
        results = [kept[number].slot for number in found.part.results if number in kept]
        for slot in (*_used(found.instructions), *_made(found.instructions), *grads, *results):
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
