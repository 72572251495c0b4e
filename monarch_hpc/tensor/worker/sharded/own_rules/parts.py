"""This rank's parts of the arguments of a rule."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor, Shard

__all__ = ["local_of", "rows_of", "whole_of"]


def local_of(tensor: Any) -> Any:
    """The part of a sharded tensor; what is none as it is."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole_of(tensor: Any, replicated: tuple[Any, ...]) -> Any:
    """All of a sharded tensor, gathered or added up if need be."""
    return local_of(tensor if tensor.placements == replicated else tensor.redistribute(placements=replicated))


def rows_of(ops: Any, tensor: Any, placements: tuple[Any, ...]) -> Any:
    """The part of a tensor in other placements; by way of all of it, as DTensor may err between two splits."""
    if tensor.placements != placements:
        if any(isinstance(one, Shard) for one in tensor.placements):
            tensor = ops.wrap(ops.whole(tensor))
        tensor = tensor.redistribute(placements=placements)
    return local_of(tensor)
