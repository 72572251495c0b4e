"""Measures mesh tensors against one process: `python -m benchmarks.tensor [--procs 2] [--torchmonarch PYTHON]`.

Rounds of all rows alternate, and the best of each counts. CPU times are those of the program's main thread, and of all
its threads. With `--torchmonarch PYTHON`, an interpreter that has torchmonarch 0.7.0, some rows alternate with the same
operations of it; its training leaves out the sum of gradients, which ours does. With `--ray PYTHON`, one that has
`ray[cgraph]`, a captured step of one operation, and its value, alternates with a compiled graph of two actors that give
back what they get.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import monarch_hpc
from benchmarks.line_program import LineProgram
from monarch_hpc import ProcMesh
from monarch_hpc.tensor import inspect, sync

_NUM_OPS = 3000
_NUM_STEPS = 30
_NUM_READS = 300

_MONARCH = """
import sys, time, torch
from torch import nn
from monarch.actor import this_host
from monarch import fetch_shard, inspect
torch.set_num_threads(1)
procs = this_host().spawn_procs(per_host={"gpus": 2})
with procs.activate():
    a, b, small = torch.ones(64, 64), torch.ones(64, 64), torch.ones(64)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 64)
    def add(num):
        for _ in range(num):
            c = a + b
        return c
    def read(num):
        for _ in range(num):
            inspect(small + 1)
        return small
    def step(num):
        for _ in range(num):
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
        return loss.detach()
    rows = {"add 64 x 64": add, "add and read": read, "step of an MLP, op by op": step}
    def run(name, num):
        fetch_shard(rows[name](num)).result()
    for name in rows:
        run(name, 2)
    print("ready", flush=True)
    for line in sys.stdin:
        name, num = line.rstrip().split("|")
        began, used = time.perf_counter(), time.process_time()
        run(name, int(num))
        print((time.perf_counter() - began) / int(num), (time.process_time() - used) / int(num), flush=True)
"""

_MONARCH_NUM = {"add 64 x 64": 100, "add and read": 30, "step of an MLP, op by op": 6}
"""torchmonarch's rows, and how often each is run in a round."""

_MONARCH_GOALS = {"add 64 x 64": 50, "add and read": 10, "step of an MLP, op by op": 5, "step of an MLP, captured": 10}
"""torchmonarch's elapsed time of a row is to be as many times ours."""

_WITHOUT = {"step of an MLP, captured": "step of an MLP, op by op"}
"""Rows that torchmonarch, which captures nothing, has otherwise."""

_RAY = """
import sys, time, ray
from ray.dag import InputNode, MultiOutputNode
ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
@ray.remote(num_cpus=0)
class Rank:
    def step(self, x):
        return x
ranks = [Rank.remote() for _ in range(2)]
with InputNode() as given:
    graph = MultiOutputNode([rank.step.bind(given) for rank in ranks]).experimental_compile()
def run(num):
    for _ in range(num):
        ray.get(graph.execute(1))
run(20)
print("ready", flush=True)
for line in sys.stdin:
    num = int(line.rstrip().split("|")[1])
    began, used = time.perf_counter(), time.process_time()
    run(num)
    print((time.perf_counter() - began) / num, (time.process_time() - used) / num, flush=True)
graph.teardown()
"""

_EMPTY_STEP = "add and read, captured"
_RAY_NUM = {_EMPTY_STEP: 300}
_RAY_GOALS = {_EMPTY_STEP: 1}


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
        end()
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


def captured(procs: ProcMesh, end: Callable[[], object]) -> Callable[[], int]:
    """A row: the same steps, replayed."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 64)

    @procs.capture
    def step(x: Any) -> Any:
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            gradient.reduce_("gpus", "avg")
        optimizer.step()
        return loss

    def run(num: int = _NUM_STEPS) -> int:
        for _ in range(num):
            step(x)
        end()
        return num

    run(4)
    return run


def add_one(x: Any) -> Any:
    """One operation."""
    return x + 1


def reads(value: Any, step: Callable[[Any], Any] = add_one) -> Callable[[], int]:
    """A row: one operation, and its value."""

    def run() -> int:
        for _ in range(_NUM_READS):
            inspect(step(value))
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
        _EMPTY_STEP: reads(torch.ones(64), procs.capture(add_one)),
        "reduce of 64 floats": sums,
        "step of an MLP, op by op": training(lambda grad: grad.reduce_("gpus", "avg"), done),
        "step of an MLP, captured": captured(procs, done),
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


class Peer:
    """Another tool in its own process.

    Args:
        name: of the tool.
        python: an interpreter that has it.
        program: its program, which prints "ready", and then the times of each row that it is asked for.
        num: its rows, and how often each is run in a round.
        goals: its elapsed time of a row is to be as many times ours.
    """

    def __init__(self, name: str, python: str, program: str, num: dict[str, int], goals: dict[str, int]) -> None:
        self._name, self._num, self._goals = name, num, goals
        self._program = LineProgram(python, program)
        self.taken: dict[str, list[tuple[float, float]]] = {name: [] for name in num}

    def run(self, name: str) -> None:
        """Run a row, if it has that."""
        if name in self._num:
            wall, used = self._program.ask(f"{name}|{self._num[name]}").split()
            self.taken[name].append((float(wall) * 1e6, float(used) * 1e6))

    def report(self, taken: dict[str, list[Taken]]) -> None:
        """Print ratios of medians."""
        title = f"{self._name}, medians"
        print(f"\n{title:28}{'elapsed':>10}{'all CPU':>10}{'ours':>10}{'times':>8}{'goal':>6}")
        for name, goal in self._goals.items():
            own = self.taken[_WITHOUT.get(name, name)]
            wall, used = (statistics.median(column) for column in zip(*own, strict=True))
            here = statistics.median(one.wall_us for one in taken[name])
            print(f"{name:28}{wall:10.1f}{used:10.1f}{here:10.1f}{wall / here:8.1f}{goal:6}")

    def close(self) -> None:
        """End it."""
        self._program.close()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchmonarch", metavar="PYTHON", help="an interpreter that has torchmonarch 0.7.0")
    parser.add_argument("--ray", metavar="PYTHON", help="an interpreter that has ray[cgraph]")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    procs = monarch_hpc.this_host().spawn_procs({"gpus": chosen.procs}, preload=["torch"], bootstrap=one_thread)
    taken: dict[str, list[Taken]] = {}
    single: dict[str, list[Taken]] = {}
    own = alone()
    peers = []
    if chosen.torchmonarch:
        peers.append(Peer("torchmonarch", chosen.torchmonarch, _MONARCH, _MONARCH_NUM, _MONARCH_GOALS))
    if chosen.ray:
        peers.append(Peer("ray", chosen.ray, _RAY, _RAY_NUM, _RAY_GOALS))
    with procs.activate():
        rows = table(procs)
        for _ in range(chosen.rounds):
            for name, run in rows.items():
                taken.setdefault(name, []).append(Taken(run))
                sync(procs)
                for peer in peers:
                    peer.run(name)
    for _ in range(chosen.rounds):
        for name, run in own.items():
            single.setdefault(name, []).append(Taken(run))
    print(f"{'us':28}{'main CPU':>10}{'all CPU':>10}{'elapsed':>10}{'one process':>13}")
    for name, rounds in taken.items():
        best = [min(getattr(one, field) for one in rounds) for field in ("main_us", "all_us", "wall_us")]
        here = f"{min(one.wall_us for one in single[name]):13.1f}" if name in single else f"{'-':>13}"
        print(f"{name:28}{best[0]:10.1f}{best[1]:10.1f}{best[2]:10.1f}{here}")
    for peer in peers:
        peer.report(taken)
        peer.close()


def one_thread() -> None:
    """Have each proc compute with one thread, as the program does."""
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
