"""Smaller meshes after a loss, and larger ones again: which ranks they have, and what is left of each view; pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from monarch_hpc.core.shape import Extent, Region

__all__ = ["flat_region", "larger_regions", "region_without", "smaller_regions"]


def smaller_regions(region: Region, dead: Collection[int]) -> list[Region]:
    """The meshes that are smaller along one dimension, and have no dead ranks; the largest first.

    Either rows are left out; or, where that leaves more, rows are put together of ranks of several: a rank moves along
    this dimension only, so that it keeps its shards over the others.

    Args:
        region: the mesh.
        dead: ranks in the mesh of procs.
    """
    found = [*_without_rows(region, dead), *_of_mixed_rows(region, dead)]
    return sorted(found, key=lambda one: -len(one))  # stable: of several as large, whole rows


def _without_rows(region: Region, dead: Collection[int]) -> list[Region]:
    """The parts of a mesh without the rows along one dimension that have dead ranks; the largest first."""
    found: list[Region] = []
    points = [region.extent.point(region.rank_of(rank)) for rank in dead]
    for name, size in zip(region.extent.names, region.extent.shape, strict=True):
        lost = {point[name] for point in points}
        left = [place for place in range(size) if place not in lost]
        if left:
            found.append(region.pick(name, left))
    return sorted(found, key=lambda one: -len(one))  # stable: of several as large, the outermost dimension


def _of_mixed_rows(region: Region, dead: Collection[int]) -> list[Region]:
    """The meshes of rows that are put together, where these are more than the rows without dead ranks."""
    found: list[Region] = []
    for name, size in region.extent.to_dict().items():
        rows = [tuple(region.slice(**{name: place}).base_ranks()) for place in range(size)]
        columns = [[rank for rank in column if rank not in dead] for column in zip(*rows, strict=True)]
        num = min(map(len, columns))
        if num > sum(not set(dead).intersection(row) for row in rows):
            moved = {rows[place][at]: column[place] for at, column in enumerate(columns) for place in range(num)}
            smaller = region.pick(name, range(num))
            found.append(replace(smaller, picks=tuple(moved[rank] for rank in smaller.base_ranks())))
    return found


def larger_regions(whole: Region, world: Collection[int], absent: Collection[int]) -> list[Region]:
    """The parts of a mesh with all ranks of *world* and others, of which none is absent; the largest first.

    Args:
        whole: the mesh before ranks were left out.
        world: ranks that it has, in the mesh of procs.
        absent: ranks that are not there.
    """
    found = _without_rows(whole, absent) if absent else [whole]
    return [one for one in found if len(one) > len(world) and set(world).issubset(one.base_ranks())]


def region_without(region: Region, left_out: Collection[int]) -> Region | None:
    """What is left of a view without some ranks.

    Args:
        region: the view.
        left_out: ranks in the mesh of procs.

    Returns:
        The view itself if it has none of them; None if the others do not make up whole rows of it.
    """
    ranks = tuple(region.base_ranks())
    kept = tuple(rank for rank in ranks if rank not in left_out)
    if len(kept) == len(ranks):
        return region
    if not kept:
        return None
    for one in _without_rows(region, [rank for rank in ranks if rank in left_out]):
        if tuple(one.base_ranks()) == kept:
            return one
    return None


def flat_region(ranks: tuple[int, ...]) -> Region:
    """A view of some ranks in a row."""
    whole = Region.whole(Extent(("procs",), (len(ranks),)))
    return Region(whole.extent, 0, whole.strides, ranks)
