"""Measures what versions cost a training: `python -m benchmarks.commit`.

Meshes with `commit=True` and `commit=False` take turns at the same steps, op by op, with a loss that is read in each.
On a shared machine, CPU times say more than elapsed ones: that of all ranks, and that of the program. Goal: 5 % of a
step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import monarch_hpc
from benchmarks.training import TASKS, Taken, clocks_of, one_thread, timed
from monarch_hpc.distributed import Mesh, distribute, module_to_mesh

_CLASSES: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
_PLAN: dict[str, dict[str, Any]] = {"mlp": {"0.weight": ["tp", None], "0.bias": ["tp"], "2.weight": [None, "tp"]}}


def training(task: str, optimizer: str, mesh: Mesh, *, captured: bool) -> Callable[[], object]:
    """A function that makes one step, and reads its loss."""
    build, loss_of, data = TASKS[task]
    torch.manual_seed(0)
    model, batch = build(), data()
    if "tp" in mesh.mesh_dim_names:
        model = module_to_mesh(model, mesh, plan=_PLAN.get(task))
    else:
        model = module_to_mesh(model, mesh)
    own = _CLASSES[optimizer](model.parameters(), lr=1e-3)
    placed = tuple(distribute(part, mesh, ["dp"]) for part in batch)

    def step(*given: Any) -> Any:
        own.zero_grad()
        loss = loss_of(model, given)
        loss.backward()
        own.step()
        return loss

    run = mesh.capture(step) if captured else step
    return lambda: run(*placed).item()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["gpt", "mlp"], choices=list(TASKS))
    parser.add_argument("--optimizer", default="adamw", choices=list(_CLASSES))
    parser.add_argument("--tp", type=int, default=1, help="size of a second dimension, which shards the MLP")
    parser.add_argument("--captured", action="store_true", help="steps are captured")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dims = {"dp": 2, "tp": chosen.tp} if chosen.tp > 1 else {"dp": 2}
    preload = ["torch", "torch._dynamo", "torch.distributed.tensor"]
    table: dict[str, Callable[[int], Taken]] = {}
    for commit in (False, True):
        procs = monarch_hpc.this_host().spawn_procs(dims, preload=preload, bootstrap=one_thread)
        mesh, clocks = Mesh(procs=procs, commit=commit), clocks_of(procs)
        for task in chosen.tasks:
            step = training(task, chosen.optimizer, mesh, captured=chosen.captured)
            table[f"{task}, commit={commit}"] = timed(step, clocks, total=sum)
    for run in table.values():
        run(4)
    taken: dict[str, list[Taken]] = {name: [] for name in table}
    for _ in range(chosen.rounds):
        for name, run in table.items():
            taken[name].append(run(chosen.steps))
    print(f"{'ms a step, medians (best)':28}{'elapsed':>20}{'CPU of all ranks':>20}{'program CPU':>20}")
    for name, times in taken.items():
        cells = [f"{statistics.median(one) * 1e3:.2f} ({min(one) * 1e3:.2f})" for one in zip(*times, strict=True)]
        print(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))
    print(f"\n{'cost of commit=True, %':28}{'elapsed':>20}{'CPU of all ranks':>20}{'program CPU':>20}")
    for task in chosen.tasks:
        without, with_ = (list(zip(*taken[f"{task}, commit={commit}"], strict=True)) for commit in (False, True))
        cells = []
        for one, other in zip(without, with_, strict=True):
            median, best = statistics.median(other) / statistics.median(one), min(other) / min(one)
            cells.append(f"{median * 100 - 100:+.1f} ({best * 100 - 100:+.1f})")
        print(f"{task:28}" + "".join(f"{cell:>20}" for cell in cells))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
