"""Slicing named dimensions picks the same elements as NumPy's indexing does."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.core.shape import Extent, Region

_SIZES = st.lists(st.integers(1, 5), min_size=0, max_size=4)


def _keeps_some(size: int, chosen: slice) -> bool:
    return len(range(size)[chosen]) > 0


@st.composite
def _selections(draw: st.DrawFn) -> tuple[dict[str, int], list[dict[str, int | slice]]]:
    sizes = {f"d{axis}": size for axis, size in enumerate(draw(_SIZES))}
    left = dict(sizes)
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        selection: dict[str, int | slice] = {}
        for label, size in list(left.items()):
            choice = draw(st.sampled_from(["keep", "number", "slice"]))
            if choice == "number":
                selection[label] = draw(st.integers(-size, size - 1))
                del left[label]
            elif choice == "slice":
                chosen = draw(st.slices(size).filter(functools.partial(_keeps_some, size)))
                selection[label] = chosen
                left[label] = len(range(size)[chosen])
        steps.append(selection)
    return sizes, steps


@given(_selections())
def test_slices_of_slices_agree_with_numpy(case: tuple[dict[str, int], list[dict[str, int | slice]]]) -> None:
    sizes, steps = case
    region = Region.whole(Extent.of(sizes))
    array = np.arange(len(region)).reshape(tuple(sizes.values()))
    labels = list(sizes)
    for selection in steps:
        region = region.slice(**selection)
        array = array[tuple(selection.get(label, slice(None)) for label in labels)]
        labels = [label for label in labels if not isinstance(selection.get(label), int)]
    assert region.extent.labels == labels
    assert tuple(region.extent.sizes) == array.shape
    assert list(region.base_ranks()) == array.ravel().tolist()


@given(_selections())
def test_rank_of_inverts_base_rank(case: tuple[dict[str, int], list[dict[str, int | slice]]]) -> None:
    sizes, steps = case
    region = whole = Region.whole(Extent.of(sizes))
    for selection in steps:
        region = region.slice(**selection)
    held = {base: rank for rank, base in enumerate(region.base_ranks())}
    for base in range(len(whole)):
        if base in held:
            assert region.rank_of(base) == held[base]
        else:
            with pytest.raises(ValueError, match="not in this view"):
                region.rank_of(base)


@given(_SIZES)
def test_points_agree_with_unravel_index(sizes: list[int]) -> None:
    extent = Extent(tuple(f"d{axis}" for axis in range(len(sizes))), tuple(sizes))
    for rank in range(len(extent)):
        expected = np.unravel_index(rank, tuple(sizes)) if sizes else ()
        assert tuple(extent.point(rank).values()) == tuple(int(c) for c in expected)
