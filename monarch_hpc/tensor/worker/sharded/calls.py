"""Functions that the program calls by name on all ranks: they make sharded tensors, convert them, and read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_hpc.tensor.worker.collectives.staging import to_device
from monarch_hpc.tensor.worker.sharded.communication import CommunicationCounter, count_with
from monarch_hpc.tensor.worker.sharded.rules import ShardedOps

__all__ = [
    "count_communication",
    "current_ops",
    "entered",
    "global_from_shards",
    "global_placements",
    "local",
    "made",
    "placements",
    "redistribute",
    "seed",
    "shard",
    "whole",
]

_current: list[ShardedOps] = []


@contextmanager
def entered(ops: ShardedOps) -> Iterator[None]:
    """Run operators on the tensors of a mesh; on the worker's thread."""
    _current.append(ops)
    try:
        with ops:
            yield
    finally:
        _current.pop()


def current_ops() -> ShardedOps:
    """The mesh of the frame that is executed."""
    return _current[-1]


def global_placements(dims: tuple[int, ...]) -> tuple[Any, ...]:
    """The placements of a tensor: for each dimension of the mesh, the dimension that it splits, or -1."""
    return tuple(Replicate() if dim < 0 else Shard(dim) for dim in dims)


def global_from_shards(
    own: torch.Tensor, dims: tuple[int, ...], shape: tuple[int, ...], stride: tuple[int, ...], leaf: bool
) -> DTensor:
    """The sharded tensor of which each rank has its shard.

    Args:
        own: this rank's shard.
        dims: for each dimension of the mesh, the dimension of the tensor that it shards, or -1.
        shape: of the whole.
        stride: of the whole.
        leaf: whether the result is a leaf of autograd's graph that requires a gradient.
    """
    ops = current_ops()
    mesh, own = ops.mesh, to_device(own, ops.device)
    made: DTensor = DTensor.from_local(
        own, mesh, global_placements(dims), run_check=False, shape=torch.Size(shape), stride=stride
    )
    if leaf:
        made.requires_grad_()
    return made


def made(
    kind: str, shape: tuple[int, ...], dims: tuple[int, ...], dtype: torch.dtype, fill: Any, grads: bool
) -> DTensor:
    """A new sharded tensor: ``full`` with *fill*, or the random numbers ``rand`` and ``randn`` of one process."""
    ops = current_ops()
    if kind == "full":
        whole = torch.full((), fill, dtype=dtype, device=ops.device).expand(shape)
    else:
        whole = ops.drawn(getattr(torch, kind), shape, dtype)
    with torch.no_grad():
        sharded: DTensor = ops.wrap(whole).redistribute(placements=global_placements(dims))
    local = sharded._local_tensor.contiguous()
    stride = torch.empty(shape, device="meta").stride()
    return global_from_shards(local.clone() if kind == "full" else local, dims, shape, tuple(stride), grads)


def redistribute(tensor: DTensor, dims: tuple[int, ...]) -> DTensor:
    """The same value with other placements."""
    return tensor.redistribute(placements=global_placements(dims))


def local(tensor: DTensor, dims: tuple[int, ...]) -> torch.Tensor:
    """This rank's shard in certain placements, for autograd too."""
    return tensor.redistribute(placements=global_placements(dims)).to_local().contiguous()


def shard(tensor: DTensor) -> torch.Tensor:
    """This rank's shard as it lies here; of a sum that is not added up, the sum."""
    with torch.no_grad():
        parts = tuple(Replicate() if isinstance(one, Partial) else one for one in tensor.placements)
        return tensor.redistribute(placements=parts).to_local().detach().clone()


def whole(tensor: DTensor) -> torch.Tensor:
    """The value, gathered."""
    settled = tensor.__dict__.get("_settled")
    if settled is not None and settled[0] == tensor._version:
        added_up: torch.Tensor = settled[1]
        found = added_up.clone()
    else:
        with torch.no_grad():
            gathered: torch.Tensor = current_ops().whole(tensor.detach())
            found = gathered.clone()
    found._whole_on = current_ops().mesh  # type: ignore[attr-defined]  # for a heal: all ranks have the same
    return found


def placements(tensor: DTensor) -> tuple[Any, ...]:
    """How the tensor is placed."""
    found: tuple[Any, ...] = tensor.placements
    return found


def count_communication(begins: bool) -> dict[tuple[int, str], tuple[int, int]] | None:
    """Begin to count collectives, or end it and return them; see `CommunicationCounter.counts`."""
    ops = current_ops()
    found = ops.counter
    ops.counter = CommunicationCounter() if begins else None
    count_with(ops.counter)
    return None if begins or found is None else found.counts


def seed(number: int) -> None:
    """Restart the random numbers of the mesh."""
    current_ops().seed(number)
