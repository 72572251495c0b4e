"""An optimizer's step as a unit of records: which ones a rank is known to take alone, and how it executes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.stream.records import CALL, FIRST_TEMPLATE, FREE, GET_GRAD, OpSpec
from monarch_hpc.tensor.worker.healing.update import LocalUpdates, Update
from monarch_hpc.tensor.worker.sharded import communication
from monarch_hpc.tensor.worker.template import Template
from monarch_hpc.tensor.worker.values import Failure, Values

PARAMETER, GRADIENT, SCALED = 1, 10, 11
MUL, SUB_ = FIRST_TEMPLATE, FIRST_TEMPLATE + 1


class _Sharding:
    """Gives gradients."""

    def grad_of(self, number: int, values: Values) -> Any:
        """That of a leaf."""
        return values[number].grad


@pytest.fixture(autouse=True)
def _grad_mode() -> Iterator[None]:
    """An update sets torch's mode for its thread, as on a rank, whose next record sets it again."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        yield


def _templates() -> dict[int, Any]:
    """The operators of a step."""
    mul = OpSpec("Tensor:mul", b"", "E[a[i+1]], a[i+2]", (), (1,), (), 2, 1, False, False, ())
    sub = OpSpec("Tensor:sub_", b"", "E[a[i+1]], E[a[i+2]]", (), (1, 2), (1,), 2, 0, False, False, ())
    return {MUL: Template(mul), SUB_: Template(sub)}


def _values() -> Values:
    values = Values()
    values[PARAMETER] = torch.full((2,), 7.0, requires_grad=True)
    values[PARAMETER].grad = torch.ones(2)
    return values


def _step(first: int = GRADIENT) -> list[int]:
    """A step of gradient descent whose results are numbered from *first* on."""
    scaled = first + 1
    return [GET_GRAD, PARAMETER, first, MUL, first, 3, scaled, SUB_, PARAMETER, scaled, FREE, 2, first, scaled]


def test_it_executes_its_records() -> None:
    values = _values()
    update = Update(_step(), _templates(), values)
    assert update.operations == (GET_GRAD, MUL, SUB_)
    assert update.leaves == [PARAMETER]
    update.apply(_Sharding())
    assert values[PARAMETER].tolist() == [4, 4]
    assert set(values) == {0, PARAMETER}


def test_it_is_local_once_it_has_been_and_while_its_values_are_there() -> None:
    values, known = _values(), LocalUpdates()
    update = Update(_step(), _templates(), values)
    assert not known.has(update, values)
    with known.learning(update, lambda: 0):
        update.apply(_Sharding())
    later = Update(_step(first=20), _templates(), values)
    assert known.has(later, values)
    values[99] = Failure(3)
    values.num_failed = 1
    assert known.has(later, values)  # it does not use that
    values.grads[98] = Failure(3)
    assert known.has(later, values)  # nor that: another module's gradients were lost in a heal
    values.grads[PARAMETER] = Failure(3)
    assert not known.has(later, values)
    del values.grads[PARAMETER]
    values[PARAMETER] = Failure(3)
    assert not known.has(later, values)


def test_one_that_has_failed_or_communicated_is_not_local() -> None:
    values = _values()
    for num_failures, communicates in (([0, 1], False), ([0, 0], True)):
        known = LocalUpdates()
        update = Update(_step(), _templates(), values)
        counts = iter(num_failures)
        with known.learning(update, lambda counts=counts: next(counts)):  # type: ignore[misc]
            if communicates:
                _communicate()
        assert not known.has(update, values)


def _communicate() -> None:
    communication._active[-1].note("all_reduce", 4)


def test_other_records_than_those_of_torch_are_never_local() -> None:
    values, known = _values(), LocalUpdates()
    update = Update([*_step(), CALL, 0, 30, 0], _templates(), values)
    assert update.operations is None
    with known.learning(update, lambda: 0):
        pass
    assert not known.has(update, values)
