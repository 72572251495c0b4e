"""Measures training steps against DDP, DTensor, one process and torchmonarch: `python -m benchmarks.training`.

All rows are of two ranks, or one, on this machine, with one thread each. Rounds of all rows alternate; a ratio is that
of the medians. SPMD programs (DDP, DTensor) run in actors of a second mesh of procs, which compute alone while they are
measured. With `--torchmonarch PYTHON`, an interpreter that has torchmonarch 0.7.0 runs the MLP, too. On a shared
machine, CPU times say more than elapsed ones: that of the busiest rank, and that of the program. `--rows gpt` makes
only the rows with this word, and what they are compared with, if that has it, too; so does a list of words.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import monarch_hpc
from benchmarks.line_program import LineProgram
from benchmarks.models import BATCH, GPT, MLP_BATCH, NUM_CHARS, NUM_PLACES, mlp
from monarch_hpc import Actor, endpoint, spmd
from monarch_hpc.distributed import Mesh, RemoteOptimizer, distribute, module_to_mesh

_PEER = """
import sys, time, torch
from torch import nn
from monarch.actor import this_host
from monarch import fetch_shard
torch.set_num_threads(1)
procs = this_host().spawn_procs(per_host={"gpus": 2})
with procs.activate():
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 64)
    def steps(num):
        for _ in range(num):
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
        fetch_shard(loss.detach()).result()
    steps(2)
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        steps(int(line))
        print((time.perf_counter() - began) / int(line), flush=True)
"""


def gpt_loss(model: Any, batch: Any) -> Any:
    """The loss of a GPT. B = batch, T = places."""
    chars_BT, next_BT = batch
    return functional.cross_entropy(model(chars_BT).flatten(0, 1), next_BT.flatten())


def mlp_loss(model: Any, batch: Any) -> Any:
    """The loss of a classifier."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def small_loss(model: Any, batch: Any) -> Any:
    """The loss that torchmonarch computes."""
    return model(batch[0]).sum()


TASKS: dict[str, Any] = {
    "gpt": (
        GPT,
        gpt_loss,
        lambda: tuple(torch.randint(0, NUM_CHARS, (BATCH, NUM_PLACES)) for _ in range(2)),
    ),
    "mlp": (mlp, mlp_loss, lambda: (torch.randn(MLP_BATCH, 256), torch.randint(0, 10, (MLP_BATCH,)))),
}


class Taken(NamedTuple):
    """Seconds for a step: elapsed, CPU of the busiest rank, CPU of the program; 0 if unknown."""

    elapsed_s: float
    rank_s: float
    program_s: float


class Clock(Actor):
    """Tells the CPU time of a rank."""

    @endpoint
    def cpu_s(self) -> float:
        """Since the process began."""
        return time.process_time()


def stepper(
    model: Any, optimizer: Any, loss_of: Any, batch: Any, clocks: Callable[[], list[float]] | None = None
) -> Callable[[int], Taken]:
    """A function that makes some steps; *clocks* gives the CPU times of the ranks, if this process is none."""
    last: list[Any] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        last[:] = [loss]

    return timed(step, clocks, end=lambda: last[0].item())


def timed(
    step: Callable[[], object],
    clocks: Callable[[], list[float]] | None,
    *,
    end: Callable[[], object] = lambda: None,
    total: Callable[[Any], float] = max,
) -> Callable[[int], Taken]:
    """A function that makes some steps, and measures them.

    Args:
        step: makes one.
        clocks: gives the CPU times of the ranks; None if this process is one.
        end: waits for the last step.
        total: of the CPU times of the ranks.
    """
    times = clocks or (lambda: [time.process_time()])

    def run(num: int) -> Taken:
        before, began_s, own_s = times(), time.perf_counter(), time.process_time()
        for _ in range(num):
            step()
        end()
        elapsed_s, program_s = time.perf_counter() - began_s, time.process_time() - own_s if clocks else 0.0
        rank_s = total([after - first for first, after in zip(before, times(), strict=True)])
        return Taken(elapsed_s / num, rank_s / num, program_s / num)

    return run


def clocks_of(procs: Any) -> Callable[[], list[float]]:
    """The CPU times of procs."""
    clock = procs.spawn("clock", Clock)
    return lambda: [cpu_s for _, cpu_s in clock.cpu_s.call().get().items()]


class Peer(Actor):
    """An SPMD program on one rank."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._runs: dict[str, Callable[[int], Taken]] = {}

    @endpoint
    def make(self, task: str, kind: str) -> None:
        """Build a model; on all ranks."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

        build, loss_of, data = TASKS[task]
        torch.manual_seed(0)
        model, batch = build(), data()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        if kind == "ddp":
            own = [part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch]
            model, batch = nn.parallel.DistributedDataParallel(model), tuple(own)
        else:
            distribute_module(model, mesh)
            batch = tuple(distribute_tensor(part, mesh, [Shard(0)]) for part in batch)
        run = stepper(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_of, batch)
        self._runs[f"{task} {kind}"] = run

    @endpoint
    def steps(self, name: str, num: int) -> Taken:
        """Make steps; on all ranks."""
        return self._runs[name](num)


def ddp(module: nn.Module, mesh: Any) -> nn.Module:
    """Data parallel; on the ranks."""
    return nn.parallel.DistributedDataParallel(module, process_group=mesh.get_group("dp"))


def ours(task: str, mesh: Mesh, kind: str, clocks: Callable[[], list[float]]) -> Callable[[int], Taken]:
    """A row of ours: ``op by op``, a ``remote`` module with DDP inside, or ``alone``, without, on one rank."""
    build, loss_of, data = TASKS[task]
    torch.manual_seed(0)
    model, batch = build(), data()
    placed = tuple(distribute(part, mesh, ["dp"]) for part in batch)
    if kind != "op by op":
        wrap = ddp if kind == "remote" else None
        model = module_to_mesh(_WithLoss(model, loss_of), mesh, remote=True, parallelize=wrap, out_spec=["dp"])
        optimizer: Any = RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-3)
        return stepper(model, optimizer, lambda whole, given: whole(*given).mean(), placed, clocks)
    model = module_to_mesh(model, mesh)
    return stepper(model, RemoteOptimizer(torch.optim.AdamW, model.parameters(), lr=1e-3), loss_of, placed, clocks)


class _WithLoss(nn.Module):
    """A model that returns the mean loss of this rank's rows, once for each of its ranks."""

    def __init__(self, model: nn.Module, loss_of: Any) -> None:
        super().__init__()
        self.model = model
        self._loss_of = loss_of

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """The loss of each row, all alike: their mean is that of the batch."""
        loss: torch.Tensor = self._loss_of(self.model, batch)
        return loss.expand(len(batch[0]))


def alone(task: str) -> Callable[[int], Taken]:
    """One process."""
    build, loss_of, data = TASKS[task]
    torch.manual_seed(0)
    model = build()
    return stepper(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss_of, data())


class Monarch:
    """torchmonarch in its own process.

    Args:
        python: an interpreter that has it.
    """

    def __init__(self, python: str) -> None:
        self._program = LineProgram(python, _PEER)

    def steps(self, num: int) -> Taken:
        """Make steps."""
        return Taken(float(self._program.ask(str(num))), 0.0, 0.0)

    def close(self) -> None:
        """End it."""
        self._program.close()


def small(mesh: Mesh, clocks: Callable[[], list[float]], *, remote: bool) -> Callable[[int], Taken]:
    """The MLP that torchmonarch trains; with our sum of gradients, which it leaves out."""
    model: Any = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    batch = (distribute(torch.randn(64, 64), mesh, ["dp"]),)
    if remote:
        model = module_to_mesh(model, mesh, remote=True, out_spec=["dp"])
    else:
        model = module_to_mesh(model, mesh)
    return stepper(model, RemoteOptimizer(torch.optim.SGD, model.parameters(), lr=0.01), small_loss, batch, clocks)


def rows(procs: Any, peers: Any, words: list[str]) -> dict[str, Callable[[int], Taken]]:
    """The rows with one of *words* in their names, or all, by name; but torchmonarch's."""
    found: dict[str, Callable[[int], Taken]] = {}
    mesh, single, clocks = Mesh(procs=procs), Mesh(procs=procs.slice(dp=slice(0, 1))), clocks_of(procs)

    def add(name: str, make: Callable[[], Callable[[int], Taken]]) -> None:
        if not words or any(word in name for word in words):
            found[name] = make()

    def peer(task: str, kind: str) -> Callable[[int], Taken]:
        peers.make.call(task, kind).get()
        return lambda num: max(taken for _, taken in peers.steps.call(f"{task} {kind}", num).get().items())

    for task in TASKS:
        for kind in ("ddp", "dtensor"):
            add(f"{task} {kind}", partial(peer, task, kind))
        for kind in ("op by op", "remote"):
            add(f"{task} ours, {kind}", partial(ours, task, mesh, kind, clocks))
        add(f"{task} one process", partial(alone, task))
        add(f"{task} ours on one rank", partial(ours, task, single, "alone", clocks))
        add(f"{task} ours on one rank, DDP", partial(ours, task, single, "remote", clocks))
    add("small ours, op by op", partial(small, mesh, clocks, remote=False))
    add("small ours, remote", partial(small, mesh, clocks, remote=True))
    return found


_RATIOS = [
    ("gpt ours, op by op", "gpt dtensor", 0.85),
    ("mlp ours, op by op", "mlp dtensor", 0.85),
    ("gpt ours, remote", "gpt ddp", 0.9),
    ("mlp ours, remote", "mlp ddp", 0.75),
    ("gpt ours on one rank", "gpt one process", 0.9),
    ("mlp ours on one rank", "mlp one process", 0.9),
    ("gpt ours on one rank, DDP", "gpt one process", 0.0),
    ("mlp ours on one rank, DDP", "mlp one process", 0.0),
    ("small ours, op by op", "small torchmonarch", 5.0),
    ("small ours, remote", "small torchmonarch", 5.0),
]


def one_thread() -> None:
    """Have each proc compute with one thread, as the program does."""
    torch.set_num_threads(1)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--torchmonarch", metavar="PYTHON", help="an interpreter that has torchmonarch 0.7.0")
    parser.add_argument("--rows", nargs="*", default=[], metavar="WORD", help="of the names of rows; default: all")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    host = monarch_hpc.this_host()
    procs = host.spawn_procs({"dp": 2}, preload=["torch", "torch.distributed.tensor"], bootstrap=one_thread)
    other = host.spawn_procs({"ranks": 2}, preload=["torch", "torch.distributed.tensor"], bootstrap=one_thread)
    spmd(other).init("cpu:gloo")  # torch's own, as in any SPMD program
    peers = other.spawn("peer", Peer)
    table = rows(procs, peers, chosen.rows)
    monarch = Monarch(chosen.torchmonarch) if chosen.torchmonarch else None
    if monarch is not None:
        table["small torchmonarch"] = monarch.steps
    for run in table.values():
        run(2)
    taken: dict[str, list[Taken]] = {name: [] for name in table}
    for _ in range(chosen.rounds):
        for name, run in table.items():
            taken[name].append(run(chosen.steps))
    print(f"{'ms a step, medians':28}{'elapsed':>10}{'rank CPU':>10}{'program CPU':>13}")
    for name, times in taken.items():
        elapsed, rank, program = ((statistics.median(column) * 1e3) for column in zip(*times, strict=True))
        print(f"{name:28}{elapsed:10.2f}{rank:10.2f}{program:13.2f}")
    print(f"\n{'speed, ratio of medians':52}{'elapsed':>9}{'best':>9}{'CPU':>9}{'goal':>7}")
    for name, against, goal in _RATIOS:
        if name in taken and against in taken:
            pairs = list(zip(zip(*taken[against], strict=True), zip(*taken[name], strict=True), strict=True))
            elapsed, rank, _ = (statistics.median(one) / (statistics.median(other) or 1.0) for one, other in pairs)
            best = min(pairs[0][0]) / min(pairs[0][1])
            print(f"{name + ' / ' + against:52}{elapsed:9.2f}{best:9.2f}{rank:9.2f}{goal:7.2f}")
    if monarch is not None:
        monarch.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
