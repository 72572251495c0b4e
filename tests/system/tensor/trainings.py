"""Models, data and loops that the tests of training share: each loop runs on a mesh and in one process alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["NUM_ROWS", "batches", "by_ddp", "by_fsdp", "by_tp", "by_tp_and_fsdp", "losses", "network"]

NUM_ROWS = 8


def network(seed: int = 0) -> nn.Sequential:
    """A small network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def batches(num: int, seed: int = 1, num_rows: int = NUM_ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of *num* batches."""
    torch.manual_seed(seed)
    return torch.randn(num, num_rows, 6), torch.randint(0, 3, (num, num_rows))


def losses(model: Any, optimizer: Any, inputs: Any, targets: Any, *, halves: int = 2) -> list[float]:
    """Train with gradients of *halves* batches a step, clipping, and a schedule."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    found = []
    for first in range(0, len(inputs), halves):
        optimizer.zero_grad()
        for x, y in zip(inputs[first : first + halves], targets[first : first + halves], strict=True):
            loss = nn.functional.cross_entropy(model(x), y) / halves
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        found.append(loss.item())
    return found


def by_ddp(module: nn.Module, mesh: Any) -> nn.Module:
    """Data parallel."""
    return nn.parallel.DistributedDataParallel(module, process_group=mesh.get_group("dp"))


def by_fsdp(module: Any, mesh: Any) -> None:
    """Sharded parameters."""
    from torch.distributed.fsdp import fully_shard

    fully_shard(module[0], mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])


def by_tp(module: nn.Module, mesh: Any) -> None:
    """Tensor parallel; gradients are left to the mesh to sum over ``dp``."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


def by_tp_and_fsdp(module: nn.Module, mesh: Any) -> None:
    """Both."""
    from torch.distributed.fsdp import fully_shard

    by_tp(module, mesh)
    fully_shard(module, mesh=mesh["dp"])
