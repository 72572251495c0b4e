"""Epochs of the process groups of a rank."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from monarch_hpc.tensor.worker.collectives.groups import Groups


def test_an_epoch_that_has_ended_is_not_begun_and_a_late_end_of_an_earlier_one_is_ignored() -> None:
    groups = Groups(0, {}, None, {}, 1.0)  # type: ignore[arg-type]  # nobody is met here
    assert groups.abort("rank 1 died", 2)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        groups.begin(2, {})
    groups.begin(3, {})
    assert not groups.abort("rank 1 died", 2)
    assert groups.cause == ""
    assert groups.agree((0,), 5) == [(5, 5)]
    groups.settle()
