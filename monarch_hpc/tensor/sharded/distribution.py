"""Tensors of the program, of which each rank of a mesh is sent its shard."""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.tensor.opening import recovery_of
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.sharded.calls import call_by_name, new_tensor
from monarch_hpc.tensor.sharded.mesh import Mesh
from monarch_hpc.tensor.sharded.spec import ShardingSpec, place_dims, shard_slices
from monarch_hpc.tensor.stream.holdings import Box
from monarch_hpc.tensor.stream.records import PUT, Ref

__all__ = ["distribute"]


def distribute(tensor: torch.Tensor, mesh: Mesh, sharding_spec: ShardingSpec | None = None) -> MeshTensor:
    """Shard a tensor over a mesh; each rank is sent its shard only.

    Args:
        tensor: one of the program, or one that is sharded already, which is redistributed.
        mesh: the mesh.
        sharding_spec: for each dimension of the tensor, the name of the dimension of the mesh that it is split over, a
            tuple of such names, or None; those that are left out are not split. Sizes need not divide.

    Raises:
        KeyError: the mesh has no dimension of a name.
        TypeError: an argument is of another type.
        ValueError: the specification is too long, or names a dimension twice; or *tensor* is on another mesh, or each
            rank has a value of its own.
    """
    check_instance("tensor", tensor, torch.Tensor, "a tensor")
    check_instance("mesh", mesh, Mesh, "a Mesh, see monarch_hpc.distributed.Mesh")
    extent = mesh._region.extent
    dims = place_dims(sharding_spec, tensor.dim(), extent)
    if tensor.__class__ is MeshTensor:
        if tensor._h.view is not mesh._view:
            raise foreign(tensor, mesh._view)
        return tensor.redistribute(sharding_spec)
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"a tensor of layout {tensor.layout} on {tensor.device} cannot be sharded: make it dense")
    view = mesh._view
    shape, grads = tuple(tensor.shape), tensor.requires_grad and tensor.is_leaf
    names = [name for name, dim in zip(extent.names, dims, strict=True) if dim >= 0]
    with torch._C.DisableTorchFunction():
        value = tensor.detach().cpu()
        own, parts = _send_shards(mesh, value, dims, names)
        meta = Meta.make(shape, torch.empty(shape, device="meta").stride(), value.dtype, value.device, grads, True)
    number = call_by_name(view, "global_from_shards", [Ref(own), dims, shape, meta.stride, grads], [own])
    view.dead.append(own)
    if view.engine.recovery is not None:
        recovery_of(mesh.procs).sources.keep(number, parts)
    return new_tensor(number, view, shape, value.dtype, grads)


def _send_shards(
    mesh: Mesh, value: torch.Tensor, dims: tuple[int, ...], names: list[str]
) -> tuple[int, dict[Box, Any]]:
    """Send each rank its shard, ranks with the same one together.

    Returns:
        The number under which all have it, and the shards by where they are.
    """
    region, view = mesh._region, mesh._view
    engine, extent = view.engine, region.extent
    operations: Any = view.operations
    number = -1
    parts: dict[Box, Any] = {}
    with engine.lock:
        for rank in range(len(region)):
            point = extent.point(rank)
            if any(point[name] for name in extent.names if name not in names):
                continue  # has the same shard as the rank at 0 there
            place = [point[name] for name in extent.names]
            slices = shard_slices(value.shape, dims, extent.shape, place)
            part = value[slices].clone(memory_format=torch.contiguous_format)
            target = operations.view_at(region.slice(**{name: point[name] for name in names}))
            parts[tuple((one.start, one.stop) for one in slices)] = part
            if number < 0:
                number = engine.emit(target, [PUT, -2, -1], 1, part)
            else:
                engine.emit(target, [PUT, -2, number], 0, part)
    return number, parts
