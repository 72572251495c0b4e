"""A program with tensors on GPUs of meshes, run by tests in a process of its own.

    python -m tests.gpu.tensor_drill DEVICE NUM SCENARIO...

*DEVICE* is ``cuda``, or ``cpu``, which shows without a GPU that the program itself is right. *NUM* is the number of
procs, of which each has a GPU. It prints ``passed``, or fails.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import monarch_hpc
from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, distribute, heal_mesh, module_to_mesh
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor import inspect
from monarch_hpc.tensor.sharded.procs import NCCL_ENVIRONMENT, PRELOADED

__all__ = ["Scenario", "collectives", "graphed", "healed", "layered", "trained"]

Scenario = Callable[[ProcMesh, str], None]

_STEPS = 8
_PLAN: dict[str, Any] = {"0.weight": ["dp", None], "0.bias": ["dp"]}


def collectives(procs: ProcMesh, device: str) -> None:
    """Reductions that the library has, and those by way of host memory; copies between ranks."""
    num = len(procs.procs)
    total = sum(range(1, num + 1))
    with procs.activate():
        x: Any = torch.ones(1000, device=device) * (procs.rank("dp") + 1).to(device)
        assert inspect(x.reduce("dp")).tolist() == [float(total)] * 1000
        assert inspect(x.reduce("dp", "avg"))[0].item() == total / num
        assert inspect(x.reduce("dp", "max"))[0].item() == num
        assert inspect(x.reduce("dp", "stack"))[:, 0].tolist() == [rank + 1.0 for rank in range(num)]
        assert inspect((x > 1).reduce("dp", "bor"))[0].item() is (num > 1)
        assert inspect(x.to(torch.int32).reduce("dp"))[0].item() == total
        rows: Any = torch.ones(num, 4, device=device)
        assert inspect(rows.reduce("dp", "sum", scatter=True)).tolist() == [float(num)] * 4
        y = x.slice_mesh(dp=num - 1).to_mesh(procs)
        x.reduce_("dp")
        assert inspect(y + x)[0].item() == num + total


class _Training:
    """A network whose first layer is split, with dropout, clipping and AdamW."""

    def __init__(self, mesh: Mesh, capture: Callable[[Any], Any]) -> None:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
        self.mesh = mesh
        self.model = module_to_mesh(module, mesh, _PLAN)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches = [(torch.randn(32, 16), torch.randint(0, 4, (32,))) for _ in range(_STEPS)]
        self.step = capture(self._step)
        mesh.manual_seed(1)
        mesh.commit()

    def _step(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss

    def run(self, num: int) -> float:
        """The loss of a batch."""
        x, y = (distribute(part, self.mesh, ["dp"]) for part in self.batches[num])
        return float(self.step(x, y).item())

    def weights(self) -> list[torch.Tensor]:
        """All parameters."""
        found: list[Any] = list(self.model.parameters())
        return [one.full_tensor().detach() for one in found]


def _expected(num: int) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and parameters of the same training on CPUs."""
    mesh = Mesh((num,), ("dp",))
    training = _Training(mesh, lambda step: step)
    found = [training.run(step) for step in range(_STEPS)], training.weights()
    mesh.stop()
    return found


def _check(training: _Training, losses: list[float], num: int) -> None:
    expected, weights = _expected(num)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    for one, other in zip(training.weights(), weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def _mesh(procs: ProcMesh, device: Any) -> Mesh:
    mesh = Mesh(procs=procs, device=device)
    assert mesh.execute(_device_of, mesh.ones(len(procs.procs), spec=["dp"])) == device
    return mesh


def _device_of(tensor: Any) -> str:
    return str(tensor.to_local().device.type)


def trained(procs: ProcMesh, device: str) -> None:
    """As on CPUs, within rounding."""
    training = _Training(_mesh(procs, device), lambda step: step)
    _check(training, [training.run(step) for step in range(_STEPS)], len(procs.procs))


def graphed(procs: ProcMesh, device: str) -> None:
    """Likewise, captured, with CUDA graphs on the ranks."""
    mesh = _mesh(procs, device)
    training = _Training(mesh, lambda step: mesh.capture(step, graphs=True))
    losses = [training.run(step) for step in range(_STEPS)]
    assert training.step.num_replays >= _STEPS // 2, training.step.reason
    print("lowering:", list(training.step.lowering().values()))
    _check(training, losses, len(procs.procs))


def layered(procs: ProcMesh, device: str) -> None:
    """Layers of images and attention of heads, on rows of each rank, as on CPUs within rounding."""
    mesh = _mesh(procs, device)
    torch.manual_seed(0)
    images = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8)),
        *(nn.Conv2d(8, 8, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 4)),
    )
    rows = torch.randn(8, 3, 16, 16)
    placed = module_to_mesh(images, mesh)
    found: Any = placed(distribute(rows, mesh, ["dp"]))
    found.square().sum().backward()
    expected = images(rows)
    expected.square().sum().backward()
    pairs = [
        (found, expected),
        *((one.grad, two.grad) for one, two in zip(placed.parameters(), images.parameters(), strict=True)),
    ]
    heads = torch.randn(8, 4, 16, 8)
    given: Any = distribute(heads, mesh, ["dp"]).requires_grad_()
    attended: Any = nn.functional.scaled_dot_product_attention(given, given, given, is_causal=True)
    attended.square().sum().backward()
    alone = heads.requires_grad_()
    whole = nn.functional.scaled_dot_product_attention(alone, alone, alone, is_causal=True)
    whole.square().sum().backward()  # type: ignore[no-untyped-call]
    for one, other in [*pairs, (attended, whole), (given.grad, alone.grad)]:
        torch.testing.assert_close(one.full_tensor().detach(), other.detach(), rtol=1e-2, atol=1e-3)


def healed(procs: ProcMesh, device: str) -> None:
    """A rank dies, and the replaced one gets what the others have; alone on its dimension, nobody has that."""
    num = len(procs.procs)
    if num < 2:
        return
    mesh = _mesh(procs, device)
    _PLAN.clear()  # each rank has all of the model
    training = _Training(mesh, lambda step: step)
    losses = [training.run(step) for step in range(_STEPS // 2)]
    os.kill(procs.procs[num - 1].pid, signal.SIGKILL)
    try:
        while True:
            mesh.ones(num, spec=["dp"]).sum().item()
    except DeviceMeshError:
        training.mesh = heal_mesh(mesh, "respawn")
    losses += [training.run(step) for step in range(_STEPS // 2, _STEPS)]
    _check(training, losses, num)


_SCENARIOS: dict[str, Scenario] = {one.__name__: one for one in (collectives, trained, graphed, layered, healed)}


def main() -> None:
    """Run the scenarios, each on procs of its own."""
    device, num, *scenarios = sys.argv[1:]
    for scenario in scenarios:
        with (
            monarch_hpc.hosts() as hosts,
            hosts.spawn_procs({"dp": int(num)}, preload=PRELOADED, env=NCCL_ENVIRONMENT) as procs,
        ):
            _SCENARIOS[scenario](procs.flatten("dp") if len(procs.region.extent.names) > 1 else procs, device)
        print(scenario)
    print("passed")


if __name__ == "__main__":
    main()
