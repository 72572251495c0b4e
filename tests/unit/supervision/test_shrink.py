"""A mesh shrinks along the dimension that leaves most of it."""

from __future__ import annotations

import pytest

from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.supervision.shrink import places_left

_GRID = Extent(("hosts", "gpus"), (3, 2))


@pytest.mark.parametrize(
    ("dead", "left"),
    [
        ([], ("hosts", [0, 1, 2])),
        ([2], ("hosts", [0, 2])),
        ([2, 3], ("hosts", [0, 2])),
        ([0, 4], ("gpus", [1])),
        ([0, 5], ("hosts", [1])),
        ([0, 2, 4], ("gpus", [1])),
        ([0, 3, 4], None),
    ],
)
def test_what_is_left_without_the_dead(dead: list[int], left: tuple[str, list[int]] | None) -> None:
    assert places_left(_GRID, dead) == left
    if left is not None:
        kept = Region.whole(_GRID).pick(*left)
        assert not set(kept.base_ranks()) & set(dead)


def test_a_mesh_of_one_has_nothing_left() -> None:
    assert places_left(Extent((), ()), [0]) is None
    assert places_left(Extent(("hosts",), (1,)), [0]) is None


def test_a_choice_of_ranks_is_viewed_as_any_mesh() -> None:
    kept = Region.whole(Extent(("hosts", "gpus"), (4, 3))).pick("hosts", [0, 3, 1])
    assert (kept.extent.to_dict(), list(kept.base_ranks())) == ({"hosts": 3, "gpus": 3}, [0, 1, 2, 9, 10, 11, 3, 4, 5])
    assert list(kept.slice(hosts=slice(1, 3), gpus=2).base_ranks()) == [11, 5]
    assert list(kept.flatten("rank").slice(rank=slice(None, None, 4)).base_ranks()) == [0, 10, 5]
    assert list(kept.rename(gpus="tp").split(tp=("a", "b"), a=3).slice(b=0, a=1).base_ranks()) == [1, 10, 4]
    again = kept.pick("gpus", [2]).pick("hosts", [1])
    assert (again.extent.to_dict(), list(again.base_ranks())) == ({"hosts": 1, "gpus": 1}, [11])
    for place, rank in enumerate(kept.base_ranks()):
        assert (kept.rank_of(rank), kept.base_rank(place)) == (place, rank)
    for view, missing in ((kept, 6), (kept.slice(hosts=1), 0)):
        with pytest.raises(ValueError, match="not in this view"):
            view.rank_of(missing)
    for places in ([], [4], [-1]):
        with pytest.raises(IndexError, match="hosts="):
            Region.whole(Extent(("hosts",), (4,))).pick("hosts", places)
