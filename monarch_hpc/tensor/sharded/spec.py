"""Sharding specifications: for each dimension of a tensor, the dimensions of the mesh that it is split over; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from monarch_hpc.core.arguments import check_instance, check_number, check_texts
from monarch_hpc.core.shape import Extent

__all__ = ["ShardingSpec", "even_shard_shape", "extent_of", "place_dims", "shard_slices", "size_of"]

ShardingSpec = Sequence[Any]
"""For each dimension of the tensor: the name of a dimension of the mesh, a tuple of names, or None."""


def extent_of(shape: Sequence[int], names: Sequence[str] | None) -> Extent:
    """The dimensions of a mesh of these sizes; without *names* they are ``dim0``, ``dim1``, ...

    Raises:
        TypeError: *shape* holds other things than whole numbers, or *names* than strings.
        ValueError: a size is below 1, names repeat, or there are more or fewer names than sizes.
    """
    check_instance("shape", shape, Iterable, "the sizes of the dimensions, such as (4, 2)")
    sizes = tuple(check_number("a size in shape", size, least=1) for size in shape)
    if not names:
        return Extent(tuple(f"dim{place}" for place in range(len(sizes))), sizes)
    given = check_texts("mesh_dim_names", names, "['dp', 'tp']")
    if len(given) != len(sizes):
        raise ValueError(f"mesh_dim_names is {given}, but shape is {sizes}: give one name for each dimension")
    return Extent(given, sizes)


def place_dims(spec: ShardingSpec | None, ndim: int, extent: Extent) -> tuple[int, ...]:
    """For each dimension of a mesh, the dimension of the tensor that it splits, or -1 where each rank has the whole.

    Args:
        spec: the specification; None, and dimensions beyond its end, are not split.
        ndim: number of dimensions of the tensor.
        extent: dimensions of the mesh.

    Raises:
        KeyError: the mesh has no dimension of a name.
        TypeError: *spec* is not a sequence of names, tuples of names and None.
        ValueError: it is too long, a name stands twice, or names of a tuple are not in the order of the mesh.
    """
    if spec is None:
        return (-1,) * len(extent.names)
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        raise TypeError(f"spec is {spec!r}; it is a list with a name, a tuple of names or None for each dimension")
    if len(spec) > ndim:
        raise ValueError(f"spec {list(spec)} is for {len(spec)} dimensions, the tensor has {ndim}")
    places: dict[str, int] = {}
    for dim, entry in enumerate(spec):
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{entry!r} in spec {list(spec)}: it is the name of a dimension, a tuple of names, or None")
        extent.check_known(names)
        for name in names:
            if name in places:
                raise ValueError(f"dimension {name!r} stands twice in spec {list(spec)}")
            places[name] = dim
        order = [extent.names.index(name) for name in names]
        if order != sorted(order):
            raise ValueError(f"{names} in spec {list(spec)}: name them in the order of the mesh, {extent}")
    return tuple(places.get(name, -1) for name in extent.names)


def shard_slices(
    shape: Sequence[int], dims: tuple[int, ...], sizes: Sequence[int], place: Sequence[int]
) -> tuple[slice, ...]:
    """The part of a tensor that the rank with coordinates *place* holds.

    Sizes that do not divide are rounded up: the last ranks get less, or nothing.

    Args:
        shape: of the tensor.
        dims: see `place_dims`.
        sizes: of the mesh.
        place: coordinates.
    """
    ranges = [(0, size) for size in shape]
    for dim, size, at in zip(dims, sizes, place, strict=True):
        if dim >= 0:
            begin, end = ranges[dim]
            each = math.ceil((end - begin) / size)
            ranges[dim] = min(begin + at * each, end), min(begin + (at + 1) * each, end)
    return tuple(slice(begin, end) for begin, end in ranges)


def size_of(given: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape that arguments mean: sizes, or a sequence of them."""
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else given


def even_shard_shape(shape: Sequence[int], dims: tuple[int, ...], extent: Extent) -> tuple[int, ...]:
    """The shape of each shard.

    Raises:
        ValueError: they differ.
    """
    sizes = list(shape)
    for dim, (name, size) in zip(dims, extent.to_dict().items(), strict=True):
        if dim >= 0:
            if sizes[dim] % size:
                raise ValueError(
                    f"dimension {dim} of shape {tuple(shape)} cannot be split evenly over {name} ({size} ranks), and "
                    "tensors with a value for each rank have one shape: pad it, or redistribute it first"
                )
            sizes[dim] //= size
    return tuple(sizes)
