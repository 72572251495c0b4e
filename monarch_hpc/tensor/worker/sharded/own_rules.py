"""Rules of our own for operators on shards, where DTensor's are wrong and to gather the arguments costs too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

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


def _nll_loss_forward(ops: Any, op: Any, args: Any) -> Any:
    """The rows of each rank, and one sum of two numbers over the ranks: DTensor averages averages of unlike parts."""
    logits, target, weight, reduction, ignored = args
    if not _rows_of(logits, target, weight):
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


def _nll_loss_backward(ops: Any, op: Any, args: Any) -> Any:
    """The gradient of each rank's rows, by the weight of all rows."""
    gradient, logits, target, weight, reduction, ignored, total = args
    if not _rows_of(logits, target, weight):
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


OWN_RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "aten.nll_loss_forward.default": _nll_loss_forward,
    "aten.nll_loss_backward.default": _nll_loss_backward,
}
"""Rules by operator: each takes the `ShardedOps`, the operator and its arguments, and returns the result, or
NotImplemented for placements that it does not know."""
