"""Operators of which DTensor's rules are right but slow, and those that only need memory.

A step of a module that lives on the ranks has few operators on sharded tensors, those around its loss, and they took a
tenth of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_hpc.tensor.worker.sharded.wrapping import wrapped

__all__ = ["empty_like", "mean", "new_empty_strided", "on_whole"]

_AVERAGE = Partial("avg")


def mean(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The mean of each rank's elements, of which there are equally many; to be averaged by who reads it."""
    tensor = args[0]
    if kwargs or len(args) != 1 or not isinstance(tensor, DTensor) or tensor.device_mesh is not ops.mesh:
        return NotImplemented
    sizes = list(tensor.shape)
    for num, placement in zip(ops.mesh.shape, tensor.placements, strict=True):
        if type(placement) is Shard:
            if not sizes[placement.dim] or sizes[placement.dim] % num:
                return NotImplemented
            sizes[placement.dim] //= num
        elif type(placement) is not Replicate:
            return NotImplemented
    placements = tuple(_AVERAGE if type(one) is Shard else one for one in tensor.placements)
    return wrapped(op(tensor._local_tensor), ops.mesh, placements, (), ())


def on_whole(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """What every rank computes alike from one tensor that it has all of."""
    tensor = args[0]
    if not isinstance(tensor, DTensor) or tensor.device_mesh is not ops.mesh or tensor.placements != ops.replicated:
        return NotImplemented
    found = op(tensor._local_tensor, *args[1:], **kwargs)
    return wrapped(found, ops.mesh, ops.replicated, tuple(found.shape), found.stride())


def empty_like(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """Memory for each rank's part of a tensor like another one."""
    tensor = args[0]
    if not _has_parts(ops, tensor) or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return NotImplemented
    return wrapped(
        op(tensor._local_tensor, **kwargs), ops.mesh, tensor.placements, tuple(tensor.shape), tensor.stride()
    )


def new_empty_strided(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """Likewise, in another order, as autograd wants for a gradient that lies otherwise than its leaf."""
    tensor, size, stride = args
    if not _has_parts(ops, tensor) or tuple(size) != tuple(tensor.shape):
        return NotImplemented
    own = tensor._local_tensor
    strides, whole_step, step = [0] * own.dim(), 1, 1
    for dim in sorted(range(own.dim()), key=lambda dim: (stride[dim], size[dim])):
        if size[dim] > 1 and stride[dim] != whole_step:
            return NotImplemented  # there are gaps
        strides[dim] = step
        whole_step, step = whole_step * size[dim], step * own.shape[dim]
    return wrapped(op(own, own.shape, strides, **kwargs), ops.mesh, tensor.placements, tuple(size), tuple(stride))


def _has_parts(ops: Any, tensor: Any) -> bool:
    """Whether each rank has a part of a tensor, or all of it, but no summand."""
    return (
        isinstance(tensor, DTensor)
        and tensor.device_mesh is ops.mesh
        and all(type(one) in (Shard, Replicate) for one in tensor.placements)
    )
