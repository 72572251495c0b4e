"""Batch normalization of a batch that is split over ranks: by the mean and the variance of all of it."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from monarch_hpc.tensor.worker.sharded.own_rules.parts import all_of, local_of, rows_of, summed
from monarch_hpc.tensor.worker.sharded.own_rules.rows import Result, RowRule, by_rows
from monarch_hpc.tensor.worker.sharded.wrapping import wrapped

__all__ = ["native_batch_norm", "native_batch_norm_backward"]

_CHANNELS = 1
"""The dimension of channels."""

_READING = RowRule(0, (0,), lambda _args: 1, (Result.ROWS, Result.WHOLE, Result.WHOLE))
_READING_BACKWARD = RowRule(1, (0, 1), lambda _args: 1, (Result.ROWS, Result.SUM, Result.SUM))
"""With statistics that are given, each row is normalized alone."""


def native_batch_norm(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """In training by statistics of all ranks, of which two sums tell; they move the running ones as in one process."""
    images, weight, bias, running_mean, running_var, training, momentum, eps = args
    if not training:
        return by_rows(_READING, ops, op, args, kwargs)
    if kwargs or not _is_split(ops, images) or any(_is_placed(ops, one) for one in (running_mean, running_var)):
        return NotImplemented
    own, dims, shape = _parts(images)
    num = images.numel() // images.shape[_CHANNELS]
    mean = summed(ops, images, own.sum(dims)) / num
    centred = own - mean.view(shape)
    var = summed(ops, images, centred.square().sum(dims)) / num
    invstd = torch.rsqrt(var + eps)
    scale, shift = all_of(ops, weight), all_of(ops, bias)
    found = centred.mul_(invstd.view(shape) if scale is None else (invstd * scale).view(shape))
    if shift is not None:
        found.add_(shift.view(shape))
    if running_mean is not None:
        local_of(running_mean).mul_(1 - momentum).add_(mean, alpha=momentum)
    if running_var is not None:
        local_of(running_var).mul_(1 - momentum).add_(var * (num / max(num - 1, 1)), alpha=momentum)
    made = wrapped(found, ops.mesh, images.placements, tuple(images.shape), images.stride())
    return made, ops.wrap(mean), ops.wrap(invstd)


def native_batch_norm_backward(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The gradients by two sums over all ranks, of one message."""
    gradient, images, weight, _, _, mean, invstd, training, _, asked = args
    if not training:
        return by_rows(_READING_BACKWARD, ops, op, args, kwargs)
    if kwargs or not _is_split(ops, images) or not isinstance(gradient, DTensor):
        return NotImplemented
    own, dims, shape = _parts(images)
    grad = rows_of(ops, gradient, images.placements)
    num = images.numel() // images.shape[_CHANNELS]
    scale, deviation = all_of(ops, weight), all_of(ops, invstd)
    normal = (own - all_of(ops, mean).view(shape)) * deviation.view(shape)
    grad_bias, grad_weight = summed(ops, images, torch.stack([grad.sum(dims), (grad * normal).sum(dims)])).unbind()
    found = grad - (grad_bias / num).view(shape) - normal.mul_((grad_weight / num).view(shape))
    found.mul_((deviation if scale is None else deviation * scale).view(shape))
    made = wrapped(found, ops.mesh, images.placements, tuple(images.shape), images.stride())
    results = made, ops.wrap(grad_weight), ops.wrap(grad_bias.clone())
    return tuple(one if wanted else None for one, wanted in zip(results, asked, strict=True))


def _is_split(ops: Any, images: Any) -> bool:
    """Whether a batch is split, but not by channels, and is of a type whose sums are as exact as torch's."""
    return (
        isinstance(images, DTensor)
        and images.device_mesh is ops.mesh
        and images.dtype in (torch.float32, torch.float64)
        and images.numel() > 0
        and any(type(one) is Shard for one in images.placements)
        and all(type(one) is Replicate or (type(one) is Shard and one.dim != _CHANNELS) for one in images.placements)
    )


def _is_placed(ops: Any, statistic: Any) -> bool:
    """Whether a statistic is there, and each rank does not have all of it."""
    return statistic is not None and not (isinstance(statistic, DTensor) and statistic.placements == ops.replicated)


def _parts(images: DTensor) -> tuple[torch.Tensor, list[int], tuple[int, ...]]:
    """This rank's part, the dimensions to sum over, and the shape of a number for each channel."""
    dims = [dim for dim in range(images.dim()) if dim != _CHANNELS]
    return images._local_tensor, dims, tuple(-1 if dim == _CHANNELS else 1 for dim in range(images.dim()))
