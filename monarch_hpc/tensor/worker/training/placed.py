"""Tensors of the code of modules as sharded tensors of the whole mesh: they share memory, and nothing is sent."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.worker.sharded.calls import global_placements
from monarch_hpc.tensor.worker.sharded.device_mesh import RankMesh
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped

__all__ = ["PartLayout", "batch_dims_of", "behind_dtensor", "dims_of_group", "layout_of", "placed_as", "placements_on"]

_NUM_CACHED = 1024
"""Number of shapes whose parts are at hand."""


def batch_dims_of(out_dims: tuple[int, ...], ndim: int) -> tuple[bool, ...]:
    """For each dimension of the mesh, whether results are split over it."""
    return tuple(dim >= 0 for dim in out_dims) or (False,) * ndim


def placements_on(mesh: Any, tensor: torch.Tensor) -> tuple[Any, ...]:
    """The placements on all dimensions of *mesh* of a tensor that is whole, or sharded over some of them.

    Raises:
        TypeError: it is sharded over a dimension that *mesh* does not have.
    """
    if not isinstance(tensor, DTensor):
        return (Replicate(),) * int(mesh.ndim)
    own = dict(zip(tensor.device_mesh.mesh_dim_names or (), tensor.placements, strict=False))
    unknown = set(own) - set(mesh.mesh_dim_names)
    if unknown or len(own) < tensor.device_mesh.ndim:
        raise TypeError(
            f"a parameter of shape {tuple(tensor.shape)} is placed on {tensor.device_mesh}: use slices of the mesh "
            f"that parallelize gets, whose dimensions are {mesh.mesh_dim_names}"
        )
    return tuple(own.get(name, Replicate()) for name in mesh.mesh_dim_names)


def placed_as(own: torch.Tensor, mesh: Any, placements: tuple[Any, ...] | None, shape: tuple[int, ...] = ()) -> DTensor:
    """The sharded tensor of which this rank has *own*.

    Args:
        own: the part, of which the result is to be the only user; or a DTensor, which is placed likewise on *mesh*, if
            *placements* is None.
        mesh: the mesh.
        placements: of the result.
        shape: of the whole; that of *own* if *placements* is None.
    """
    if placements is None:
        placements, shape = placements_on(mesh, own), tuple(own.shape)
        own = behind_local(own)
    stride = contiguous_strides(shape)
    if isinstance(mesh, RankMesh) and not own.requires_grad:
        return wrapped(own, mesh, placements, tuple(shape), stride)
    made: DTensor = DTensor.from_local(own, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
    return made


# At every call of a module; torch takes a fifth of a millisecond for them.


class PartLayout(NamedTuple):
    """How a rank has its part of a tensor.

    Attributes:
        placements: of the whole.
        part: the shape of the part.
        window: the indices of the part.
        stride: of the whole, without gaps.
    """

    placements: tuple[Any, ...]
    part: tuple[int, ...]
    window: tuple[slice, ...]
    stride: tuple[int, ...]


@functools.lru_cache(_NUM_CACHED)
def layout_of(shape: tuple[int, ...], mesh: Any, dims: tuple[int, ...]) -> PartLayout:
    """The layout of a tensor that is split over *mesh* as `ModulePlan.out_dims` says, if it has these dimensions."""
    placements = global_placements(tuple(dim if dim < len(shape) else -1 for dim in dims))
    sizes, offsets = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    window = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))
    return PartLayout(placements, tuple(sizes), window, contiguous_strides(shape))


def behind_local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, unknown to autograd."""
    own = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return own.detach()


def behind_dtensor(leaf: Any) -> Any:
    """What a module returned, as a plain tensor."""
    return leaf.full_tensor() if isinstance(leaf, DTensor) else leaf


def dims_of_group(group: Any, mesh: Any) -> set[str]:
    """The dimensions of *mesh* along which the ranks of a process group differ.

    Raises:
        TypeError: it is not a group of ranks along dimensions.
    """
    members = set(dist.get_process_group_ranks(group))
    coordinate = mesh.get_coordinate()
    for num in range(1, mesh.ndim + 1):
        for places in itertools.combinations(range(mesh.ndim), num):
            line = mesh.mesh[tuple(slice(None) if at in places else own for at, own in enumerate(coordinate))]
            if set(line.flatten().tolist()) == members:
                return {mesh.mesh_dim_names[place] for place in places}
    raise TypeError(
        f"DistributedDataParallel over the ranks {sorted(members)}: give it process_group=mesh.get_group(dim) of the "
        f"mesh that parallelize gets, whose dimensions are {mesh.mesh_dim_names}"
    )
