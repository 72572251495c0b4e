"""Pipelines: backward passes through copies between ranks, by schedules that are plain loops, equal to one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.tensor import inspect, remote, sync
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle
from tests.system.tensor.trainings import batches, network

_GET_S = 60.0
_NUM_PARTS = 4


@pytest.fixture(scope="module")
def grid(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Two stages of two procs."""
    procs = hosts.slice(hosts=0).spawn_procs({"pp": 2, "dp": 2}, preload=PRELOADED)
    settle(procs)
    yield procs
    procs.stop().get(_GET_S)


def _gpipe(forward: Any, num: int) -> list[Any]:
    losses = [forward(part) for part in range(num)]
    for loss in losses:
        loss.backward()
    return losses


def _one_f_one_b(forward: Any, num: int) -> list[Any]:
    losses = [forward(0)]
    for part in range(1, num):
        losses.append(forward(part))
        losses[part - 1].backward()
    losses[-1].backward()
    return losses


@pytest.mark.parametrize("schedule", [_gpipe, _one_f_one_b])
def test_schedules_on_values_of_the_ranks_give_the_gradients_of_one_process(grid: ProcMesh, schedule: Any) -> None:
    inputs, targets = batches(_NUM_PARTS)
    one = network()
    for loss in _gpipe(lambda part: nn.functional.cross_entropy(one(inputs[part]), targets[part]), _NUM_PARTS):
        assert loss.grad_fn is not None

    first, last = grid.slice(pp=0), grid.slice(pp=1)
    stages: list[Any] = []
    for place, layers in ((first, one[:2]), (last, one[2:])):
        with place.activate():
            stages.append(nn.Sequential(*(nn.Linear(6, 8), nn.GELU()) if place is first else (nn.Linear(8, 3),)))
            for own, given in zip(stages[-1].parameters(), layers.parameters(), strict=True):
                own.data = torch.as_tensor(given.detach())
    with first.activate():
        xs = [torch.as_tensor(x) for x in inputs]
    with last.activate():
        ys = [torch.as_tensor(y) for y in targets]

    def forward(part: int) -> Any:
        hidden = stages[0](xs[part]).to_mesh(last)
        assert hidden.requires_grad and not hidden.is_leaf
        return nn.functional.cross_entropy(stages[1](hidden), ys[part])

    schedule(forward, _NUM_PARTS)
    found = [p.grad for stage in stages for p in stage.parameters()]
    for gradient, other in zip(found, one.parameters(), strict=True):
        assert torch.allclose(inspect(gradient, dp=1), other.grad, atol=1e-6)  # type: ignore[arg-type]
    sync(grid)


@pytest.mark.parametrize("schedule", [_gpipe, _one_f_one_b])
def test_stages_of_remote_modules_in_parallel_data(grid: ProcMesh, schedule: Any) -> None:
    inputs, targets = batches(3 * _NUM_PARTS)
    one = network()
    optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
    meshes = [Mesh(procs=grid.slice(pp=0)), Mesh(procs=grid.slice(pp=1))]
    first = module_to_mesh(network()[:2], meshes[0], remote=True, out_spec=["dp"])
    last = module_to_mesh(network()[2:], meshes[1], remote=True, out_spec=["dp"])
    optimizers = [RemoteOptimizer(torch.optim.AdamW, part.parameters(), lr=1e-2) for part in (first, last)]
    for step in range(3):
        here = range(step * _NUM_PARTS, (step + 1) * _NUM_PARTS)
        optimizer.zero_grad()
        whole: Any = sum(nn.functional.cross_entropy(one(inputs[n]), targets[n]) / _NUM_PARTS for n in here)
        whole.backward()
        optimizer.step()

        def forward(part: int) -> Any:
            x = distribute(inputs[here[part]], meshes[0], ["dp"])  # noqa: B023 it is called in this turn
            y = distribute(targets[here[part]], meshes[1], ["dp"])  # noqa: B023
            hidden = first(x).to_local(["dp"]).to_mesh(grid.slice(pp=1)).to_global(["dp"])
            return nn.functional.cross_entropy(last(hidden), y) / _NUM_PARTS

        for own in optimizers:
            own.zero_grad()
        losses = schedule(forward, _NUM_PARTS)
        for own in optimizers:
            own.step()
        assert sum(loss.item() for loss in losses) == pytest.approx(whole.item(), rel=1e-5)
    for parameter, other in zip([*first.parameters(), *last.parameters()], one.parameters(), strict=True):
        assert torch.allclose(parameter.full_tensor(), other, atol=1e-5)  # type: ignore[attr-defined]


def test_a_graph_that_leaves_and_comes_back_twice(grid: ProcMesh) -> None:
    first, last = grid.slice(pp=0), grid.slice(pp=1)
    with first.activate():
        a: Any = torch.arange(3.0).requires_grad_()
    b = (a * a).to_mesh(last)
    c = (b * 2 + b.exp()).to_mesh(first)
    (c * a + (a * 3).to_mesh(last).sin().to_mesh(first)).sum().backward()
    x = torch.arange(3.0).requires_grad_()
    y = x * x
    ((y * 2 + y.exp()) * x + (x * 3).sin()).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and torch.allclose(inspect(a.grad, dp=1), x.grad)
    with torch.no_grad():
        assert not a.to_mesh(last).requires_grad
    sync(grid)


def test_a_copy_may_be_written_to(grid: ProcMesh) -> None:
    first, last = grid.slice(pp=0), grid.slice(pp=1)
    with first.activate():
        a: Any = torch.ones(3).requires_grad_()
    copied = (a * 2).to_mesh(last)
    copied *= 5
    (copied * copied).sum().backward()
    assert inspect(copied).tolist() == [10.0] * 3 and inspect(a.grad).tolist() == [200.0] * 3


def test_sharded_parameters_under_values_of_the_ranks_have_the_right_gradients(grid: ProcMesh) -> None:
    mesh = Mesh(procs=grid.flatten("dp"))
    t = torch.randn(8, 3, requires_grad=True)
    dt: Any = distribute(t, mesh, ["dp"])
    own = (dt * 2).to_local(["dp"])
    with grid.activate():
        pass
    own.square().sum().backward()
    t.mul(2).square().sum().backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(dt.grad.full_tensor(), t.grad)  # type: ignore[arg-type]


def test_a_stage_that_fails_fails_the_step_and_no_more(grid: ProcMesh) -> None:
    @remote(propagate=lambda x: x * 1)
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("on the last stage")

    first, last = grid.slice(pp=0), grid.slice(pp=1)
    with first.activate():
        a: Any = torch.ones(3).requires_grad_()
    fails((a * 2).to_mesh(last)).sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ArithmeticError, match="on the last stage"):
        inspect(a.grad)
    a.grad = None
    (a * 2).to_mesh(last).sum().backward()
    assert inspect(a.grad).tolist() == [2.0, 2.0, 2.0]
    sync(grid)


def test_gradients_do_not_come_back_from_more_ranks(grid: ProcMesh) -> None:
    with grid.slice(pp=0, dp=0).activate():
        a: Any = torch.ones(3).requires_grad_()
    with pytest.raises(TypeError, match="from 1 to 4 ranks: gradients come back from one rank to one rank"):
        (a * 2).to_mesh(grid)
    assert not a.detach().to_mesh(grid).requires_grad
    sync(grid)
