"""Measures mesh tensors against one process: `python benchmarks/tensor.py [--procs 2] [--install]`.

Rounds of all rows alternate, and the best of each counts. CPU times are those of the program's main thread, and of all
its threads. `--install` also measures the same operations of torchmonarch, in an environment of its own; it needs pip's
index and several GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import monarch_hpc
from monarch_hpc import ProcMesh
from monarch_hpc.tensor import inspect, sync

_NUM_OPS = 3000
_NUM_STEPS = 30
_NUM_READS = 300

_PEER = """
import time, torch
from monarch.actor import this_host
from monarch import fetch_shard
procs = this_host().spawn_procs(per_host={"gpus": 2})
with procs.activate():
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    fetch_shard(a + b).result()
    began, used = time.perf_counter(), time.process_time()
    for _ in range(500):
        c = a + b
    fetch_shard(c).result()
    print(f"{(time.perf_counter() - began) / 500 * 1e6:.1f} {(time.process_time() - used) / 500 * 1e6:.1f}", flush=True)
"""


class Taken:
    """Times of one row, in microseconds: elapsed, main thread, all threads."""

    def __init__(self, run: Callable[[], int]) -> None:
        began_s, main_s, all_s = time.perf_counter(), time.thread_time(), time.process_time()
        num = run()
        self.main_us = (time.thread_time() - main_s) / num * 1e6
        self.all_us = (time.process_time() - all_s) / num * 1e6
        self.wall_us = (time.perf_counter() - began_s) / num * 1e6


def operations(function: Callable[[Any, Any], Any], end: Callable[[], object]) -> Callable[[], int]:
    """A row: the same cached operation again and again."""
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    function(a, b)
    end()

    def run() -> int:
        for _ in range(_NUM_OPS):
            function(a, b)
        return _NUM_OPS

    return run


def training(average: Callable[[Any], object], end: Callable[[], object]) -> Callable[[], int]:
    """A row: steps of a small network."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 64)

    def run(num: int = _NUM_STEPS) -> int:
        for _ in range(num):
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                average(parameter.grad)
            optimizer.step()
        end()
        return num

    run(2)
    return run


def reads(value: Any) -> Callable[[], int]:
    """A row: one operation, and its value."""

    def run() -> int:
        for _ in range(_NUM_READS):
            inspect(value + 1)
        return _NUM_READS

    run()
    return run


def table(procs: ProcMesh) -> dict[str, Callable[[], int]]:
    """All rows; to be called where the mesh is active."""

    def done() -> None:
        sync(procs)

    small: Any = torch.ones(64)

    def sums() -> int:
        for _ in range(_NUM_READS):
            small.reduce("gpus")
        sync(procs)
        return _NUM_READS

    sums()
    return {
        "add 64 x 64": operations(lambda a, b: a + b, done),
        "mm 64 x 64": operations(lambda a, b: a @ b, done),
        "gelu": operations(lambda a, _b: nn.functional.gelu(a), done),
        "layer_norm": operations(lambda a, _b: nn.functional.layer_norm(a, (64,)), done),
        "index": operations(lambda a, _b: a[3], done),
        "add and read": reads(torch.ones(64)),
        "reduce of 64 floats": sums,
        "step of an MLP, op by op": training(lambda grad: grad.reduce_("gpus", "avg"), done),
    }


def alone() -> dict[str, Callable[[], int]]:
    """The rows that one process can run."""

    def done() -> object:
        return None

    return {
        "add 64 x 64": operations(lambda a, b: a + b, done),
        "mm 64 x 64": operations(lambda a, b: a @ b, done),
        "gelu": operations(lambda a, _b: nn.functional.gelu(a), done),
        "layer_norm": operations(lambda a, _b: nn.functional.layer_norm(a, (64,)), done),
        "index": operations(lambda a, _b: a[3], done),
        "step of an MLP, op by op": training(lambda _grad: None, done),
    }


def peer() -> None:
    """Install torchmonarch, and print its time for an operation."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torchmonarch==0.7.0", "torch"], check=True)
        done = subprocess.run([python, "-c", _PEER], capture_output=True, text=True, timeout=600, check=False)
    wall, used = (done.stdout.split() or ["-", "-"])[:2]
    print(f"torchmonarch, add 64 x 64: {wall} us, CPU {used} us")
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--install", action="store_true", help="also measure torchmonarch")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    procs = monarch_hpc.this_host().spawn_procs({"gpus": chosen.procs}, preload=["torch"], bootstrap=one_thread)
    taken: dict[str, list[Taken]] = {}
    single: dict[str, list[Taken]] = {}
    own = alone()
    with procs.activate():
        rows = table(procs)
        for _ in range(chosen.rounds):
            for name, run in rows.items():
                taken.setdefault(name, []).append(Taken(run))
                sync(procs)
    for _ in range(chosen.rounds):
        for name, run in own.items():
            single.setdefault(name, []).append(Taken(run))
    print(f"{'us':28}{'main CPU':>10}{'all CPU':>10}{'elapsed':>10}{'one process':>13}")
    for name, rounds in taken.items():
        best = [min(getattr(one, field) for one in rounds) for field in ("main_us", "all_us", "wall_us")]
        here = f"{min(one.wall_us for one in single[name]):13.1f}" if name in single else f"{'-':>13}"
        print(f"{name:28}{best[0]:10.1f}{best[1]:10.1f}{best[2]:10.1f}{here}")
    if chosen.install:
        peer()


def one_thread() -> None:
    """Have each proc compute with one thread, as the program does."""
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
