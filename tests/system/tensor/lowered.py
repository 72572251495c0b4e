"""Trainings, the bits of values, and how ranks replay a step, for tests of captured steps below DTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.grid_training import GridTraining
from monarch_hpc.distributed import Mesh, distribute, heal_mesh, module_to_mesh
from monarch_hpc.exceptions import DeviceMeshError
from tests.system.tensor.deaths import die

__all__ = ["NETWORKS", "NUM_CALLS", "bits", "lose_a_rank", "lowering", "train"]

NUM_CALLS = 7
"""Enough for the last ones to run below DTensor."""

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 3)),
    "batchnorm": lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
    "layernorm": lambda: nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 3)),
}


def lowering(step: Any) -> set[str]:
    """How the ranks replay a step."""
    return set(step.lowering().values())


def bits(tensors: Any) -> list[bytes]:
    """The values of tensors, to be compared to the last bit."""
    return [tensor.full_tensor().detach().numpy().tobytes() for tensor in tensors]


def train(mesh: Mesh, name: str, wrap: Callable[[Any], Any], num: int) -> tuple[list[bytes], Any]:
    """Train a network for some steps; return the bits of losses and state, and the step as *wrap* has made it."""
    torch.manual_seed(3)
    mesh.manual_seed(4)
    model = module_to_mesh(NETWORKS[name](), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)

    def step(batch: Any, target: Any) -> Any:
        loss = nn.functional.cross_entropy(model(batch), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    run = wrap(step)
    losses = []
    for turn in range(num):
        batch = distribute(torch.randn(8, 6), mesh, ["dp"])
        losses.append(run(batch, distribute(torch.arange(8) % 3 * (turn % 2), mesh, ["dp"])))
        schedule.step()
    return bits([*losses, *model.state_dict().values()]), run


def lose_a_rank(
    mesh: Mesh, training: GridTraining, at: int, before: Callable[[], None], undisturbed: GridTraining, expected: Any
) -> None:
    """Kill a rank before step *at* of a training, and check that a heal leaves all as in an undisturbed one.

    Args:
        before: called before the death.
        expected: the losses of *undisturbed*.
    """
    losses: list[float] = []
    deaths = 0
    while len(losses) < len(training.batches):
        try:
            if len(losses) == at and not deaths:
                before()
                die(mesh, 3)
            losses.append(training.step(*training.batches[len(losses)]))
        except DeviceMeshError:
            deaths += 1
            heal_mesh(mesh)
    assert deaths == 1 and losses == expected
    assert all(map(torch.equal, training.state(), undisturbed.state()))
