"""Smaller meshes after a loss, and larger ones again: which ranks they have, and what is left of each view; pure."""

from __future__ import annotations

from collections.abc import Collection

from monarch_hpc.core.shape import Extent, Region

__all__ = ["flat_region", "larger_regions", "region_without", "smaller_regions"]


def smaller_regions(region: Region, dead: Collection[int]) -> list[Region]:
    """The parts of a mesh without its dead ranks, of which rows along one dimension are left out; the largest first.

    Args:
        region: the mesh.
        dead: ranks in the mesh of procs.
    """
    found: list[Region] = []
    points = [region.extent.point(region.rank_of(rank)) for rank in dead]
    for name, size in zip(region.extent.names, region.extent.shape, strict=True):
        lost = {point[name] for point in points}
        left = [place for place in range(size) if place not in lost]
        if left:
            found.append(region.pick(name, left))
    return sorted(found, key=lambda one: -len(one))  # stable: of several as large, the outermost dimension


def larger_regions(whole: Region, world: Collection[int], absent: Collection[int]) -> list[Region]:
    """The parts of a mesh with all ranks of *world* and others, of which none is absent; the largest first.

    Args:
        whole: the mesh before ranks were left out.
        world: ranks that it has, in the mesh of procs.
        absent: ranks that are not there.
    """
    found = smaller_regions(whole, absent) if absent else [whole]
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
    for one in smaller_regions(region, [rank for rank in ranks if rank in left_out]):
        if tuple(one.base_ranks()) == kept:
            return one
    return None


def flat_region(ranks: tuple[int, ...]) -> Region:
    """A view of some ranks in a row."""
    whole = Region.whole(Extent(("procs",), (len(ranks),)))
    return Region(whole.extent, 0, whole.strides, ranks)
