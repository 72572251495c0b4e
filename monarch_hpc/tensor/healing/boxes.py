"""Parts of sharded values as boxes, and how one is put together of others; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from monarch_hpc.tensor.sharded.spec import shard_slices
from monarch_hpc.tensor.stream.holdings import Box
from monarch_hpc.tensor.stream.records import MeshSpec

__all__ = ["box_of", "coordinates", "covering", "shape_of", "within"]

K = TypeVar("K")


def coordinates(spec: MeshSpec, rank: int) -> tuple[int, ...]:
    """The place of a rank in a mesh."""
    left, found = spec.ranks.index(rank), []
    for size in reversed(spec.sizes):
        left, place = divmod(left, size)
        found.append(place)
    return tuple(reversed(found))


def box_of(spec: MeshSpec, dims: tuple[int, ...], shape: Sequence[int], rank: int) -> Box:
    """The part of a value that a rank has: equal where ranks have the same.

    Args:
        spec: the mesh.
        dims: see `HeldPart`.
        shape: of the value.
        rank: a rank of the mesh.
    """
    return tuple((one.start, one.stop) for one in shard_slices(shape, dims, spec.sizes, coordinates(spec, rank)))


def shape_of(box: Box) -> tuple[int, ...]:
    """The sizes of a box."""
    return tuple(end - begin for begin, end in box)


def within(inner: Box, outer: Box) -> Box:
    """A box, counted from where another one begins."""
    return tuple((begin - at, end - at) for (begin, end), (at, _) in zip(inner, outer, strict=True))


def covering(target: Box, sources: Iterable[tuple[K, Box]]) -> list[tuple[K, Box]] | None:
    """Parts of *sources* that make up a box and do not overlap, of the first ones if possible; None if some is left."""
    found: list[tuple[K, Box]] = []
    left = [] if _is_empty(target) else [target]
    for source, box in sources:
        rest: list[Box] = []
        for one in left:
            shared = tuple((max(a, b), min(c, d)) for (a, c), (b, d) in zip(one, box, strict=True))
            if _is_empty(shared):
                rest.append(one)
            else:
                found.append((source, shared))
                rest += _without(one, shared)
        left = rest
        if not left:
            return found
    return None if left else found


def _is_empty(box: Box) -> bool:
    return any(begin >= end for begin, end in box)


def _without(box: Box, inner: Box) -> list[Box]:
    """What is left of a box without a part of it, as boxes that do not overlap."""
    rest: list[Box] = []
    for dim, ((begin, end), (first, last)) in enumerate(zip(box, inner, strict=True)):
        rest += [(*inner[:dim], edge, *box[dim + 1 :]) for edge in ((begin, first), (last, end)) if edge[0] < edge[1]]
    return rest
