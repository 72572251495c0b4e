"""Actors that control meshes of their own, and actors that operations call in turn."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import Actor, ProcMesh, endpoint, hosts
from monarch_hpc.actor import as_endpoint
from monarch_hpc.distributed import Mesh
from monarch_hpc.tensor import Stream, inspect
from monarch_hpc.tensor.sharded.procs import PRELOADED

_GET_S = 120.0


class Lead(Actor):
    """Starts procs, and works with tensors on them."""

    def __init__(self) -> None:
        self.procs: Any = hosts().slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)

    @endpoint
    def train(self) -> list[float]:
        losses = []
        with self.procs.activate():
            weight = torch.ones(3, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.1)
            x: Any = torch.ones(3) * (self.procs.rank("dp") + 1)
            for _ in range(3):
                loss = (weight * x).square().sum()
                optimizer.zero_grad()
                loss.backward()
                grad: Any = weight.grad
                lent, borrow = Stream("comms").borrow(grad, mutable=True)
                lent.reduce_("dp", "avg")
                borrow.drop()
                optimizer.step()
                losses.append(float(inspect(loss)))
        return losses

    @endpoint
    def sharded(self) -> list[float]:
        found: list[float] = Mesh(procs=self.procs, commit=False).ones(3, spec=["dp"]).tolist()
        return found


class Linear(Actor):
    """Holds a weight."""

    def __init__(self, size: int) -> None:
        self.weight = torch.zeros(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @endpoint(propagate="inspect")
    def update(self, change: torch.Tensor) -> None:
        self.weight += change

    @endpoint(propagate=lambda n: torch.zeros(2))
    def first(self, n: int) -> torch.Tensor:
        return self.weight[:n]


def test_an_actor_controls_a_mesh_of_its_own(procs: ProcMesh) -> None:
    lead = procs.slice(dp=0).spawn("lead", Lead)
    weight, losses = torch.ones(3), []
    for _ in range(3):
        losses.append(float(weight.square().sum()))
        weight = weight - 0.1 * 2 * weight * (1 + 4) / 2
    assert lead.train.call_one().get(_GET_S) == pytest.approx(losses, rel=1e-5)
    assert lead.sharded.call_one().get(_GET_S) == [1.0, 1.0, 1.0]
    lead.stop().get(_GET_S)


def test_actors_are_called_in_turn_with_operations(procs: ProcMesh) -> None:
    linear = procs.spawn("linear", Linear, 3)
    with procs.activate():
        y: Any = torch.ones(3)
        forward = as_endpoint(linear.forward, propagate=lambda x: torch.rand(3))
        first = forward.rref(y)
        for _ in range(2):
            assert linear.update.rref(torch.ones(3) * (procs.rank("dp") + 1)) is None
        second = forward.rref(y) + linear.first.rref(2).sum()
        assert inspect(first.sum()).item() == 0
        assert [inspect(second, dp=rank).tolist() for rank in range(2)] == [[6.0] * 3, [12.0] * 3]
