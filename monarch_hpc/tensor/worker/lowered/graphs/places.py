"""The places of tensors in memory, and which of them overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["CannotGraph", "MemoryPlace", "contested", "extent_of", "flat"]

_ALIGNMENT = 64
"""Bytes at whose multiples memory of an allocator begins, at least: kernels may be others elsewhere."""


class CannotGraph(Exception):
    """A run of operators is not replayed by a graph.

    Args:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MemoryPlace(NamedTuple):
    """Where a tensor lies.

    Attributes:
        device: the device.
        dtype: type of its elements.
        shape: its sizes.
        stride: its strides.
        offset: its first element in its memory.
        begin: the first address of its memory.
        end: the address behind it.
    """

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    begin: int
    end: int

    @staticmethod
    def of(tensor: torch.Tensor) -> MemoryPlace:
        """Describe a tensor.

        Raises:
            CannotGraph: it is not plain memory.
        """
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise CannotGraph("tensors that are not dense, or conjugated or negated lazily")
        memory = tensor.untyped_storage()
        begin = memory.data_ptr()
        shape, stride, offset = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
        return MemoryPlace(tensor.device, tensor.dtype, shape, stride, offset, begin, begin + memory.nbytes())

    @property
    def address(self) -> int:
        """The address of its first element."""
        return self.begin + self.offset * self.dtype.itemsize

    @property
    def is_aligned(self) -> bool:
        """Whether it begins where an allocator's memory may begin."""
        return self.address % _ALIGNMENT == 0

    def looks_like(self, other: MemoryPlace) -> bool:
        """Whether they differ in nothing but the address."""
        return self[:4] == other[:4]


def contested(places: Sequence[MemoryPlace], written: frozenset[int]) -> frozenset[int]:
    """The tensors, by number, that must share memory: they overlap others, and one of these is written to.

    Args:
        places: where the tensors lie.
        written: numbers of those that are written to.
    """
    found: set[int] = set()
    together: list[int] = []
    end = 0
    full = [number for number, place in enumerate(places) if place.end > place.begin]
    for begin, number in sorted((places[number].begin, number) for number in full):
        if begin >= end:
            together = []
        together.append(number)
        end = max(end, places[number].end)
        if len(together) > 1 and not written.isdisjoint(together):
            found.update(together)
    return frozenset(found)


def extent_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements from the first one to the last one in memory."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from its first element to its last one."""
    return tensor.as_strided((extent_of(tensor.shape, tensor.stride()),), (1,))
