"""Compares steps of a training on GPUs: op by op, captured, captured with CUDA graphs, and DDP beside them.

    python -m benchmarks.tensor_gpu                     # one proc for each GPU of this machine
    python -m benchmarks.tensor_gpu --width 2048 --steps 50
    python -m benchmarks.tensor_gpu --device cpu --procs 2    # shows that the program is right; its times say nothing

Each row is the median time of a step of the same network in one run. Exit code 2 if there is no GPU. It has never run
on one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import monarch_hpc
from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.tensor.sharded.procs import NCCL_ENVIRONMENT, PRELOADED

_ROWS = 64


def network(width: int, depth: int) -> nn.Sequential:
    """Layers of one width."""
    torch.manual_seed(0)
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _by_ddp(module: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group("dp"))


def measure(step: Callable[[], Any], num_steps: int) -> float:
    """Seconds of a step: the median, after as many that may be captured."""
    found = []
    for _ in range(2 * num_steps):
        begun_s = time.perf_counter()
        step().item()
        found.append(time.perf_counter() - begun_s)
    return statistics.median(found[num_steps:])


def ways(mesh: Mesh, width: int, depth: int, x: Any) -> dict[str, Callable[[], Any]]:
    """The steps to compare."""

    def made(capture: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
        model = module_to_mesh(network(width, depth), mesh, **options)
        make: Any = RemoteOptimizer if options else _optimizer
        optimizer = make(torch.optim.AdamW, model.parameters(), lr=1e-3)

        def step(given: Any) -> Any:
            loss = model(given).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        taken = capture(step)
        return lambda: taken(x)

    return {
        "op by op": made(lambda step: step),
        "captured": made(mesh.capture),
        "captured, with graphs": made(lambda step: mesh.capture(step, graphs=True)),
        "DDP on the ranks": made(lambda step: step, remote=True, parallelize=_by_ddp, out_spec=["dp"]),
    }


def _optimizer(cls: Any, params: Any, **options: Any) -> Any:
    return cls(params, **options)


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--procs", type=int, default=0, help="number of procs (as many as there are GPUs)")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"there is no GPU that torch {torch.__version__} reaches: try --device cpu", file=sys.stderr)
        return 2
    num = options.procs or max(1, torch.cuda.device_count())
    with (
        monarch_hpc.hosts() as hosts,
        hosts.slice(hosts=0).spawn_procs({"dp": num}, preload=PRELOADED, env=NCCL_ENVIRONMENT) as procs,
    ):
        run(procs, num, options)
    return 0


def run(procs: ProcMesh, num: int, options: argparse.Namespace) -> None:
    """Measure on procs."""
    mesh = Mesh(procs=procs, device=options.device)
    x = distribute(torch.randn(_ROWS * num, options.width), mesh, ["dp"])
    print(f"{num} x {options.device}, width {options.width}, {options.depth} layers")
    for name, step in ways(mesh, options.width, options.depth, x).items():
        print(f"{name:24} {1e3 * measure(step, options.steps):9.2f} ms")


if __name__ == "__main__":
    sys.exit(main())
