"""Divides the records of a captured step into those that are made of operators alone, and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from monarch_hpc.tensor.stream.records import BACKWARD, FREE, GET_GRAD, NO_GRAD, OPTIMIZER_STEP
from monarch_hpc.tensor.worker.lowered.trace import CannotLower
from monarch_hpc.tensor.worker.programs import ReplayedProgram
from monarch_hpc.tensor.worker.template import Template

__all__ = ["Origin", "PartKind", "StepPart", "ValueSource", "parts_of"]

_PURE = frozenset({"global_from_shards", "local", "made", "redistribute"})
"""Functions of ours by name that do nothing but to run operators; see `sharded.calls`."""
_CALLS = "monarch_hpc.tensor.worker.sharded.calls"


class PartKind(Enum):
    """What a part does; an optimizer steps as it was recorded."""

    OPERATION = "operation"
    BACKWARD = "backward"
    GRADIENT = "gradient"
    DROPS = "drops"
    OPTIMIZER = "optimizer's step"


class Origin(Enum):
    """Whose numbers a `ValueSource` counts."""

    RANK = "rank"
    OWN = "own"
    FORMAL = "formal"


class ValueSource(NamedTuple):
    """A value by number: of the rank's, counted from the step's first own one, or by its place among the arguments."""

    of: Origin
    number: int


class StepPart(NamedTuple):
    """One record.

    Attributes:
        begin: position of its first integer.
        end: position behind its last one.
        seq: sequence number, counted from the step's first.
        name: of the operation.
        kind: what it does.
        refs: values that it uses; of one that takes a gradient, the leaf.
        results: numbers of own values that it makes.
        drops: numbers of own values that it drops.
        written: values that it writes to.
        leaves: of a backward pass, the values whose gradients it makes.
        retains: of a backward pass, whether autograd's graph is kept.
        resets: the value whose gradient it drops; None if it drops none.
    """

    begin: int
    end: int
    seq: int
    name: str
    kind: PartKind
    refs: tuple[ValueSource, ...] = ()
    results: Sequence[int] = ()
    drops: Sequence[int] = ()
    written: tuple[ValueSource, ...] = ()
    leaves: tuple[ValueSource, ...] = ()
    retains: bool = False
    resets: ValueSource | None = None


def parts_of(
    program: ReplayedProgram, templates: Mapping[int, Any], size_of: Callable[[list[int], int], tuple[int, int]]
) -> list[StepPart]:
    """The parts of a step.

    Args:
        program: the step.
        templates: of this rank.
        size_of: gives the number of integers of the record at a position, and of its sequence numbers.

    Raises:
        CannotLower: it has records of other kinds.
    """
    ints = program.ints
    own, formals = set(program.own), dict(program.formals)

    def source(at: int) -> ValueSource:
        if at in own:
            return ValueSource(Origin.OWN, ints[at])
        return ValueSource(Origin.FORMAL, formals[at]) if at in formals else ValueSource(Origin.RANK, ints[at])

    def sources(places: range | list[int]) -> tuple[ValueSource, ...]:
        return tuple(source(at) for at in places if at in own or at in formals or ints[at])

    found: list[StepPart] = []
    i = seq = 0
    while i < len(ints):
        number = ints[i]
        template = templates.get(number)
        if type(template) is Template:
            if not _is_pure(template):
                raise CannotLower(f"it calls the function {template.name}")
            first = ints[i + template.size - 1] if template.num_outs else 0
            results = range(first, first + template.num_outs)
            refs = sources([i + place for place in template.refs])
            written = sources([i + place for place in template.mutated])
            end = i + template.size
            part = StepPart(i, end, seq, template.name, PartKind.OPERATION, refs, results, written=written)
            found.append(part)
            i, seq = end, seq + 1
            continue
        size, num = size_of(ints, i)
        end = i + size
        if number == BACKWARD:
            refs, leaves = sources(range(i + 1, i + 3)), sources(range(i + 5, end))
            part = StepPart(
                i, end, seq, "Tensor.backward", PartKind.BACKWARD, refs, leaves=leaves, retains=bool(ints[i + 3])
            )
        elif number == FREE:
            part = StepPart(i, end, seq, "", PartKind.DROPS, drops=tuple(ints[i + 2 : end]))
        elif number == NO_GRAD:
            part = StepPart(i, end, seq, "Tensor.grad", PartKind.DROPS, resets=source(i + 1))
        elif number == GET_GRAD:
            part = StepPart(i, end, seq, "Tensor.grad", PartKind.GRADIENT, sources([i + 1]), (ints[i + 2],))
        elif number == OPTIMIZER_STEP:
            part = StepPart(i, end, seq, "", PartKind.OPTIMIZER)
        else:
            raise CannotLower("it calls functions or modules on the ranks, or changes what requires a gradient")
        found.append(part)
        i, seq = end, seq + num
    return found


def _is_pure(template: Template) -> bool:
    function = template.function
    return template.is_op or (
        getattr(function, "__module__", "") == _CALLS and getattr(function, "__name__", "") in _PURE
    )
