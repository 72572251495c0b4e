"""Rules of our own for operators on shards, where DTensor's are wrong and to gather the arguments costs too much.

Some stand here because they are quicker than DTensor's: a step of a module that lives on the ranks has few operators on
sharded tensors, those around its loss, and they took a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from monarch_hpc.tensor.worker.sharded.wrapping import wrapped

__all__ = ["OWN_RULES"]

_NONE, _MEAN, _SUM = 0, 1, 2
"""The reductions of losses: the values of all rows, their mean, or their sum."""


def _rows_of(logits: Any, target: Any, weight: Any) -> bool:
    """Whether both are split by rows alike, if at all, and *weight* is whole."""
    return (
        isinstance(logits, DTensor)
        and isinstance(target, DTensor)
        and logits.dim() == 2
        and logits.placements == target.placements
        and any(isinstance(one, Shard) for one in logits.placements)
        and all(one == Replicate() or one == Shard(0) for one in logits.placements)
        and (not isinstance(weight, DTensor) or all(one == Replicate() for one in weight.placements))
    )


def _local(tensor: Any) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Any, replicated: tuple[Any, ...]) -> Any:
    return _local(tensor if tensor.placements == replicated else tensor.redistribute(placements=replicated))


def _nll_loss_forward(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The rows of each rank, and one sum of two numbers over the ranks: DTensor averages averages of unlike parts."""
    logits, target, weight, reduction, ignored = args
    if kwargs or not _rows_of(logits, target, weight):
        return NotImplemented
    kind = _NONE if reduction == _NONE else _SUM
    loss, total = op(_local(logits), _local(target), _local(weight), kind, ignored)
    mesh = logits.device_mesh
    if reduction == _NONE:
        rows = DTensor.from_local(loss, mesh, logits.placements, run_check=False, shape=logits.shape[:1], stride=(1,))
        return rows, ops.wrap(total)
    partial = [Partial() if isinstance(one, Shard) else Replicate() for one in logits.placements]
    both = DTensor.from_local(torch.stack([loss, total]), mesh, partial, run_check=False)
    summed, weights = _whole(both, ops.replicated).unbind()
    return ops.wrap(summed / weights if reduction == _MEAN else summed), ops.wrap(weights)


def _nll_loss_backward(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The gradient of each rank's rows, by the weight of all rows."""
    gradient, logits, target, weight, reduction, ignored, total = args
    if kwargs or not _rows_of(logits, target, weight):
        return NotImplemented
    if reduction == _NONE:
        own = _local(gradient.redistribute(placements=logits.placements))
    else:
        own = _whole(gradient, ops.replicated)
    whole = _whole(total, ops.replicated)
    found = op(own, _local(logits), _local(target), _local(weight), reduction, ignored, whole)
    return DTensor.from_local(
        found, logits.device_mesh, logits.placements, run_check=False, shape=logits.shape, stride=logits.stride()
    )


def _mean(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
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


def _on_whole(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """What every rank computes alike from one tensor that it has all of."""
    tensor = args[0]
    if not isinstance(tensor, DTensor) or tensor.device_mesh is not ops.mesh or tensor.placements != ops.replicated:
        return NotImplemented
    found = op(tensor._local_tensor, *args[1:], **kwargs)
    return wrapped(found, ops.mesh, ops.replicated, tuple(found.shape), found.stride())


_AVERAGE = Partial("avg")

OWN_RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "aten.nll_loss_forward.default": _nll_loss_forward,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.mean.default": _mean,
    "aten.expand.default": _on_whole,
    "aten.div.Scalar": _on_whole,
    "aten.mul.Scalar": _on_whole,
}
"""Rules by operator: each takes the `ShardedOps`, the operator, its arguments, and those by name. It returns the
result, or NotImplemented for placements that it does not know."""
