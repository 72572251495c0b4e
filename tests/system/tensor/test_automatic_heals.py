"""Meshes that heal by themselves: the program is written as if no rank ever died."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.grid_training import GridTraining
from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, distribute, heal_mesh
from monarch_hpc.exceptions import DeviceMeshError
from tests.system.tensor.deaths import die, read_until_lost

_STEPS = 6


@pytest.fixture
def grid(grid_of_its_own: ProcMesh) -> ProcMesh:
    return grid_of_its_own


def _losses(training: GridTraining, before: dict[int, int], in_step: dict[int, int]) -> list[float]:
    """The losses; before some steps, and before the optimizer's, a rank dies. Nothing is caught."""
    dying: dict[int, Callable[[Mesh], None]] = {at: partial(die, rank=rank) for at, rank in in_step.items()}
    losses = []
    for at, batch in enumerate(training.batches):
        if at in before:
            die(training.mesh, before[at])
        losses.append(training.step(*batch, dying.get(at)))
    return losses


def test_a_training_that_catches_nothing_loses_nothing(grid: ProcMesh) -> None:
    undisturbed = GridTraining(Mesh(procs=grid), _STEPS)
    expected, state = _losses(undisturbed, {}, {}), undisturbed.state()
    del undisturbed
    mesh = Mesh(procs=grid, on_loss="heal")
    training = GridTraining(mesh, _STEPS)
    done = mesh.version
    losses = _losses(training, {0: 1, 3: 2}, {2: 3, 4: 0})
    assert losses == expected
    assert all(map(torch.equal, training.state(), state))
    assert (mesh.version, grid.heals) == (done + _STEPS, 4)
    assert training.optimizer.param_groups[0]["lr"] == 1e-2 * 0.5 ** (_STEPS // 2)


def test_a_program_that_runs_ahead_is_issued_again_from_the_last_version(grid: ProcMesh) -> None:
    mesh = Mesh(procs=grid, on_loss="heal")
    weight: Any = distribute(torch.arange(8.0).requires_grad_(), mesh, ["tp"])
    average: Any = mesh.zeros(8)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    results = []
    for deaths in ({}, {3: 1, 7: 2}):
        with torch.no_grad():
            weight.copy_(torch.arange(8.0))
            average.zero_()
        optimizer.state.clear()
        mesh.manual_seed(5)
        pending = []
        for at in range(10):
            if at in deaths:
                die(mesh, deaths[at])
            noise = mesh.rand(8)
            for part in (weight * noise, weight.square()):  # gradients of two passes
                part.sum().backward()
            pending.append(weight.sum().item_async())
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                average.mul_(0.9).add_(weight, alpha=0.1)  # in no version
        results.append(([one.get() for one in pending], weight.tolist(), average.tolist(), mesh.rand(2).tolist()))
    assert results[0] == results[1]
    assert grid.heals == 2


def test_what_must_not_be_done_twice_is_left_to_the_program(grid: ProcMesh, tmp_path: Any) -> None:
    mesh = Mesh(procs=grid, on_loss="heal")
    training = GridTraining(mesh, _STEPS)
    training.step(*training.batches[0])
    version = mesh.version
    mesh.save({"model": training.model}, tmp_path / "saved")
    die(mesh, 3)
    weight = next(iter(training.model.parameters()))
    with pytest.raises(DeviceMeshError, match="it is not healed by itself, because a checkpoint was saved since"):
        read_until_lost(weight)
    heal_mesh(mesh, rewind=True)
    assert mesh.version == version
    die(mesh, 2)
    assert training.step(*training.batches[1]) > 0
    assert grid.heals == 2


def test_a_fault_that_returns_ends_in_the_error(grid: ProcMesh) -> None:
    mesh = Mesh(procs=grid, on_loss="heal")
    x: Any = mesh.ones(4)
    mesh.commit()
    for num in range(1, 4):
        die(mesh, 1)
        while grid.heals < num:
            assert x.sum().item() == 4.0
    die(mesh, 1)
    with pytest.raises(DeviceMeshError, match="healed 3 times at this version"):
        read_until_lost(x)
    assert grid.heals == 3


def test_no_gradient_is_left_out_in_silence_where_a_heal_has_dropped_history(grid: ProcMesh) -> None:
    mesh = Mesh(procs=grid)
    weight: Any = distribute(torch.ones(4).requires_grad_(), mesh)
    hidden = weight * 2
    mesh.commit()
    die(mesh, 3)
    with pytest.raises(DeviceMeshError):
        read_until_lost(hidden)
    heal_mesh(mesh)
    assert hidden.tolist() == [2.0] * 4
    (hidden * weight).sum().backward()
    with pytest.raises(RuntimeError, match="whose history a heal has dropped"):
        mesh.sync()
    with pytest.raises(ValueError, match="on_loss is 'stop'"):
        Mesh(procs=grid, on_loss="stop")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(ValueError, match="needs versions"):
        Mesh(procs=grid, on_loss="heal", commit=False)
