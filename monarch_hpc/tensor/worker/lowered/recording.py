"""Records one replay of a captured step while it is executed as its records say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from monarch_hpc.tensor.worker.healing.journal import is_small_sum
from monarch_hpc.tensor.worker.lowered.parts import Origin, PartKind, StepPart, ValueSource
from monarch_hpc.tensor.worker.lowered.trace import CannotLower, Instruction, SlotFact, StepTrace, own_part, place_of
from monarch_hpc.tensor.worker.sharded.modes import Below
from monarch_hpc.tensor.worker.values import storage_of

__all__ = ["KeptResult", "RecordedPart", "Replay", "ReplayRecording", "ValueGuard", "record"]

_GRADIENT_AS_VALUE = "it uses a gradient as a value, too"


class Replay(NamedTuple):
    """One replay of a step.

    Attributes:
        first: number of the first value that it makes.
        given: numbers of its arguments.
        seq: its first sequence number.
        ints: its records.
        objects: what they refer to.
        values: of this rank.
        sharding: how operators run.
        run: executes records: the first one's sequence number, integers, and objects.
    """

    first: int
    given: list[int]
    seq: int
    ints: list[int]
    objects: Sequence[Any]
    values: Any
    sharding: Any
    run: Callable[[int, list[int], Sequence[Any]], None]

    def number(self, source: ValueSource) -> int:
        """The number of a value."""
        if source.of is Origin.OWN:
            return self.first + source.number
        return self.given[source.number] if source.of is Origin.FORMAL else source.number

    def value(self, source: ValueSource) -> Any:
        """A value; None if it is not there."""
        return self.values.get(self.number(source))

    def run_all(self) -> None:
        """Execute its records as they are."""
        self.run(self.seq, self.ints, self.objects)

    def run_parts(self, first: StepPart, last: StepPart) -> None:
        """Execute records as they are."""
        self.run(self.seq + first.seq, self.ints[first.begin : last.end], self.objects)


class ValueGuard(NamedTuple):
    """What a value from outside of the step was like: its DTensorSpec, and this rank's part."""

    spec: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    grads: bool

    @staticmethod
    def of(tensor: DTensor) -> ValueGuard:
        """Describe a value."""
        part = own_part(tensor)
        return ValueGuard(tensor._spec, tuple(part.shape), part.stride(), tensor.requires_grad)


class KeptResult(NamedTuple):
    """A result that others use: its number among own values, slot, DTensorSpec, and whether it had a history."""

    number: int
    slot: int
    spec: Any
    is_spent: bool


class RecordedPart(NamedTuple):
    """What a record did.

    Attributes:
        part: the record.
        uses: the values that it uses, and their slots, also where no operator does: it fails if they could not be made.
        loads: slots that get a value's part, or that of its gradient, before it.
        instructions: the operators.
        grads: of a backward pass, leaves with new gradients, their slots, and DTensorSpecs.
        writes: values from outside that it has written to, and by how much their versions went up.
        spoils: values from outside that share memory with those that it writes to.
    """

    part: StepPart
    uses: tuple[tuple[ValueSource, int], ...] = ()
    loads: tuple[tuple[int, ValueSource, bool], ...] = ()
    instructions: tuple[Instruction, ...] = ()
    grads: tuple[tuple[ValueSource, int, Any], ...] = ()
    writes: tuple[tuple[ValueSource, int], ...] = ()
    spoils: tuple[ValueSource, ...] = ()


class ReplayRecording(NamedTuple):
    """What a replay did.

    Attributes:
        parts: its records.
        slots: what their tensors were like.
        constants: tensors by slot.
        guards: what it used from outside.
        same: pairs of values from outside that are the same memory, seen alike.
        grads: DTensorSpecs of gradients that its leaves had before, unless it drops them; None where they had none.
        kept: its results.
    """

    parts: tuple[RecordedPart, ...]
    slots: tuple[SlotFact, ...]
    constants: dict[int, torch.Tensor]
    guards: dict[ValueSource, ValueGuard]
    same: tuple[tuple[ValueSource, ValueSource], ...]
    grads: dict[ValueSource, Any]
    kept: tuple[KeptResult, ...]


def record(parts: Sequence[StepPart], replay: Replay, is_whole: Callable[[], bool]) -> ReplayRecording:
    """Execute a replay, and return what it did.

    Args:
        parts: of the step.
        replay: the replay.
        is_whole: tells whether nothing has failed.

    Raises:
        CannotLower: it was executed, and cannot be replayed otherwise.
    """
    recorder = _Recorder(parts, replay)
    ops = replay.sharding.ops
    ops.trace = trace = recorder.trace
    try:
        with Below(trace):
            for place, part in enumerate(parts):
                if recorder.reason or trace.reason:
                    replay.run_parts(part, parts[-1])
                    break
                recorder.run(place)
                if not is_whole():
                    recorder.reason = "an operation has failed"
    finally:
        ops.trace = None
    return recorder.recording()


class _Recorder:
    def __init__(self, parts: Sequence[StepPart], replay: Replay) -> None:
        self.trace = StepTrace()
        self.reason = ""
        self._parts = parts
        self._replay = replay
        self._found: list[RecordedPart] = []
        self._outside: dict[ValueSource, DTensor] = {}
        self._guards: dict[ValueSource, ValueGuard] = {}
        self._same: list[tuple[ValueSource, ValueSource]] = []
        self._kept: dict[int, KeptResult] = {}
        self._losses = {part.refs[0] for part in parts if part.kind is PartKind.BACKWARD and not part.retains}
        self._makers = {number for part in parts if part.kind is PartKind.OPERATION for number in part.results}
        resets = {part.resets for part in parts if part.resets is not None}
        leaves = {leaf for part in parts for leaf in part.leaves} - resets
        self._grads = {leaf: _spec_of_grad(replay.value(leaf)) for leaf in leaves}
        if any(part.retains for part in parts):
            self.reason = "it keeps autograd's graph"

    def run(self, place: int) -> None:
        part = self._parts[place]
        if part.kind in (PartKind.DROPS, PartKind.GRADIENT, PartKind.OPTIMIZER):
            if part.kind is PartKind.OPTIMIZER:
                self._keep_sums()
            self._replay.run_parts(part, part)
            self._found.append(RecordedPart(part))
            return
        try:
            uses, loads = self._used(part)
        except CannotLower as refusal:
            self.reason = refusal.reason
            self._replay.run_parts(part, part)
            return
        spoils = self._sharing(part.written)
        versions = {source: value._version for source, value in self._outside.items()}
        before = {source: value.grad for source, value in self._outside.items() if value.is_leaf}
        self.trace.is_paused = False
        try:
            self._replay.run_parts(part, part)
        finally:
            self.trace.is_paused = True
        instructions, self.trace.instructions = tuple(self.trace.instructions), []
        writes = tuple(
            (source, value._version - versions[source])
            for source, value in self._outside.items()
            if value._version != versions[source]
        )
        try:
            grads = self._new_grads(part, before)
        except CannotLower as refusal:
            self.reason = refusal.reason
            return
        self._found.append(RecordedPart(part, uses, loads, instructions, grads, writes, spoils))

    def _used(
        self, part: StepPart
    ) -> tuple[tuple[tuple[ValueSource, int], ...], tuple[tuple[int, ValueSource, bool], ...]]:
        """See `RecordedPart`: *uses* and *loads*."""
        found = []
        uses = []
        num_outside = len(self._outside)
        for source in dict.fromkeys((*part.refs, *part.leaves)):
            value = self._replay.value(source)
            if value is None:
                continue
            if not isinstance(value, DTensor):
                raise CannotLower("it uses a value that is no sharded tensor")
            is_made = source.of is Origin.OWN and source.number in self._makers
            if not is_made:
                self._note_outside(source, value)
            slot = self.trace.slot_of(own_part(value))
            if slot is None and is_made:
                raise CannotLower("it uses a result that no operator of the step has made")
            if slot is None:
                slot = self.trace.define(own_part(value))
                found.append((slot, source, False))
            if source in part.refs:
                uses.append((source, slot))
        if part.leaves or len(self._outside) > num_outside:
            self._check_gradients()
        for leaf in part.leaves:
            grad = self._outside[leaf].grad if leaf in self._outside else None
            if grad is not None and self.trace.slot_of(own_part(grad)) is None:
                found.append((self.trace.define(own_part(grad)), leaf, True))
        return tuple(uses), tuple(found)

    def _check_gradients(self) -> None:
        """Refuse gradients that are values from outside, too: what is one memory now may be two at a replay."""
        outside = {place_of(own_part(value)) for source, value in self._outside.items() if source.of is not Origin.OWN}
        grads = [value.grad for value in self._outside.values() if value.is_leaf and value.grad is not None]
        if any(place_of(own_part(grad)) in outside for grad in grads):
            raise CannotLower(_GRADIENT_AS_VALUE)

    def _sharing(self, written: Sequence[ValueSource]) -> tuple[ValueSource, ...]:
        """The values from outside that share memory with some values."""
        if not written:
            return ()
        hit = {storage_of(value) for one in written if isinstance(value := self._replay.value(one), DTensor)}
        return tuple(source for source, value in self._outside.items() if storage_of(value) in hit)

    def _note_outside(self, source: ValueSource, value: DTensor) -> None:
        if source in self._outside:
            return
        if hasattr(value, "_stand_in") or "_copied_at" in value.__dict__:
            raise CannotLower("it uses a parameter of a module that lives on the ranks, or a view that is a copy")
        if value.requires_grad and not value.is_leaf:
            raise CannotLower("it goes on with a tensor that has a history: detach() it")
        if isinstance(value._local_tensor, AsyncCollectiveTensor):
            raise CannotLower("it uses a tensor that is under way between ranks")
        place = place_of(own_part(value))
        for other, one in self._outside.items():
            if place_of(own_part(one)) != place:
                continue
            if (source.of is Origin.OWN) is not (other.of is Origin.OWN):
                raise CannotLower(_GRADIENT_AS_VALUE)
            if source.of is not Origin.OWN:
                self._same.append((source, other))
        self._outside[source] = value
        if source.of is not Origin.OWN:
            self._guards[source] = ValueGuard.of(value)

    def _new_grads(self, part: StepPart, before: dict[ValueSource, Any]) -> tuple[tuple[ValueSource, int, Any], ...]:
        changed = [source for source, grad in before.items() if self._outside[source].grad is not grad]
        if set(changed) - set(part.leaves):
            raise CannotLower("it makes gradients of tensors that it does not name")
        found = []
        for leaf in part.leaves:
            if leaf not in self._outside:
                raise CannotLower("it makes gradients of its own results")
            if leaf not in changed:
                continue
            grad: Any = self._outside[leaf].grad
            slot = self._slot_of(grad)
            if slot is None:
                raise CannotLower("it makes a gradient that is no result of an operator")
            found.append((leaf, slot, grad._spec))
        return tuple(found)

    def _slot_of(self, value: Any) -> int | None:
        """The slot of what an operator has made; None if none has, or it is under way between ranks."""
        if not isinstance(value, DTensor) or isinstance(value._local_tensor, AsyncCollectiveTensor):
            return None
        return self.trace.slot_of(own_part(value))

    def _keep_sums(self) -> None:
        """Keep small sums that are not added up: a commit adds them, in as many messages on all ranks."""
        for number in self._makers:
            value = self._replay.value(ValueSource(Origin.OWN, number))
            if is_small_sum(value):
                self._keep(number, value, is_result=False)

    def _keep(self, number: int, value: Any, *, is_result: bool) -> None:
        slot = self._slot_of(value)
        if slot is None:
            self.reason = "it returns a tensor that no operator of the step has made"
            return
        is_spent = value.requires_grad and is_result
        if is_spent and ValueSource(Origin.OWN, number) not in self._losses:
            self.reason = "it returns a tensor with a history: detach() it"
        if "_copied_at" in value.__dict__:
            self.reason = "it returns a view that is a copy"
        self._kept[number] = KeptResult(number, slot, value._spec, is_spent)

    def recording(self) -> ReplayRecording:
        results = {number: self._replay.value(ValueSource(Origin.OWN, number)) for number in self._makers}
        for number, value in results.items():
            if value is not None and not self.reason:
                self._keep(number, value, is_result=True)
        if not self.reason:
            made = [storage_of(value) for value in results.values() if value is not None]
            if len(set(made)) < len(made) or set(made) & {storage_of(value) for value in self._outside.values()}:
                self.reason = "it returns views"
        if self.trace.reason or self.reason:
            raise CannotLower(self.trace.reason or self.reason)
        trace, kept = self.trace, tuple(self._kept.values())
        same = tuple(self._same)
        return ReplayRecording(
            tuple(self._found), tuple(trace.slots), trace.constants, self._guards, same, self._grads, kept
        )


def _spec_of_grad(leaf: Any) -> Any:
    grad = getattr(leaf, "grad", None)
    return None if grad is None else grad._spec
