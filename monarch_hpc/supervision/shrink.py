"""Shrinking a mesh to the part that lives: whole rows along one dimension are left out."""

from __future__ import annotations

from collections.abc import Collection

from monarch_hpc.core.shape import Extent

__all__ = ["places_left"]


def places_left(extent: Extent, dead: Collection[int]) -> tuple[str, list[int]] | None:
    """The dimension, and the coordinates along it, that leave most of a mesh without its *dead* ranks.

    Along the other dimensions the mesh keeps its size. Of several dimensions that leave as much, the outermost one.

    Args:
        dead: ranks in the mesh.

    Returns:
        None if no dimension leaves anything.
    """
    points = [extent.point(rank) for rank in dead]
    best: tuple[str, list[int]] | None = None
    most = 0
    for name, size in zip(extent.names, extent.shape, strict=True):
        lost = {point[name] for point in points}
        left = [place for place in range(size) if place not in lost]
        num = len(left) * (len(extent) // size)
        if num > most:
            best, most = (name, left), num
    return best
