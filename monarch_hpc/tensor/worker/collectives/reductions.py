"""Reductions of values of which some may be missing.

A rank whose argument failed takes part all the same, with zeros of the recorded shape: the others would wait for it for
ever. Beside each collective goes the largest sequence number of a failed argument, so that the result is a failure on
every rank of the group, and no rank goes on with a sum that includes zeros.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from monarch_hpc.tensor.stream.records import CollectiveSpec
from monarch_hpc.tensor.worker.collectives.named import NamedGroup, options_with
from monarch_hpc.tensor.worker.collectives.staging import HOST

__all__ = ["alone", "reduced"]

_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
_SUMS = frozenset({"sum", "avg"})
_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "avg": lambda rows: rows.sum(0, dtype=rows.dtype) / len(rows),
    "product": lambda rows: rows.prod(0, dtype=rows.dtype),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
    "band": lambda rows: functools.reduce(operator.and_, rows.unbind()),
    "bor": lambda rows: functools.reduce(operator.or_, rows.unbind()),
    "bxor": lambda rows: functools.reduce(operator.xor, rows.unbind()),
}


def alone(spec: CollectiveSpec, value: torch.Tensor) -> torch.Tensor:
    """The result of a reduction over one rank."""
    if spec.scatter:
        return value.clone() if spec.reduction == "stack" else value[0].clone()
    return value.unsqueeze(0).clone() if spec.reduction == "stack" else value.clone()


def reduced(
    group: NamedGroup, num: int, spec: CollectiveSpec, given: torch.Tensor | None, like: torch.Tensor, root: int
) -> tuple[torch.Tensor, int]:
    """The result of a reduction over several ranks, where they do it; and the largest *root* of them.

    Args:
        group: the ranks.
        num: number of them.
        spec: the reduction.
        given: see `Groups.reduce`.
        like: likewise.
        root: likewise.
    """
    name = "alltoall_base" if spec.scatter else "allgather" if spec.reduction == "stack" else "allreduce"
    op = _OPS[spec.reduction] if name == "allreduce" else None
    place = group.place_of(spec.device, name, like.dtype, op)
    value = torch.zeros_like(like, device=place) if given is None else given.detach().to(place).contiguous()
    if place == HOST == torch.device(spec.device) and spec.reduction in _SUMS and op and value.is_floating_point():
        result, all_well = _sum(group, value, root)
        if spec.reduction == "avg":
            result = result / num
        return result, 0 if all_well else _highest(group, root)
    # On a device the root goes beside it in host memory: to read it there would wait for the device.
    highest = torch.tensor([root])
    flag = group.highest(highest)
    match name:
        case "alltoall_base":
            rows = torch.empty_like(value)
            group.alltoall_base(rows, value, [], []).wait()
            result = rows if spec.reduction == "stack" else _ROWS[spec.reduction](rows)
        case "allgather":
            result = value.new_empty((num, *value.shape))
            group.allgather([list(result.unbind())], [value]).wait()
        case _:
            result = value.clone()
            group.allreduce([result], options_with(op)).wait()
            if spec.reduction == "avg":
                result = result / num
    flag.wait()
    return result, int(highest)


def _highest(group: NamedGroup, root: int) -> int:
    found = torch.tensor([root])
    group.highest(found).wait()
    return int(found)


def _sum(group: NamedGroup, value: torch.Tensor, root: int) -> tuple[torch.Tensor, bool]:
    """The sum of a tensor of floats over a group, and whether no rank has a *root*: one more element tells that.

    A message of its own would take as long again as that of a tensor of some KiB.
    """
    whole = value.new_empty(value.numel() + 1)
    whole[:-1] = value.view(-1)
    whole[-1] = bool(root)  # of 0 and 1, no sum of floats is 0 by overflow
    group.allreduce([whole], options_with(dist.ReduceOp.SUM)).wait()
    return whole[:-1].view(value.shape), not whole[-1]
