"""Elements in memory at regular distances, and the runs of bytes that take them elsewhere. Pure."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

__all__ = ["Run", "Strides", "cheapest_runs", "dense_strides"]

Run = tuple[int, int, int]
"""Source and target of bytes, and their number."""

PIECE_COST_BYTES = 64 * 1024
"""Cost of one more piece of a transfer, as bytes that move in that time: 10 to 20 us at 3 to 6 GB/s."""


class Strides(NamedTuple):
    """Elements at regular distances.

    Attributes:
        first: place of the element with index 0 in all dimensions, in bytes.
        steps: distance of neighbours in each dimension, in bytes.
    """

    first: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    item_bytes: int

    @property
    def span(self) -> tuple[int, int]:
        """The bytes from the first one that belongs to an element up to the one behind the last; equal if none does."""
        first, shape, steps, item_bytes = self
        if 0 in shape:
            return first, first
        low = high = first
        for size, step in zip(shape, steps, strict=True):
            if step > 0:
                high += (size - 1) * step
            else:
                low += (size - 1) * step
        return low, high + item_bytes

    def part(self, place: tuple[slice, ...]) -> Strides:
        """The elements at *place*, whose slices have a start and a stop."""
        first = self.first + sum(one.start * step for one, step in zip(place, self.steps, strict=True))
        return Strides(first, tuple(one.stop - one.start for one in place), self.steps, self.item_bytes)


def dense_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Distances in an array without gaps, the last dimension the closest."""
    return tuple(item_bytes * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def cheapest_runs(source: Strides, target: Strides) -> list[Run] | None:
    """The runs that take all elements; None if it costs less to move all that lies between them, and sort it out here.

    Args:
        source: elsewhere.
        target: here; of the same shape.

    Raises:
        ValueError: elements of *target* share memory which those of *source* do not share.
    """
    if 0 in source.shape:
        return []
    from_first, to_first = source.first, target.first
    dims = []
    for size, from_step, to_step in zip(source.shape, source.steps, target.steps, strict=True):
        if size == 1 or (not to_step and not from_step):
            continue
        if not to_step:
            raise ValueError("several of its elements are one in memory: pass a clone or copy of it")
        if to_step < 0:
            from_first, to_first = from_first + (size - 1) * from_step, to_first + (size - 1) * to_step
            from_step, to_step = -from_step, -to_step
        dims.append((to_step, from_step, size))
    dims.sort(reverse=True)
    num_bytes = source.item_bytes
    while dims and dims[-1][0] == dims[-1][1] == num_bytes:
        num_bytes *= dims.pop()[2]
    num_runs = math.prod(size for _to, _from, size in dims)
    low, high = source.span
    if num_runs * (PIECE_COST_BYTES + num_bytes) > PIECE_COST_BYTES + high - low and num_runs > 1:
        return None
    steps = [[(index * from_step, index * to_step) for index in range(size)] for to_step, from_step, size in dims]
    return [
        (from_first + sum(one[0] for one in at), to_first + sum(one[1] for one in at), num_bytes)
        for at in itertools.product(*steps)
    ]
