"""The rows that a mesh loses with its dead ranks, and what is left of other views."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.tensor.healing.shrink import flat_region, region_without, smaller_regions

GRID = Region.whole(Extent(("dp", "tp"), (3, 2)))


def _ranks(region: Region | None) -> list[int] | None:
    return None if region is None else list(region.base_ranks())


def test_the_rows_that_leave_most_come_first() -> None:
    assert [_ranks(one) for one in smaller_regions(GRID, [3])] == [[0, 1, 4, 5], [0, 2, 4]]
    assert [_ranks(one) for one in smaller_regions(GRID, [1, 3])] == [[0, 2, 4], [4, 5]]


def test_rows_are_put_together_of_ranks_that_keep_their_column() -> None:
    found = smaller_regions(GRID, [0, 3])
    assert [_ranks(one) for one in found] == [[2, 1, 4, 5], [1, 2, 4], [4, 5]]
    assert [one.extent.to_dict() for one in found] == [{"dp": 2, "tp": 2}, {"dp": 3, "tp": 1}, {"dp": 1, "tp": 2}]
    assert [_ranks(one) for one in smaller_regions(GRID, [0, 3, 4])] == [[1, 2, 5], [2, 1]]
    assert smaller_regions(GRID, [0, 1, 2, 4]) == []  # neither a row nor a column is whole
    assert smaller_regions(GRID, [0, 2, 4, 3]) == smaller_regions(GRID, [4, 3, 2, 0])
    assert smaller_regions(GRID, [0, 2, 4, 1, 3, 5]) == []
    again = smaller_regions(found[0], [2, 5])  # a mesh that was put together before
    assert (_ranks(again[0]), again[0].extent.to_dict()) == ([4, 1], {"dp": 1, "tp": 2})


def test_other_views_lose_the_same_ranks_or_are_gone() -> None:
    left_out = {2, 3}
    assert region_without(GRID.slice(dp=0), left_out) == GRID.slice(dp=0)
    assert _ranks(region_without(GRID, left_out)) == [0, 1, 4, 5]
    assert _ranks(region_without(GRID.slice(tp=1), left_out)) == [1, 5]
    assert _ranks(region_without(GRID.flatten("all"), left_out)) == [0, 1, 4, 5]
    assert region_without(GRID.slice(dp=1), left_out) is None
    assert region_without(Region.whole(Extent(("a", "b"), (2, 3))), left_out) is None


def test_a_row_of_any_ranks() -> None:
    row = flat_region((4, 1, 5))
    assert (_ranks(row), row.extent.to_dict()) == ([4, 1, 5], {"procs": 3})
