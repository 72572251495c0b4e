"""Trains on a mesh of 4 x 2 ranks, of which some are killed: the losses are those of a run without deaths.

Most ranks that die are started again. One is left out with its row of the mesh, which grows again two steps later; with
fewer ranks, sums have another order, so the last digits of losses differ from there on.

monarch-hpc run --local 2 examples/elastic_mesh.py
"""

import os
import signal
import time
from typing import Any

import torch
from torch import nn

from monarch_hpc.distributed import Mesh, distribute, heal_mesh, module_to_mesh
from monarch_hpc.exceptions import DeviceMeshError

NUM_STEPS = 8
BATCH_SIZE, NUM_FEATURES, NUM_HIDDEN = 32, 16, 64
VICTIMS = {1: (5,), 2: (0, 3), 4: (7,), 7: (6,)}  # ranks by the step before which they are killed
SHRINKS, GROWS = 4, 6  # steps: a rank that is lost in the first one is left out until the second one

torch.manual_seed(0)
mesh = Mesh(shape=(4, 2), mesh_dim_names=("data", "model"))
module = nn.Sequential(nn.Linear(NUM_FEATURES, NUM_HIDDEN), nn.GELU(), nn.Linear(NUM_HIDDEN, NUM_FEATURES))
plan: dict[str, Any] = {"0.weight": ["model", None], "0.bias": ["model"], "2.weight": [None, "model"]}
batches = [torch.randn(BATCH_SIZE, NUM_FEATURES) for _ in range(NUM_STEPS)]


def train(victims: dict[int, tuple[int, ...]]) -> list[float]:
    """Train the module from the beginning, with deaths; return the losses."""
    global mesh
    model = module_to_mesh(module, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    victims = dict(victims)
    losses: list[float] = []
    while len(losses) < NUM_STEPS:
        if len(losses) == GROWS and mesh.size() < 8:
            print(f"step {GROWS}: {mesh.shape} grows to {mesh.grow().shape}")
        for rank in victims.pop(len(losses), ()):
            os.kill(mesh.procs.procs[rank].pid, signal.SIGKILL)
        try:
            batch = distribute(batches[len(losses)], mesh, ["data"])
            loss = nn.functional.mse_loss(model(batch), batch.roll(1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        except DeviceMeshError as error:
            begun_s = time.perf_counter()
            mesh = heal_mesh(mesh, "shrink" if len(losses) == SHRINKS else "respawn")
            print(
                f"step {len(losses)}: rank {error.rank} {error.kind}; healed in {time.perf_counter() - begun_s:.2f} s"
            )
    return losses


undisturbed, disturbed = train({}), train(VICTIMS)
for step, loss in enumerate(disturbed):
    print(f"step {step}  loss {loss:.6f}, without deaths {undisturbed[step]:.6f}")

while True:  # a function on all ranks, repeated if one of them dies
    try:
        doubled = mesh.execute(lambda x: x * 2, batches[0])
        right = torch.equal(doubled.full_tensor(), batches[0] * 2)
        break
    except DeviceMeshError:
        mesh = heal_mesh(mesh)
print(f"execute: right: {right}; {mesh.procs.heals} ranks were started again")
differs = max(abs(one - other) for one, other in zip(disturbed, undisturbed, strict=True))
if disturbed[:SHRINKS] != undisturbed[:SHRINKS] or differs > 1e-5 or not right:
    raise SystemExit("the losses differ")
