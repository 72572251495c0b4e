"""Ordinary torch code on tensors that are sharded over a mesh of 4 x 2 ranks; no ranks in the program.

    monarch-hpc run --local 2 examples/sharded_mesh.py

The same model is trained in this process alone, too: the losses are the same.
"""

import time
from typing import Any

import torch
from torch import nn

from monarch_hpc.distributed import Mesh, distribute, module_to_mesh

NUM_STEPS = 12
BATCH_SIZE, NUM_FEATURES, NUM_HIDDEN = 32, 16, 64

begun_s = time.perf_counter()
mesh = Mesh(shape=(4, 2), mesh_dim_names=("data", "model"))

t = torch.randn(8, 8)
dt = distribute(t, mesh, sharding_spec=["data", None])  # each rank is sent its rows only
product: Any = dt @ dt.T
print(f"{dt}\ndt @ dt.T is placed {product.placements}; right: {torch.allclose(product.full_tensor(), t @ t.T)}")


def losses(model: nn.Module, inputs_BF: torch.Tensor, targets_BF: torch.Tensor) -> list[float]:
    """Train; B = rows of a batch, F = features."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(NUM_STEPS):
        loss = nn.functional.mse_loss(model(inputs_BF), targets_BF)
        optimizer.zero_grad()
        loss.backward()  # one message; gradients are summed when the optimizer reads them
        optimizer.step()
        found.append(loss.item())
    return found


model = nn.Sequential(nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.GELU(), nn.Linear(NUM_HIDDEN, NUM_FEATURES))
plan: dict[str, Any] = {"0.weight": ["model", None], "0.bias": ["model"], "2.weight": [None, "model"]}
inputs_BF = torch.randn(BATCH_SIZE, NUM_FEATURES)
targets_BF = inputs_BF.roll(1, 1)

placed = module_to_mesh(model, mesh, plan)
batch_BF = distribute(inputs_BF, mesh, ["data"])
sharded = losses(placed, batch_BF, distribute(targets_BF, mesh, ["data"]))
alone = losses(model, inputs_BF, targets_BF)
for step in range(0, NUM_STEPS, 3):
    print(f"step {step:2d}  loss {sharded[step]:.6f} on the mesh, {alone[step]:.6f} in one process")

doubled_BF = mesh.execute(lambda x: x * 2, batch_BF)  # any function, on all ranks
print(f"execute: {doubled_BF.shape}, right: {torch.equal(doubled_BF.full_tensor(), inputs_BF * 2)}")
print(f"{mesh}: {time.perf_counter() - begun_s:.1f} s")
difference = max(abs(one - other) for one, other in zip(sharded, alone, strict=True))
if difference > 1e-5:
    raise SystemExit(f"the losses differ by {difference:.2g}")
