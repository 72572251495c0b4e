"""Compares one-sided memory of a GPU with CUDA's own copies, in one run on a machine that has one.

    python -m benchmarks.rdma_gpu                        # 1 GiB, two procs that share the first GPU
    python -m benchmarks.rdma_gpu --mib 64 --rounds 20
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python -m benchmarks.rdma_gpu    # staged

Each row is a read by a proc of memory that another one has lent, and beside it the copy of as many bytes by
`torch.Tensor.copy_` in one process, from the same round. Exit code 1 if a goal was missed, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint
from monarch_hpc.rdma import RDMABuffer

MIB = 2**20
GOALS = {"cuda_ipc": 0.8, "staged": 0.5}
"""Lowest ratio to a copy in one process, by path: between GPU memory, and to or from pinned host memory."""

_PATIENCE_S = 300.0


class Holder(Actor):
    """Lends a tensor, and reads those of others."""

    @endpoint
    def lend(self, num_bytes: int, device: str) -> RDMABuffer:
        """A buffer of sevens."""
        self._data = torch.full((num_bytes,), 7, dtype=torch.uint8, device=device)
        return RDMABuffer(self._data)

    @endpoint
    async def measure(self, buffer: RDMABuffer, device: str, num_rounds: int) -> tuple[str, float, float, float]:
        """Read *buffer*; return the path, and the seconds of the first read, of later ones, and of a plain copy."""
        pinned = device == "cpu" and buffer.device != "cpu"
        here = torch.zeros(buffer.size(), dtype=torch.uint8, device=device, pin_memory=pinned)
        source = torch.ones(buffer.size(), dtype=torch.uint8, device=buffer.device)
        if buffer.device == "cpu" and device != "cpu":
            source = source.pin_memory()
        reads_s: list[float] = []
        copies_s = []
        for _ in range(1 + num_rounds):
            begun_s = time.perf_counter()
            await buffer.read_into(here)
            reads_s.append(time.perf_counter() - begun_s)
            assert int(here[0]) == int(here[-1]) == 7
            copies_s.append(_timed(lambda: here.copy_(source)))
        assert bool((here == 1).all())
        return await buffer.path(), reads_s[0], statistics.median(reads_s[1:]), statistics.median(copies_s[1:])


def _timed(copy: Callable[[], object]) -> float:
    _synchronize()
    begun_s = time.perf_counter()
    copy()
    _synchronize()
    return time.perf_counter() - begun_s


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(holders: ActorMesh[Holder], there: str, here: str, num_bytes: int, num_rounds: int) -> bool:
    """Measure and print one row; return whether it reached its goal."""
    owner, reader = holders.slice(p=0), holders.slice(p=1)
    buffer = owner.lend.call_one(num_bytes, there).get(_PATIENCE_S)
    path, first_s, read_s, copy_s = reader.measure.call_one(buffer, here, num_rounds).get(_PATIENCE_S)
    buffer.drop().get(_PATIENCE_S)
    ratio, goal = copy_s / read_s, GOALS.get(path, 0.0)
    print(
        f"{there:6} to {here:6} {path:10} {num_bytes / read_s / 1e9:8.2f} GB/s, first {1e3 * first_s:8.1f} ms; "
        f"copy {num_bytes / copy_s / 1e9:8.2f} GB/s: {ratio:.2f}x (goal {goal:g})",
        flush=True,
    )
    return bool(ratio >= goal)


def main() -> int:
    """Measure all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of a transfer; default %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="default %(default)s")
    parser.add_argument("--device", default="cuda", help="cpu tries the program without a GPU; default %(default)s")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} reaches no GPU here; --device cpu tries the program in host memory")
        return 2
    rows = dict.fromkeys([(options.device, options.device), (options.device, "cpu"), ("cpu", options.device)])
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs(per_host={"p": 2}) as procs:
        holders = procs.spawn("holder", Holder)
        reached = [measure(holders, *row, options.mib * MIB, options.rounds) for row in rows]
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
