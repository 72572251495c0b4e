"""Boxes of elements in arrays: where two of them meet, and what is left of one without the other. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Box"]


class Box(NamedTuple):
    """The elements from *offsets* on, as many as *sizes* says, of an array; one number for each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements in it."""
        return math.prod(self.sizes)

    def meet(self, other: Box) -> Box | None:
        """The elements that are in both; None if there are none."""
        first = tuple(map(max, self.offsets, other.offsets))
        ends = (
            min(a + size, b + other_size)
            for a, size, b, other_size in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        )
        sizes = tuple(end - begin for begin, end in zip(first, ends, strict=True))
        return Box(first, sizes) if all(size > 0 for size in sizes) else None

    def without(self, other: Box) -> list[Box]:
        """The elements that are not in *other*, as boxes that have none in common."""
        shared = self.meet(other)
        if shared is None:
            return [self]
        rest, offsets, sizes = [], list(self.offsets), list(self.sizes)
        for dim, (first, size) in enumerate(zip(shared.offsets, shared.sizes, strict=True)):
            end, own_end = first + size, offsets[dim] + sizes[dim]
            for begin, behind in ((offsets[dim], first), (end, own_end)):
                if behind > begin:
                    rest.append(
                        Box(
                            (*offsets[:dim], begin, *offsets[dim + 1 :]),
                            (*sizes[:dim], behind - begin, *sizes[dim + 1 :]),
                        )
                    )
            offsets[dim], sizes[dim] = first, size
        return rest

    def within(self, other: Box) -> tuple[slice, ...]:
        """Its place in an array that has just the elements of *other*, which contains it."""
        return tuple(
            slice(offset - begin, offset - begin + size)
            for offset, size, begin in zip(self.offsets, self.sizes, other.offsets, strict=True)
        )
