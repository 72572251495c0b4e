"""Sharding that DTensor works out for operators, as one rank passes it on to another."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.sharded.device_mesh import RankMesh, bare_device_mesh
from monarch_hpc.tensor.worker.sharded.propagation import (
    forget_propagated,
    pack_propagated,
    remember_propagated,
    take_propagated,
)

SPEC = MeshSpec(1, ("dp",), (2,), (0, 1), 0)


@pytest.fixture(autouse=True)
def propagator() -> Iterator[Any]:
    """That of DTensor, which has worked out nothing yet."""
    remember_propagated()
    _forget_propagated()
    yield DTensor._op_dispatcher.sharding_propagator
    _forget_propagated()


def _forget_propagated() -> None:
    # Not above: it loads a second's worth of torch's compiler, in each process that collects tests.
    debug: Any = importlib.import_module("torch.distributed.tensor.debug")
    debug._clear_sharding_prop_cache()


def _tensor(mesh: RankMesh, local: torch.Tensor, placement: Any, shape: tuple[int, ...]) -> DTensor:
    made: DTensor = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=torch.empty(shape).stride()
    )
    return made


def _rows(mesh: RankMesh, num: int = 4) -> DTensor:
    return _tensor(mesh, torch.ones((num + 1) // 2, 3), Shard(0), (num, 3))


def _compute(mesh: RankMesh) -> list[DTensor]:
    rows, whole = _rows(mesh), _tensor(mesh, torch.ones(3, 5), Replicate(), (3, 5))
    return [
        rows @ whole,
        (rows + rows).view(2, 2, 3),
        rows.new_zeros((4, 3)),
        rows.sum(),
        rows.amax(),
        torch.linalg.vector_norm(rows, 3.0),
    ]


def _passed_on(mesh: RankMesh) -> RankMesh:
    """Another rank of the mesh, which has taken over what the first one knows."""
    other = bare_device_mesh(SPEC, 1)
    take_propagated(other, pack_propagated(mesh))
    _forget_propagated()
    return other


def test_a_rank_works_out_nothing_that_another_one_has_worked_out(
    propagator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = bare_device_mesh(SPEC, 0)
    expected = [one._spec for one in _compute(mesh)]
    other = _passed_on(mesh)
    assert other.propagated == mesh.propagated

    def fail(schema: Any) -> None:
        raise AssertionError(schema)

    monkeypatch.setattr(propagator, "_propagate_tensor_meta_non_cached", fail)
    found = _compute(other)
    assert [one._spec for one in found] == expected
    assert all(one.device_mesh is other for one in found)
    assert found[1].to_local().shape == (1, 2, 3)
    with pytest.raises(RuntimeError, match="mm"):
        _rows(other) @ _tensor(other, torch.ones(3, 7), Replicate(), (3, 7))


def test_what_depends_on_the_rank_or_on_the_call_is_not_passed_on() -> None:
    mesh = bare_device_mesh(SPEC, 0)
    _rows(mesh, 3).new_zeros((3, 3))  # two rows here, one there
    table = _tensor(mesh, torch.ones(2, 3), Shard(0), (4, 3))
    torch.nn.functional.embedding(_tensor(mesh, torch.tensor([0, 3]), Replicate(), (2,)), table)  # keeps a mask
    assert mesh.propagated == {}
    _rows(mesh, 4).new_zeros((4, 3))
    assert len(mesh.propagated) == 1


def test_numbers_that_scale_a_tensor_are_worked_out_once() -> None:
    mesh = bare_device_mesh(SPEC, 0)
    rows = _rows(mesh)
    found: list[Any] = [rows * scale for scale in (0.5, 0.25)]
    assert [float(one.to_local()[0, 0]) for one in found] == [0.5, 0.25]
    assert len(mesh.propagated) == 1
    rows * 2  # another type may give another one
    parts = _tensor(mesh, torch.ones(2), Partial(), (2,))
    for scale in (0.5, 0.25):
        parts * scale
    assert len(mesh.propagated) > 2


def test_meshes_do_not_share_what_they_keep() -> None:
    mesh, other = bare_device_mesh(SPEC, 0), bare_device_mesh(SPEC, 1)
    _rows(mesh) + _rows(mesh)
    assert len(mesh.propagated) == 1
    assert other.propagated == {}


def _moved(mesh: RankMesh, num: int) -> RankMesh:
    """The mesh with another number of ranks, which have taken over what is known of it."""
    other = bare_device_mesh(MeshSpec(1, ("dp",), (num,), tuple(range(num)), 0), 0)
    take_propagated(other, pack_propagated(mesh), was_other=True)
    return other


def test_a_mesh_with_other_ranks_takes_over_what_fits_it(propagator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = bare_device_mesh(SPEC, 0)
    _compute(mesh)
    larger, smaller = _moved(mesh, 3), _moved(mesh, 1)
    assert 0 < len(larger.propagated) < len(mesh.propagated)  # without sizes of shards
    assert not any("view" in str(schema.op) or "new_zeros" in str(schema.op) for schema in larger.propagated)
    assert not any(
        isinstance(placement, Shard)
        for schema in _moved(mesh, 5).propagated  # more ranks than rows
        for spec in schema.args_spec
        for placement in spec.placements
    )
    monkeypatch.setattr(propagator, "_propagate_tensor_meta_non_cached", None)
    forget_propagated(mesh)
    assert mesh.propagated == {}
    for one, local in ((smaller, torch.ones(4, 3)), (larger, torch.ones(2, 3))):
        rows = _tensor(one, local, Shard(0), (4, 3))
        found: Any = rows + rows
        assert (found.device_mesh, found.placements) == (one, (Shard(0),))
        assert found.to_local().shape == local.shape
    with pytest.raises(RuntimeError, match="propagation failed"):
        _rows(mesh) + _rows(mesh)
