"""This rank's parts of the arguments of a rule, and sums over ranks that have different parts."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

__all__ = ["all_of", "as_summands", "local_of", "rows_of", "summed"]


def local_of(arg: Any) -> Any:
    """The part of a sharded tensor; what is none as it is."""
    return arg._local_tensor if isinstance(arg, DTensor) else arg


def all_of(ops: Any, arg: Any) -> Any:
    """All of a sharded tensor, gathered or added up if need be; what is none as it is."""
    return ops.whole(arg) if isinstance(arg, DTensor) else arg


def rows_of(ops: Any, tensor: Any, placements: tuple[Any, ...]) -> Any:
    """The part of a tensor in other placements; by way of all of it, as DTensor may err between two splits."""
    if tensor.placements != placements:
        if any(isinstance(one, Shard) for one in tensor.placements):
            tensor = ops.wrap(ops.whole(tensor))
        tensor = tensor.redistribute(placements=placements)
    return local_of(tensor)


def as_summands(placements: tuple[Any, ...]) -> tuple[Any, ...]:
    """The placements of what ranks with different parts have to add up."""
    return tuple(Partial() if isinstance(one, Shard) else Replicate() for one in placements)


def summed(ops: Any, split: DTensor, own: torch.Tensor) -> Any:
    """The sum of a tensor of each rank over those that have different parts of *split*."""
    return ops.whole(DTensor.from_local(own, split.device_mesh, as_summands(split.placements), run_check=False))
