"""Values of a rank, some of which are lost with an earlier process of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.worker.gradients import set_data
from monarch_hpc.tensor.worker.values import Dependent, Failure, Values, is_lost, lost_root, lost_value


def _values() -> Values:
    values = Values()
    values.lost_rank, values.lost_before = 3, 10
    values[12] = torch.ones(2)
    return values


def test_a_root_says_the_rank_and_the_value() -> None:
    root = lost_root(3, 7)
    assert is_lost(root) and lost_value(root) == (3, 7)
    assert not is_lost(7) and not is_lost(-2)
    assert is_lost(lost_root(0, 1)) and lost_value(lost_root(0, 1)) == (0, 1)


def test_what_an_earlier_process_held_is_lost_and_what_never_was_is_a_fault() -> None:
    values = _values()
    with pytest.raises(Dependent) as caught:
        values[7]
    assert lost_value(caught.value.root) == (3, 7)
    found = values.found(7)
    assert type(found) is Failure and found.root == lost_root(3, 7)
    assert values.found(12) is values[12]
    with pytest.raises(KeyError):
        values[11]


def test_a_number_that_no_value_has_is_a_fault_also_where_values_are_lost() -> None:
    values = Values()
    for lost_before in (0, 10):
        values.lost_before = lost_before
        for number in (-1, -(1 << 63), 1 << 62):
            with pytest.raises(KeyError):
                values[number]


def test_new_contents_replace_what_is_lost_or_has_failed() -> None:
    values = _values()
    values.fail(5, [13], [])
    for number, kind in ((7, 1), (13, 0)):
        set_data(values, number, 12, kind)
        assert values[number].tolist() == [1.0, 1.0]
        assert values[number].requires_grad is bool(kind) and values[number].is_leaf
    assert values.num_failed == 0
    with pytest.raises(Dependent):  # its history does not come back
        set_data(values, 8, 12, 2)
    with pytest.raises(Dependent):  # the new contents are lost themselves
        set_data(values, 13, 9, 0)
