"""The places of numbers of values in records, for those that move or check records without executing them; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.records import (
    CallRequest,
    CollectiveSpec,
    CoordinateSpec,
    OpSpec,
    ProgramSpec,
    TransferSpec,
)

__all__ = ["RecordLayout", "layout_of"]


class RecordLayout(NamedTuple):
    """The parts of a record, by position in it.

    Attributes:
        size: number of its integers.
        refs: positions of the values that it uses; 0 stands there for none.
        out: position of the number of its first result; 0 if it has none.
        num_outs: number of results.
        obj: position of the place of its object; 0 if it has none.
    """

    size: int
    refs: tuple[int, ...] = ()
    out: int = 0
    num_outs: int = 0
    obj: int = 0


_FIXED = {
    records.GET_GRAD: RecordLayout(3, (1,), 2, 1),
    records.NO_GRAD: RecordLayout(2, (1,)),
    records.SET_GRAD: RecordLayout(3, (1, 2)),
    records.REQUIRE_GRAD: RecordLayout(3, (1,)),
    records.SET_DATA: RecordLayout(4, (1, 2)),
    records.ALIAS: RecordLayout(3, (1,), 2, 1),
    records.PUT: RecordLayout(3, (), 2, 1, 1),
    records.LEND: RecordLayout(3, (1,)),
    records.LOAN: RecordLayout(3, (1,)),
    records.UPDATE: RecordLayout(5),
    records.COMMIT: RecordLayout(3),
}


def layout_of(a: Sequence[int], i: int, objects: Sequence[Any], spec_of: Callable[[int], Any]) -> RecordLayout:
    """The layout of the record at *i*.

    Args:
        a: integers of a frame.
        i: where the record begins.
        objects: of the frame.
        spec_of: the template with a number.

    Raises:
        ValueError: it is not a record.
    """
    number = a[i]
    fixed = _FIXED.get(number)
    try:
        if fixed is not None:
            found = fixed
        elif number == records.TAKE:
            found = RecordLayout(5, (4,), 3 if a[i + 3] else 0, 1 if a[i + 3] else 0)
        elif number == records.FREE:
            found = RecordLayout(2 + _count(a[i + 1]))
        elif number == records.BACKWARD:
            num = _count(a[i + 4])
            found = RecordLayout(5 + num, (1, 2, *range(5, 5 + num)))
        elif number == records.CALL:
            num = _count(a[i + 3])
            request: CallRequest = objects[_count(a[i + 1])]
            num_outs = 1 if request.num_outs < 0 else request.num_outs
            found = RecordLayout(4 + num, tuple(range(4, 4 + num)), 2, num_outs, 1)
        else:
            found = _of_spec(a, i, spec_of(number))
    except (IndexError, KeyError, AttributeError):
        raise ValueError(f"record {number} at {i} of {len(a)} integers is cut off, or not known") from None
    if i + found.size > len(a):
        raise ValueError(f"record {number} at {i} has {found.size} integers, and the frame {len(a)}")
    return found


def _of_spec(a: Sequence[int], i: int, spec: Any) -> RecordLayout:
    match spec:
        case OpSpec():
            out = spec.num_args + 1 if spec.num_outs else 0
            return RecordLayout(1 + spec.num_args + (1 if spec.num_outs else 0), spec.refs, out, spec.num_outs)
        case CoordinateSpec():
            return RecordLayout(2, (), 1, 1)
        case CollectiveSpec():
            return RecordLayout(6 + _count(a[i + 5]), (1,), 2 if a[i + 2] else 0, 1 if a[i + 2] else 0)
        case TransferSpec():
            return RecordLayout(
                6 + _count(a[i + 5]), (1,) if a[i + 1] else (), 2 if a[i + 2] else 0, 1 if a[i + 2] else 0
            )
        case ProgramSpec():
            return RecordLayout(2 + spec.num_formals + spec.num_floats, tuple(range(2, 2 + spec.num_formals)), 1, 0)
        case _:
            raise ValueError(f"record {a[i]} at {i} is not known")


def _count(number: int) -> int:
    if number < 0:
        raise ValueError(f"a count of {number}")
    return number
