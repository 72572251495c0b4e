"""Shards: parts of arrays that several processes hold together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from monarch_hpc.core.arguments import check_number, shown

__all__ = ["Shard"]


class Shard:
    """A box of an array that several processes hold together; a value of a tree, in place of the array.

    torch's DTensors need none.

    Args:
        data: the array or tensor with the elements that are here.
        shape: of the whole array.
        offsets: index of the first element that is here, in each dimension.

    Raises:
        TypeError: *data* is no array, or the numbers are none.
        ValueError: *data* does not lie within the whole array.
    """

    def __init__(self, data: Any, shape: Iterable[int], offsets: Iterable[int]) -> None:
        sizes = getattr(data, "shape", None)
        if not isinstance(sizes, tuple):
            raise TypeError(f"data is {shown(data)}: give an array or a tensor")
        self.data = data
        self.shape = _numbers("shape", shape)
        self.offsets = _numbers("offsets", offsets)
        if not len(sizes) == len(self.shape) == len(self.offsets) or any(
            offset + size > whole for offset, size, whole in zip(self.offsets, sizes, self.shape, strict=True)
        ):
            raise ValueError(
                f"data of shape {tuple(sizes)} at {self.offsets} does not lie within an array of shape {self.shape}"
            )

    def __repr__(self) -> str:
        return f"Shard({tuple(self.data.shape)} at {self.offsets} of {self.shape})"


def _numbers(what: str, numbers: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(numbers, Iterable):
        raise TypeError(f"{what} is {shown(numbers)}: give a number for each dimension")
    return tuple(check_number(f"{what}[{dim}]", number, least=0) for dim, number in enumerate(numbers))
