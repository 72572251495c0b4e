"""A sum over all procs, by a ring: each reads from its left neighbour's memory, and adds.

    monarch-hpc run --local 2 examples/allreduce_ring.py

Each proc has a vector, cut into as many chunks as there are procs. In the first round of the ring each chunk is summed
up on its way through all procs; in the second the sums go around once more. So each proc moves two vectors in all,
however many procs there are, and all links are in use at the same time. Messages only say that a chunk is ready.
"""

from __future__ import annotations

import asyncio
import time

import torch

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, concurrent_endpoint, current_rank, endpoint
from monarch_hpc.rdma import RDMABuffer

NUM_ELEMENTS = 1_000_000  # of each vector


def vector_of(rank: int) -> torch.Tensor:
    """Whole numbers, so that no order of adding them changes the sum."""
    return torch.randint(1000, (NUM_ELEMENTS,), generator=torch.Generator().manual_seed(rank)).double()


class Rank(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank
        self.vector = vector_of(self.rank)
        self.ready = asyncio.Semaphore(0)  # chunks of the left neighbour that can be read

    @endpoint
    async def share(self) -> RDMABuffer:
        return RDMABuffer(self.vector)

    @endpoint
    async def chunk_is_ready(self) -> None:
        self.ready.release()

    @concurrent_endpoint  # other messages are handled while it waits
    async def sum_up(self, ranks: ActorMesh[Rank], left: RDMABuffer) -> torch.Tensor:
        """Add the vectors of all to this one; return it."""
        size = len(ranks)
        right = ranks.slice(ranks=(self.rank + 1) % size)
        bounds = [NUM_ELEMENTS * chunk // size for chunk in range(size + 1)]
        right.chunk_is_ready.broadcast()
        for step in range(2 * (size - 1)):
            chunk = (self.rank - step - 1) % size
            place = slice(bounds[chunk], bounds[chunk + 1])
            await self.ready.acquire()
            if step < size - 1:
                self.vector[place] += await left[place].read()
            else:  # the left neighbour has the sum
                await left[place].read_into(self.vector[place])
            right.chunk_is_ready.broadcast()
        return self.vector


hosts = monarch_hpc.hosts()
ranks = hosts.spawn_procs(per_host={"procs": 2}).flatten("ranks").spawn("rank", Rank)
buffers = list(ranks.share.call().get().values())

began_s = time.perf_counter()
futures = [ranks.slice(ranks=rank).sum_up.call_one(ranks, buffers[rank - 1]) for rank in range(len(ranks))]
sums = [future.get() for future in futures]
all_s = time.perf_counter() - began_s
print(f"{len(ranks)} vectors of {8 * NUM_ELEMENTS / 1e6:.0f} MB summed up and fetched in {all_s:.3f} s")

expected = torch.stack([vector_of(rank) for rank in range(len(ranks))]).sum(0)
if not all(torch.equal(one, expected) for one in sums):
    raise SystemExit("the sums are not what torch has")
