"""Electorates survive their way to the voters."""

from __future__ import annotations

import pytest

from monarch_hpc.supervision.announcement import announcement_of, electorate_of
from monarch_hpc.supervision.electorate import Electorate, Voters

OWNER = 100


@pytest.mark.parametrize("before", [None, Voters((1, 2, 3), OWNER)])
def test_an_electorate_is_announced_as_it_is(before: Voters | None) -> None:
    electorate = Electorate(2, 3, 1, Voters((1, 2)), before=before, heeds_slurm=True, closed=before is None)
    assert electorate_of(announcement_of(electorate), 1) == electorate
