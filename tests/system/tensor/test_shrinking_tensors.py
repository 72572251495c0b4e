"""Meshes of sharded tensors that lose ranks, go on without them, and have them back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.grid_training import GridTraining
from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.distributed import Mesh, distribute, grow_mesh, heal_mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor import inspect
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle
from tests.system.tensor.deaths import die, read_until_lost

_STEPS = 5
_CLOSE: Any = {"rtol": 1e-5, "atol": 1e-5}


def _mesh(hosts: HostMesh, **sizes: int) -> Mesh:
    grid = hosts.slice(hosts=0).spawn_procs(sizes, preload=PRELOADED)
    settle(grid)
    return Mesh(procs=grid)


@pytest.fixture
def mesh(hosts: HostMesh, procs: ProcMesh) -> Iterator[Mesh]:
    """Four procs, 2 x 2."""
    found = _mesh(hosts, dp=2, tp=2)
    yield found
    found.stop()


def _trained(training: GridTraining, deaths: dict[int, int], policy: str | tuple[str, ...]) -> list[float]:
    """The losses; before some steps a rank dies."""
    losses: list[float] = []
    while len(losses) < _STEPS:
        at = len(losses)
        try:
            if at in deaths:
                die(training.mesh, deaths.pop(at))
            losses.append(training.step(*training.batches[at]))
        except DeviceMeshError:
            assert heal_mesh(training.mesh, policy) is training.mesh
    return losses


def test_a_training_goes_on_with_fewer_ranks_until_none_has_a_copy(mesh: Mesh) -> None:
    undisturbed = GridTraining(mesh, _STEPS)
    expected = _trained(undisturbed, {}, "shrink")
    state = undisturbed.state()
    del undisturbed
    training = GridTraining(mesh, _STEPS)
    done = mesh.version
    left_out = mesh.procs
    losses = _trained(training, {2: 2}, "shrink")
    assert (mesh.shape, mesh.mesh_dim_names, mesh.version) == ((1, 2), ("dp", "tp"), done + _STEPS)
    assert list(mesh.procs.region.base_ranks()) == [0, 1]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **_CLOSE)
    for one, other in zip(training.state(), state, strict=True):
        torch.testing.assert_close(one, other, **_CLOSE)
    assert training.optimizer.param_groups[0]["lr"] == 1e-2 * 0.5 ** (_STEPS // 2)
    with pytest.raises(ValueError, match=r"has left out ranks \[2, 3\]"):
        distribute(torch.ones(4), Mesh(procs=left_out))
    x: Any = distribute(torch.arange(8.0), mesh, ["tp"])
    mesh.commit()
    die(mesh, 1)  # its shards of the weights are lost
    with pytest.raises(DeviceMeshError):
        read_until_lost(x)
    with pytest.raises(DeviceMeshError, match="load the last checkpoint") as lost:
        heal_mesh(mesh, ("respawn", "shrink"))
    assert lost.value.kind == "lost"


def test_a_row_is_left_out_whose_parts_others_have(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts, tp=2, dp=3)
    split: Any = distribute(torch.arange(10.0).reshape(5, 2), mesh, ["tp"])
    both: Any = distribute(torch.arange(24.0).reshape(6, 4), mesh, ["dp", "tp"])
    view: Any = split.t()
    alias: Any = both.detach()
    mesh.commit()
    die(mesh, 4)  # tp=1, dp=1
    with pytest.raises(DeviceMeshError):
        read_until_lost(split)
    heal_mesh(mesh, "shrink")
    # Without dp=1 there are as many ranks as possible. The program has the parts of what it has distributed.
    assert (mesh.shape, list(mesh.procs.region.base_ranks())) == ((2, 2), [0, 2, 3, 5])
    assert torch.equal(split.full_tensor(), torch.arange(10.0).reshape(5, 2))
    assert torch.equal(view.full_tensor(), torch.arange(10.0).reshape(5, 2).t())
    with torch.no_grad():
        split.add_(1)
    assert torch.equal(view.full_tensor(), torch.arange(10.0).reshape(5, 2).t() + 1)
    for one in (both, alias):
        with pytest.raises(DeviceMeshError, match="could not be kept"):
            one.full_tensor()
    mesh.stop()


def test_what_is_split_over_the_rows_is_put_together_of_their_parts(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts, dp=3)
    batch: Any = distribute(torch.arange(14.0).reshape(7, 2), mesh, ["dp"])  # 3 rows, 3, and 1
    weight: Any = distribute(torch.ones(2), mesh)
    mesh.manual_seed(7)
    mesh.commit()
    expected = mesh.rand(4, spec=["dp"]).full_tensor()
    mesh.manual_seed(7)
    mesh.commit()
    die(mesh, 1)
    with pytest.raises(DeviceMeshError):
        read_until_lost(weight)
    heal_mesh(mesh, "shrink")
    assert mesh.shape == (2,)
    assert torch.equal(batch.full_tensor(), torch.arange(14.0).reshape(7, 2))
    assert [batch.shard(dp=at).shape[0] for at in range(2)] == [4, 3]
    assert torch.equal(mesh.rand(4, spec=["dp"]).full_tensor(), expected)
    mesh.commit()  # of the random numbers
    die(mesh, 1)  # rank 2 of the procs
    with pytest.raises(DeviceMeshError):
        read_until_lost(weight)
    heal_mesh(mesh, "respawn")
    assert mesh.shape == (2,)
    assert torch.equal(batch.full_tensor(), torch.arange(14.0).reshape(7, 2))
    assert (batch * weight).sum().item() == 91.0
    mesh.stop()


def _losing(mesh: Mesh, rank: int, value: Any, policy: str = "shrink") -> None:
    die(mesh, rank)
    with pytest.raises(DeviceMeshError):
        read_until_lost(value)
    heal_mesh(mesh, policy)


def test_a_training_that_shrinks_and_grows_has_the_losses_of_one_that_does_not(mesh: Mesh) -> None:
    undisturbed = GridTraining(mesh, _STEPS)
    expected = _trained(undisturbed, {}, "shrink")
    state = undisturbed.state()
    del undisturbed
    training = GridTraining(mesh, _STEPS)
    losses: list[float] = []
    grown = False
    while len(losses) < _STEPS:
        at = len(losses)
        try:
            if at == 1 and mesh.size() == 4 and not grown:
                die(mesh, 2)
            if at == 3 and not grown:
                grown = True
                assert mesh.shape == (1, 2)
                assert grow_mesh(mesh) is mesh
                assert (mesh.shape, list(mesh.procs.region.base_ranks())) == ((2, 2), [0, 1, 2, 3])
            if at == 4 and mesh.procs.heals < 2:
                die(mesh, 1)  # of which a rank that has come back has a copy
            losses.append(training.step(*training.batches[at]))
        except DeviceMeshError:
            heal_mesh(mesh, "shrink" if not grown else "respawn")
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **_CLOSE)
    for one, other in zip(training.state(), state, strict=True):
        torch.testing.assert_close(one, other, **_CLOSE)
    assert mesh.procs.heals == 2


def test_ranks_that_come_back_get_their_parts_of_all_tensors(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts, dp=3)
    batch: Any = distribute(torch.arange(14.0).reshape(7, 2), mesh, ["dp"])  # 3 rows, 3, and 1
    weight: Any = distribute(torch.ones(2), mesh).requires_grad_()
    part = mesh.slice(dp=slice(0, 2))
    on_part: Any = distribute(torch.arange(6.0), part, ["dp"])
    mesh.manual_seed(7)
    mesh.commit()
    assert mesh.grow() is mesh  # it has all its ranks
    expected = mesh.rand(4, spec=["dp"]).full_tensor()
    mesh.manual_seed(7)
    mesh.commit()
    _losing(mesh, 1, weight)
    assert mesh.shape == (2,)
    younger: Any = distribute(torch.arange(5.0), mesh, ["dp"])
    with torch.no_grad():
        batch.add_(1)
    with mesh.procs.activate():
        own: Any = torch.ones(2)
    with pytest.raises(ValueError, match="'shrink' is of heal_mesh"):
        grow_mesh(mesh, "shrink")
    with pytest.raises(ValueError, match="grow the whole one"):
        grow_mesh(mesh.slice(dp=slice(0, 1)))
    assert mesh.grow("respawn").shape == (3,)
    assert torch.equal(batch.full_tensor(), torch.arange(14.0).reshape(7, 2) + 1)
    assert [batch.shard(dp=at).shape[0] for at in range(3)] == [3, 3, 1]
    assert torch.equal(younger.full_tensor(), torch.arange(5.0))
    assert torch.equal(on_part.full_tensor(), torch.arange(6.0))
    assert torch.equal(mesh.rand(4, spec=["dp"]).full_tensor(), expected)
    (batch * weight).sum().backward()
    assert weight.grad.tolist() == [49.0, 56.0]
    with pytest.raises(DeviceMeshError, match="could not be kept"):
        inspect(own)
    weight.grad = None
    mesh.commit()
    _losing(mesh, 2, weight, "respawn")
    assert mesh.shape == (3,)
    mesh.stop()


def _losing_all(mesh: Mesh, ranks: list[int], value: Any) -> None:
    """Lose ranks at once; some of the deaths may become known too late for the first heal."""
    at = {rank: mesh.procs.procs[list(mesh.procs.region.base_ranks()).index(rank)].pid for rank in ranks}
    for pid in at.values():
        os.kill(pid, signal.SIGKILL)
    while set(ranks).intersection(mesh.procs.region.base_ranks()):
        with pytest.raises(DeviceMeshError):
            read_until_lost(value)
        heal_mesh(mesh, "shrink")


def test_several_rows_are_lost_at_once(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts, dp=4)
    batch: Any = distribute(torch.arange(14.0).reshape(7, 2), mesh, ["dp"])
    weight: Any = distribute(torch.ones(2), mesh).requires_grad_()
    mesh.commit()
    _losing_all(mesh, [0, 2], weight)
    assert (mesh.shape, list(mesh.procs.region.base_ranks())) == ((2,), [1, 3])
    assert torch.equal(batch.full_tensor(), torch.arange(14.0).reshape(7, 2))
    (batch * weight).sum().backward()
    assert weight.grad.tolist() == [42.0, 49.0]
    mesh.stop()


def test_rows_with_deaths_in_different_columns_are_put_together(mesh: Mesh) -> None:
    undisturbed = GridTraining(mesh, _STEPS)
    expected = _trained(undisturbed, {}, "shrink")
    state = undisturbed.state()
    del undisturbed
    training = GridTraining(mesh, _STEPS)
    whole: Any = distribute(torch.arange(6.0), mesh)
    split: Any = distribute(torch.arange(8.0), mesh, ["tp"])
    losses = [training.step(*batch) for batch in training.batches[:2]]
    _losing_all(mesh, [0, 3], whole)  # dp=0, tp=0 and dp=1, tp=1: no row is whole
    assert (mesh.shape, list(mesh.procs.region.base_ranks())) == ((1, 2), [2, 1])
    assert split.tolist() == list(range(8)) and [split.shard(tp=at).tolist() for at in range(2)] == [
        [0.0, 1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0, 7.0],
    ]
    losses.append(training.step(*training.batches[2]))
    mesh.grow()
    assert (mesh.shape, list(mesh.procs.region.base_ranks())) == ((2, 2), [0, 1, 2, 3])
    losses += [training.step(*batch) for batch in training.batches[3:]]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), **_CLOSE)
    for one, other in zip(training.state(), state, strict=True):
        torch.testing.assert_close(one, other, **_CLOSE)


def test_a_mesh_grows_by_rows_that_can_be_started(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts, dp=3)
    weight: Any = distribute(torch.ones(2), mesh)
    mesh.commit()
    die(mesh, 0)
    with pytest.raises(DeviceMeshError):
        read_until_lost(weight)
    die(mesh, 1)
    heal_mesh(mesh, "shrink")
    while mesh.size() > 1:  # the second death may have come too late for this heal
        with pytest.raises(DeviceMeshError):
            read_until_lost(weight)
        heal_mesh(mesh, "shrink")
    with pytest.raises(DeviceMeshError, match=r"no row that was left out could be started.*; it goes on without them"):
        grow_mesh(mesh, "spares")
    assert weight.full_tensor().tolist() == [1.0, 1.0]
    assert grow_mesh(mesh, ("spares", "respawn")).size() == 3
    assert weight.shard(dp=1).tolist() == [1.0, 1.0]
    mesh.stop()
