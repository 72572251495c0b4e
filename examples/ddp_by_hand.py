"""Data parallel training by hand: each rank has its own batch, and gradients travel in one message a step.

    monarch-hpc run --local 2 examples/ddp_by_hand.py

Tensors in ``with procs.activate()`` have a value of their own on each rank. What DistributedDataParallel does inside of
a process, these lines do from outside; the result is that of one process with all batches.
"""

from typing import Any

import torch
from torch import nn

import monarch_hpc
from monarch_hpc.tensor import inspect, remote

NUM_STEPS, NUM_ROWS, NUM_FEATURES = 20, 64, 8


def share_of(x_RF: torch.Tensor, rank: torch.Tensor, num: int) -> torch.Tensor:
    """The shape of what `share` returns."""
    return x_RF[: len(x_RF) // num]


@remote(propagate=share_of)
def share(x_RF: torch.Tensor, rank: torch.Tensor, num: int) -> torch.Tensor:
    """This rank's rows. R = rows, F = features."""
    each = len(x_RF) // num
    return x_RF[int(rank) * each : (int(rank) + 1) * each]


def network() -> nn.Module:
    """A network with random weights."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))


def average_gradients(model: nn.Module) -> None:
    """Replace each rank's gradients by the average of all: one reduction, whatever the number of parameters."""
    parameters = list(model.parameters())
    flat: Any = torch.cat([parameter.grad.flatten() for parameter in parameters])  # type: ignore[union-attr]
    parts = flat.reduce("dp", "avg").split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)


def train(model: nn.Module, x_RF: torch.Tensor, y_R1: torch.Tensor, average: Any) -> Any:
    """Train; return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(NUM_STEPS):
        loss = (model(x_RF) - y_R1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
    return loss


torch.manual_seed(0)
x_RF = torch.randn(NUM_ROWS, NUM_FEATURES)
y_R1 = x_RF[:, :1] * x_RF[:, 1:2]
alone = network()

procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2}, preload=["torch"]).flatten("dp")
with procs.activate():
    model = network()
    for parameter, given in zip(model.parameters(), alone.parameters(), strict=True):
        parameter.data = torch.as_tensor(given.detach())  # the same weights for all
    rank, num = procs.rank("dp"), len(procs)
    x, y = share(torch.as_tensor(x_RF), rank, num), share(torch.as_tensor(y_R1), rank, num)
    loss = train(model, x, y, average_gradients)
    whole = float(inspect(loss.detach().reduce("dp", "avg")))
expected = float(train(alone, x_RF, y_R1, lambda _model: None).detach())
weights = zip(model.parameters(), alone.parameters(), strict=True)
difference = max(float((inspect(own.detach(), dp=num - 1) - other).detach().abs().max()) for own, other in weights)
print(f"loss {whole:.6f} on {num} ranks, {expected:.6f} in one process; weights differ by {difference:.1g} at most")
if abs(whole - expected) > 1e-5 or difference > 1e-5:
    raise SystemExit("expected the result of one process")
