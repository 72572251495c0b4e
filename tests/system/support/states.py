"""Trees of arrays for tests, and an actor that makes states of them, publishes them, and reads those of others."""

from __future__ import annotations

import os
import resource
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor import Shard as AlongDim

from monarch_hpc import Actor, current_rank, current_size, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.rdma import RDMAState, Shard
from monarch_hpc.transport.memory.places import Scattered

__all__ = ["Adam", "Owner", "model", "same"]

_PATIENCE_S = 60.0


class Adam(NamedTuple):
    step: int
    moment: Any


def model() -> dict[str, Any]:
    """A tree with all that travels: tied weights, views, strides, parameters, values, and arrays of both libraries."""
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "emb": weight,
        "head": weight,
        "turned": weight.t(),
        "bias": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        "adam": [Adam(3, np.arange(10, dtype=np.int16)[::-2]), Adam(4, np.array(7.5))],
        "empty": torch.zeros(0, 3),
        "lr": 0.1,
    }


class Owner(Actor):
    """Makes states, publishes them, and reads those of others."""

    def __init__(self) -> None:
        self.tree: Any = None
        self.state: RDMAState | None = None
        self.places: set[int] = set()

    @endpoint
    def make(self, tree: Any, copies: int = 0, dtype: object = None) -> RDMAState:
        self.tree = tree
        self.state = RDMAState(tree, copies=copies, dtype=dtype)
        return self.state

    @endpoint
    def twice(self, num: int) -> tuple[RDMAState, RDMAState]:
        """Two states of the same arrays, which are looked at once."""
        self.tree = {f"layers.{number}": np.full(5000, number, np.float64) for number in range(num)}
        self.places = {array.ctypes.data for array in self.tree.values()}
        states = RDMAState(self.tree), RDMAState(dict(self.tree))
        memories = current_runtime().node.own_memory.memories._memories.values()
        lent = [memory.buffer for memory in memories if isinstance(memory.buffer, Scattered)]
        assert len(lent) == 2 and lent[0] is lent[1]
        return states

    @endpoint
    def replaced(self) -> RDMAState:
        """A state of new arrays, where those of `twice` were."""
        num = len(self.tree)
        self.tree = None
        self.tree = {f"layers.{number}": np.full(5000, -number, np.float64) for number in range(num)}
        assert self.places & {array.ctypes.data for array in self.tree.values()}
        return RDMAState(self.tree)

    @endpoint
    def shard(self, whole: Any, dim: int, copies: int = 0) -> RDMAState:
        """The state of this rank's part of an array, and of what all have."""
        rank, size = current_rank().rank, whole.shape[dim] // current_size()["gpus"]
        part = whole.take(range(rank * size, (rank + 1) * size), dim)
        offsets = [rank * size if one == dim else 0 for one in range(whole.ndim)]
        self.tree = {"w": Shard(part, whole.shape, offsets), "all": np.arange(5), f"rank{rank}": rank}
        self.state = RDMAState(self.tree, copies=copies)
        return self.state

    @endpoint
    def reshard(self) -> bool:
        """Read a DTensor into one with other shards, as the only rank of torch.distributed."""
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.arange(12.0).reshape(3, 4)
        state = RDMAState({"w": DTensor.from_local(whole, mesh, [AlongDim(0)])})
        here = DTensor.from_local(torch.zeros(3, 4), mesh, [AlongDim(1)])
        state.read_into({"w": here}).get(_PATIENCE_S)
        plain = state.read().get(_PATIENCE_S)["w"]
        with pytest.raises(TypeError, match="sum is not finished"):
            RDMAState([DTensor.from_local(whole, mesh, [Partial()])])
        torch.distributed.destroy_process_group()
        return torch.equal(here.to_local(), whole) and torch.equal(plain, whole)

    @endpoint
    def fill(self, value: float) -> int:
        """Set all elements, and publish them."""
        assert self.state is not None
        self.tree["w"].data[...] = value
        return self.state.publish()

    @endpoint
    def publish_all(self, versions: int, first: int = 2) -> tuple[int, int, float]:
        """Publish that many times; return the growth of memory in bytes and registrations, and the longest one."""
        assert self.state is not None
        before, longest_s = (0, 0), 0.0
        for version in range(first, first + versions):
            if version == first + 8:
                before = _used()
            for value in self.tree.values():
                value.fill(version)
            began_s = time.monotonic()
            assert self.state.publish() == version
            longest_s = max(longest_s, time.monotonic() - began_s)
        after = _used()
        return after[0] - before[0], after[1] - before[1], longest_s

    @endpoint
    async def read_until(self, state: RDMAState, version: int) -> tuple[int, int]:
        """Read until that version; return the number of reads, and of those that mixed versions."""
        into = await state.read()
        reads = mixed = got = 0
        while got < version:
            got = await state.read_into(into)
            reads += 1
            mixed += any((value != got).any() for value in into.values())
        return reads, mixed

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def _used() -> tuple[int, int]:
    memories = current_runtime().node.own_memory.memories._memories
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, len(memories)


def same(one: Any, other: Any) -> bool:
    """Whether two trees have equal values of the same types."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)
