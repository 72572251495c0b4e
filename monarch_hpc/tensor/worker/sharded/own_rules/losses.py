"""Losses of rows that are split over ranks: those of one process, by one sum of two numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from monarch_hpc.tensor.worker.sharded.own_rules.parts import all_of, local_of, rows_of, summed

__all__ = ["nll_loss_backward", "nll_loss_forward"]

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


def nll_loss_forward(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The rows of each rank, and one sum of two numbers over the ranks: DTensor averages averages of unlike parts."""
    logits, target, weight, reduction, ignored = args
    if kwargs or not _rows_of(logits, target, weight):
        return NotImplemented
    kind = _NONE if reduction == _NONE else _SUM
    loss, total = op(local_of(logits), local_of(target), local_of(weight), kind, ignored)
    if reduction == _NONE:
        mesh = logits.device_mesh
        rows = DTensor.from_local(loss, mesh, logits.placements, run_check=False, shape=logits.shape[:1], stride=(1,))
        return rows, ops.wrap(total)
    loss, total = summed(ops, logits, torch.stack([loss, total])).unbind()
    return ops.wrap(loss / total if reduction == _MEAN else loss), ops.wrap(total)


def nll_loss_backward(ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """The gradient of each rank's rows, by the weight of all rows."""
    gradient, logits, target, weight, reduction, ignored, total = args
    if kwargs or not _rows_of(logits, target, weight):
        return NotImplemented
    if reduction == _NONE:
        own = rows_of(ops, gradient, logits.placements)
    else:
        own = all_of(ops, gradient)
    whole = all_of(ops, total)
    found = op(own, local_of(logits), local_of(target), local_of(weight), reduction, ignored, whole)
    return DTensor.from_local(
        found, logits.device_mesh, logits.placements, run_check=False, shape=logits.shape, stride=logits.stride()
    )
