"""This rank's parts of the arguments of a rule."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor

__all__ = ["local_of", "whole_of"]


def local_of(tensor: Any) -> Any:
    """The part of a sharded tensor; what is none as it is."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole_of(tensor: Any, replicated: tuple[Any, ...]) -> Any:
    """All of a sharded tensor, gathered or added up if need be."""
    return local_of(tensor if tensor.placements == replicated else tensor.redistribute(placements=replicated))
