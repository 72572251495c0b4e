"""Results by mesh coordinate."""

from __future__ import annotations

import pytest

from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.value import ValueMesh


@pytest.fixture
def values() -> ValueMesh[str]:
    return ValueMesh(Region.whole(Extent.of({"hosts": 2, "gpus": 3})), list("abcdef"))


def test_values_are_found_by_coordinate(values: ValueMesh[str]) -> None:
    assert values.item(hosts=1, gpus=0) == "d"
    assert [(dict(point), value) for point, value in values][1] == ({"hosts": 0, "gpus": 1}, "b")
    with pytest.raises(ValueError, match="3 values are left"):
        values.item(hosts=0)


def test_slices_share_the_values(values: ValueMesh[str]) -> None:
    column = values.slice(gpus=2)
    assert column.values() == ["c", "f"]
    assert (column.get(1), len(column.values())) == ("f", 2)
    assert column.item(hosts=1) == "f"
    assert [point.rank for point, _ in column] == [0, 1]


def test_a_value_is_found_by_rank(values: ValueMesh[str]) -> None:
    assert [values.get(rank) for rank in range(6)] == values.values() == list("abcdef")
    for rank in (-1, 6):
        with pytest.raises(IndexError, match=rf"rank is {rank}: this mesh has ranks 0 to 5"):
            values.get(rank)
    with pytest.raises(TypeError, match="rank is '1', a str"):
        values.get("1")  # type: ignore[arg-type]


def test_repr_shows_a_few(values: ValueMesh[str]) -> None:
    assert repr(values).startswith("ValueMesh({hosts: 2, gpus: 3}: {'hosts': 0/2, 'gpus': 0/3}: 'a'")
    assert repr(values).endswith(", ...)")
