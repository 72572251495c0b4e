"""Sharding specifications: which dimensions they name, and what each rank holds."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from monarch_hpc.core.shape import Extent, contiguous_strides
from monarch_hpc.tensor.sharded.spec import even_shard_shape, place_dims, shard_slices

GRID = Extent(("dp", "tp"), (4, 2))


@pytest.mark.parametrize(
    ("spec", "dims"),
    [
        (None, (-1, -1)),
        ([], (-1, -1)),
        (["dp", None], (0, -1)),
        ([None, "dp"], (1, -1)),
        (["tp", "dp"], (1, 0)),
        ([("dp", "tp")], (0, 0)),
        ((None, ("tp",)), (-1, 1)),
    ],
)
def test_a_specification_names_for_each_dimension_of_the_tensor_those_of_the_mesh(spec: Any, dims: Any) -> None:
    assert place_dims(spec, 2, GRID) == dims


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (["dp", None, None], ValueError, "for 3 dimensions, the tensor has 2"),
        (["dp", "dp"], ValueError, "'dp' stands twice"),
        (["pp"], KeyError, "no dimension 'pp'; there are: dp, tp"),
        ([("tp", "dp")], ValueError, "in the order of the mesh"),
        ("dp", TypeError, "spec is 'dp'"),
        ([0], TypeError, "0 in spec"),
    ],
)
def test_a_wrong_one_is_refused(spec: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        place_dims(spec, 2, GRID)


@pytest.mark.parametrize("size", [0, 1, 3, 5, 8, 9])
def test_shards_cover_a_dimension_once_and_in_order(size: int) -> None:
    parts = [
        shard_slices((size, 3), (0, 0), GRID.shape, place)[0] for place in product(*(range(n) for n in GRID.shape))
    ]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(size))


def test_shards_are_those_of_torch_chunk() -> None:
    parts = [shard_slices((5,), (0, -1), GRID.shape, (place, 1))[0] for place in range(4)]
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_even_shards_have_one_shape() -> None:
    assert even_shard_shape((8, 6), (0, 1), GRID) == (2, 3)
    with pytest.raises(ValueError, match=r"dimension 0 of shape \(6, 6\) cannot be split evenly over dp \(4 ranks\)"):
        even_shard_shape((6, 6), (0, 1), GRID)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (2, 0, 3), (0,), (1, 5)])
def test_contiguous_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    assert contiguous_strides(shape) == torch.empty(shape).stride()
