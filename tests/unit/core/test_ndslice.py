"""Strided sets of ranks: numbers, places and coordinates agree with NumPy, and read as in Monarch."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from monarch_hpc.core.ndslice import NDSlice, Shape
from monarch_hpc.core.shape import Extent, Point


def test_a_slice_counts_row_by_row() -> None:
    ranks = NDSlice(offset=2, sizes=[2, 3], strides=[12, 3])
    wanted = (2 + np.arange(24)[: 2 * 12 : 3].reshape(2, 4)[:, :3]).ravel().tolist()
    assert list(ranks) == wanted == [2, 5, 8, 14, 17, 20]
    assert (ranks.ndim, ranks.offset, ranks.sizes, ranks.strides, len(ranks)) == (2, 2, [2, 3], [12, 3], 6)
    assert ranks[4] == ranks.get(4) == ranks.nditem([1, 1]) == 17
    assert ranks[1:6:2] == (5, 14, 20)
    assert ranks.index(17) == 4 and ranks.coordinates(17) == [1, 1]
    assert str(ranks) == "Slice { offset: 2, sizes: [2, 3], strides: [12, 3] }"
    assert NDSlice.new_row_major([2, 3]) == NDSlice(offset=0, sizes=[2, 3], strides=[3, 1])
    assert pickle.loads(pickle.dumps(ranks)) == ranks and len({ranks, ranks}) == 1


def test_a_list_of_ranks_is_covered() -> None:
    covers = NDSlice.from_list([7, 0, 1, 2, 5, 9])
    assert [list(cover) for cover in covers] == [[0, 1, 2], [5, 7, 9]]
    assert NDSlice.from_list([]) == [] and [list(one) for one in NDSlice.from_list([4])] == [[4]]


def test_a_shape_names_the_dimensions() -> None:
    shape = Shape(["a", "b"], NDSlice.new_row_major([2, 3]))
    assert (str(shape), shape.labels, len(shape), shape.ranks()) == ("{a=2,b=3}", ["a", "b"], 6, [0, 1, 2, 3, 4, 5])
    assert shape.extent == Extent(["a", "b"], [2, 3]) and shape.ndslice.strides == [3, 1]
    assert shape.coordinates(4) == {"a": 1, "b": 1}
    assert shape.at("a", 1).ranks() == shape.index(a=1).ranks() == [3, 4, 5]
    assert shape.select("b", slice(0, 2)).ranks() == [0, 1, 3, 4]
    assert list(shape.select("b", slice(None, None, -1)).ndslice) == [2, 1, 0, 5, 4, 3]
    assert Shape.unity().ranks() == [0] and str(Shape.unity()) == "{}"
    assert pickle.loads(pickle.dumps(shape)) == shape
    assert repr(shape).startswith('Shape { labels: ["a", "b"], slice: Slice { offset: 0,')


def test_what_is_not_there_is_refused() -> None:
    ranks = NDSlice.new_row_major([2, 3])
    shape = Shape(["a", "b"], ranks)
    wrong: list[Callable[[], object]] = [
        lambda: ranks.get(6),
        lambda: ranks.index(6),
        lambda: shape.coordinates(6),
        lambda: shape.at("x", 0),
    ]
    for call in wrong:
        with pytest.raises(ValueError):
            call()
    outside: list[Callable[[], object]] = [lambda: ranks[6], lambda: ranks.nditem([2, 0]), lambda: ranks.nditem([0])]
    for call in outside:
        with pytest.raises(IndexError):
            call()
    with pytest.raises(ValueError, match="is outside"):
        shape.at("a", 2)
    with pytest.raises(ValueError, match="1 labels for 2 dimensions"):
        Shape(["a"], ranks)
    with pytest.raises(ValueError, match="2 sizes for 1 strides"):
        NDSlice(offset=0, sizes=[2, 3], strides=[1])


def test_extents_and_points_read_as_in_monarch() -> None:
    extent = Extent(["hosts", "gpus"], [2, 3])
    assert extent.labels == ["hosts", "gpus"] and extent.sizes == [2, 3] and extent.keys() == ["hosts", "gpus"]
    assert str(extent) == repr(extent) == "{hosts: 2, gpus: 3}" and str(Extent([], [])) == "{}"
    assert str(Point(5, extent)) == "{'hosts': 1/2, 'gpus': 2/3}"
    extent.labels.append("more")
    assert extent.labels == ["hosts", "gpus"] and pickle.loads(pickle.dumps(extent)) == extent and hash(extent)
