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
    assert list(column.values()) == ["c", "f"]
    assert column.item(hosts=1) == "f"
    assert [point.rank for point, _ in column] == [0, 1]


def test_repr_shows_a_few(values: ValueMesh[str]) -> None:
    assert repr(values).startswith("ValueMesh(hosts=2 x gpus=3: {hosts: 0, gpus: 0}: 'a'")
    assert repr(values).endswith(", ...)")
