"""Measures captured steps against steps as written, DTensor in SPMD, and one process: `python -m benchmarks.captured`.

Rounds of all rows alternate, and the best of each counts. CPU times are those of the program's main thread, and of the
busiest rank. The peers
are processes of torch alone, which train the same model.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module, distribute_tensor
from torch.distributed.tensor.placement_types import Shard

import monarch_hpc
from benchmarks.training import TASKS, clocks_of
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh
from monarch_hpc.tensor import inspect

_NUM_STEPS = 30


def network() -> nn.Module:
    """An MLP."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64))


def distance(model: Any, x: Any) -> Any:
    """The loss of a model that is to give its input."""
    return (model(x) - x).square().mean()


def step_of(
    model: nn.Module,
    optimizer: Any,
    average: Callable[[Any], object] = lambda grad: grad,
    loss_of: Callable[[Any, Any], Any] = distance,
) -> Callable[[Any], Any]:
    """A step of training."""

    def step(x: Any) -> Any:
        loss = loss_of(model, x)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            average(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def timed(
    step: Callable[[Any], Any], x: Any, read: Callable[[Any], object], clocks: Callable[[], list[float]] = list
) -> tuple[float, float, float]:
    """Milliseconds of the main thread's CPU, of the busiest rank's by *clocks*, and elapsed, for a step."""
    before, began_s, used_s = clocks(), time.perf_counter(), time.thread_time()
    for _ in range(_NUM_STEPS):
        loss = step(x)
    used_s = time.thread_time() - used_s
    read(loss)
    elapsed_s = time.perf_counter() - began_s
    rank_s = max((after - first for first, after in zip(before, clocks(), strict=True)), default=0.0)
    return used_s / _NUM_STEPS * 1e3, rank_s / _NUM_STEPS * 1e3, elapsed_s / _NUM_STEPS * 1e3


def spmd(rank: int, num: int, port: int, rounds: int, results: Any) -> None:
    """The peer: DTensor on each process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num)
    device_mesh = init_device_mesh("cpu", (num,), mesh_dim_names=("dp",))
    model = distribute_module(network(), device_mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x: Any = distribute_tensor(torch.randn(64, 64), device_mesh, [Shard(0)])
    step = step_of(model, optimizer)
    best = 1e9
    for _ in range(rounds + 1):
        dist.barrier()
        best = min(best, timed(step, x, lambda loss: loss.full_tensor().item())[2])
    if not rank:
        results.put(best)
    dist.destroy_process_group()


def peer(num: int, rounds: int) -> float:
    """Milliseconds of a step of the peer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context: Any = mp.get_context("spawn")
    results = context.SimpleQueue()
    started = [context.Process(target=spmd, args=(rank, num, port, rounds, results)) for rank in range(num)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return float(results.get())


def one_thread() -> None:
    """Have each proc compute with one thread, as the program does."""
    torch.set_num_threads(1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    modules = ["torch", "torch._dynamo", "torch.distributed.tensor"]
    procs = monarch_hpc.this_host().spawn_procs({"dp": chosen.procs}, preload=modules, bootstrap=one_thread)
    mesh = Mesh(procs=procs, commit=False)
    data = torch.randn(64, 64)
    rows: dict[str, tuple[Callable[[Any], Any], Any, Callable[[Any], object]]] = {}
    with procs.activate():
        model = network()
        for name, wrap in (("as written", lambda step: step), ("captured", procs.capture)):
            step = step_of(
                model, torch.optim.AdamW(model.parameters(), lr=1e-3), lambda grad: grad.reduce_("dp", "avg")
            )
            rows[f"on each rank, {name}"] = wrap(step), torch.randn(64 // chosen.procs, 64), inspect
    x = distribute(data, mesh, ["dp"])
    sharded = module_to_mesh(network(), mesh)
    remote = module_to_mesh(network(), mesh, remote=True)
    build, loss_of, batch_of = TASKS["gpt"]
    gpt = module_to_mesh(build(), mesh)
    chars = [distribute(part, mesh, ["dp"]) for part in batch_of()]
    clocks = clocks_of(procs)
    wraps: dict[str, Callable[[Any], Any]] = {
        "as written": lambda step: step,
        "captured": mesh.capture,
        "captured, by DTensor": lambda step: mesh.capture(step, lower=False),
    }
    for name, wrap in wraps.items():
        optimizer: Any = torch.optim.AdamW(sharded.parameters(), lr=1e-3)
        rows[f"sharded, {name}"] = wrap(step_of(sharded, optimizer)), x, lambda loss: loss.item()
        optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
        step = step_of(gpt, optimizer, loss_of=loss_of)
        rows[f"sharded GPT, {name}"] = wrap(step), chars, lambda loss: loss.item()
        if name == "captured, by DTensor":
            continue  # a module on the ranks has no operators of ours
        there = RemoteOptimizer(torch.optim.AdamW, remote.parameters(), lr=1e-3)
        rows[f"module on the ranks, {name}"] = (
            wrap(step_of(remote, there)),
            x,
            lambda loss: loss.item(),
        )
    alone = network()
    rows["one process"] = (
        step_of(alone, torch.optim.AdamW(alone.parameters(), lr=1e-3)),
        data,
        lambda loss: loss.item(),
    )
    gpt_alone = build()
    rows["GPT, one process"] = (
        step_of(gpt_alone, torch.optim.AdamW(gpt_alone.parameters(), lr=1e-3), loss_of=loss_of),
        list(batch_of()),
        lambda loss: loss.item(),
    )
    taken: dict[str, list[tuple[float, float, float]]] = {}
    for place in range(chosen.rounds + 1):  # the first one warms up
        for name, (step, given, read) in rows.items():
            times = timed(step, given, read, clocks)
            if place:
                taken.setdefault(name, []).append(times)
    print(f"{'ms a step':36}{'main CPU':>10}{'rank CPU':>10}{'elapsed':>10}")
    for name, rounds in taken.items():
        print(f"{name:36}" + "".join(f"{min(column):10.3f}" for column in zip(*rounds, strict=True)))
    for name, (step, _, _) in rows.items():
        if getattr(step, "reason", ""):
            print(f"{name} runs as written: {step.reason}")  # type: ignore[attr-defined]
    procs.stop().get(60)
    print(f"{'DTensor in SPMD':36}{'-':>10}{'-':>10}{peer(chosen.procs, chosen.rounds):10.3f}")


if __name__ == "__main__":
    main()
