"""The tensors of a mesh that the program holds."""

from __future__ import annotations

import gc
from collections import Counter
from typing import NamedTuple

import torch

from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.engine import View

__all__ = ["MemoryRow", "held_tensors"]


class MemoryRow(NamedTuple):
    """Tensors of one shape.

    Attributes:
        shape: their shape, of the whole.
        dtype: type of their elements.
        num: number of tensors; views, and tensors that share a value, count as others do.
        num_bytes: bytes of their elements, over all ranks if none has a copy of another's.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    num: int
    num_bytes: int


def held_tensors(view: View) -> list[MemoryRow]:
    """The tensors of a view that the program holds, the largest first; looks at all objects of the program."""
    found: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
    for one in gc.get_objects():
        if one.__class__ is MeshTensor and "_h" in one.__dict__ and one._h.view is view:
            found[one._h.number] = tuple(one._m.shape), one._m.dtype
    rows = [
        MemoryRow(shape, dtype, num, num * torch.Size(shape).numel() * dtype.itemsize)
        for (shape, dtype), num in Counter(found.values()).items()
    ]
    return sorted(rows, key=lambda row: (-row.num_bytes, row.shape, str(row.dtype)))
