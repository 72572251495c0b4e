"""The records of a captured step as code over slots: each on its own, and those in a row as one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import groupby

from monarch_hpc.tensor.worker.lowered.code import Code, CodeWriter, compile_code, made_by, used_by
from monarch_hpc.tensor.worker.lowered.parts import PartKind
from monarch_hpc.tensor.worker.lowered.recording import KeptResult, RecordedPart, ReplayRecording

__all__ = ["CompiledGroup", "CompiledPart", "groups_of"]


class CompiledPart:
    """A record, and a function of the slots that does what it did.

    Args:
        found: the record.
        kept: results that others use, by number.
        held: numbers of own values that are there.
        drops: slots that no part after it needs.

    Attributes:
        part: the record; *loads*, *grads*, *writes* and *spoils* are those of `RecordedPart`.
        lowers: whether it is executed here.
        kept: its results that others use.
        held: numbers of values that it drops and that are there.
        uses: see `RecordedPart`.
        outs: slots that it fills.
        ins: slots that it uses.
        after: slots that are dropped after what it does beside its operators.
    """

    def __init__(self, found: RecordedPart, kept: dict[int, KeptResult], held: set[int], drops: set[int]) -> None:
        self.part = found.part
        self.lowers = found.part.kind is not PartKind.OPTIMIZER
        self.loads = found.loads
        self.grads = found.grads
        self.writes = found.writes
        self.spoils = found.spoils
        self.kept = tuple(kept[number] for number in found.part.results if number in kept)
        self.held = tuple(number for number in found.part.drops if number in held)
        bound = {slot for _, slot, _ in found.grads} | {one.slot for one in self.kept}
        self.outs = frozenset(made_by(found.instructions))
        self.uses = found.uses
        self.ins = frozenset(used_by(found.instructions)) | (bound - self.outs)
        self.after = tuple(drops & bound)
        self._instructions = found.instructions
        self._drops = drops - bound

    @cached_property
    def code(self) -> Code:
        """Its operators."""
        return compile_code(self._instructions, self._drops)

    def write(self, writer: CodeWriter, place: int) -> None:
        """Write all that it does, and that it is under way.

        Args:
            writer: writes it.
            place: of this record among those of the code.
        """
        part, kind = self.part, self.part.kind
        if kind is PartKind.DROPS:
            if self.held or part.resets is not None:
                writer.line(f"X.drop({writer.named(self)})")
            return
        if kind is PartKind.OPERATION and not (self._instructions or self.loads or self.kept):
            return  # a result that is an argument
        writer.line(f"X.at={place}")
        writer.line(f"begin(seq+{part.seq},{part.name!r})")
        if kind is PartKind.GRADIENT:
            writer.line(f"X.take_gradient({writer.named(self)})")
            return
        if kind is PartKind.BACKWARD:
            writer.line("X.begin_backward()")
        if self.loads:
            writer.line(f"X.load({writer.named(self)})")
        writer.add(self._instructions, self._drops)
        if self.grads or part.leaves:
            writer.line(f"X.bind({writer.named(self)})")
        if self.kept or self.writes or self.after:
            writer.line(f"X.end({writer.named(self)})")


class CompiledGroup:
    """Records in a row that are executed here, or that all are not.

    Args:
        lowers: whether they are.
        parts: the records.

    Attributes:
        has_ops: whether they do more than to drop values.
    """

    def __init__(self, lowers: bool, parts: Iterable[CompiledPart]) -> None:
        self.lowers = lowers
        self.parts = tuple(parts)
        self.has_ops = any(one.part.kind is not PartKind.DROPS for one in self.parts)

    @cached_property
    def code(self) -> Code:
        """All that they do, one after the other, while nothing has failed."""
        writer = CodeWriter()
        writer.line("begin,seq=X.begin,X.seq")
        for place, one in enumerate(self.parts):
            one.write(writer, place)
        return writer.code()


def groups_of(recording: ReplayRecording) -> list[CompiledGroup]:
    """The records of a step."""
    kept = {one.number: one for one in recording.kept}
    drops = _drops(recording, kept)
    gradients = {n for one in recording.parts if one.part.kind is PartKind.GRADIENT for n in one.part.results}
    held = kept.keys() | gradients
    parts = [CompiledPart(found, kept, held, drops[place]) for place, found in enumerate(recording.parts)]
    return [CompiledGroup(lowers, group) for lowers, group in groupby(parts, lambda one: one.lowers)]


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
