"""Operators that work on each row of a batch alone, or sum over rows: ranks that have different rows need no others.

So are layers of networks: normalizations of features, attention of heads, convolutions and pools of images. A row is
what has one place along the first dimensions of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._pytree import tree_map

from monarch_hpc.tensor.worker.sharded.own_rules.parts import all_of, as_summands, rows_of
from monarch_hpc.tensor.worker.sharded.wrapping import MAX_SPECS, wrapped

__all__ = ["ROW_RULES", "Result", "RowRule", "by_rows"]


class Result(Enum):
    """How a result is placed."""

    ROWS = "rows"
    SUM = "a sum over rows"
    WHOLE = "the same on all ranks, or of no use"


class RowRule(NamedTuple):
    """An operator.

    Attributes:
        lead: place of the argument whose rows are those of the operator.
        rows: places of the arguments that have the same rows; it gets all of the others.
        num_dims: number of first dimensions that tell rows apart, given the arguments.
        results: how results are placed.
        counts: places of arguments that are the number of rows.
        mask: place or name of a mask, which may lack dimensions of rows, or have one row for all; empty if none.
        no_grad: a place, and a place in the flags there, which ask for the gradient of the mask; empty if none do.
    """

    lead: int
    rows: tuple[int, ...]
    num_dims: Callable[[Any], int]
    results: tuple[Result, ...]
    counts: tuple[int, ...] = ()
    mask: int | str = ""
    no_grad: tuple[int, ...] = ()


def by_rows(rule: RowRule, ops: Any, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on this rank's rows.

    Returns:
        The result, or NotImplemented where its rows are not split, or more than its rows is.
    """
    lead = args[rule.lead]
    if not isinstance(lead, DTensor) or lead.device_mesh is not ops.mesh or not _is_split(lead, rule.num_dims(args)):
        return NotImplemented
    placements = lead.placements
    split = [one.dim for one in placements if type(one) is Shard]
    for place in rule.rows:
        one = args[place]
        if not isinstance(one, DTensor) or any(one.shape[dim] != lead.shape[dim] for dim in split):
            return NotImplemented
    if rule.no_grad and args[rule.no_grad[0]][rule.no_grad[1]]:
        return NotImplemented
    shown = _shown(op, args, kwargs)
    given = [
        rows_of(ops, one, placements) if place in rule.rows else all_of(ops, one) for place, one in enumerate(args)
    ]
    for place in rule.counts:
        given[place] = given[rule.lead].shape[0]
    named = {name: all_of(ops, one) for name, one in kwargs.items() if name != rule.mask}
    if isinstance(rule.mask, str) and rule.mask in kwargs:
        named[rule.mask] = _mask_of(ops, kwargs[rule.mask], lead)
    elif isinstance(rule.mask, int):
        given[rule.mask] = _mask_of(ops, args[rule.mask], lead)
    found = op(*given, **named)
    made = [
        _wrapped(one, kind, like, ops, placements)
        for one, kind, like in zip(found if isinstance(found, tuple) else (found,), rule.results, shown, strict=True)
    ]
    return tuple(made) if isinstance(found, tuple) else made[0]


def _is_split(lead: DTensor, num_dims: int) -> bool:
    """Whether a tensor is split by its rows, and only by them, so that each rank has some."""
    sizes = list(lead.shape)
    for num, one in zip(lead.device_mesh.shape, lead.placements, strict=True):
        if type(one) is Shard:
            if one.dim >= num_dims:
                return False
            chunk = -(-sizes[one.dim] // num)
            sizes[one.dim] -= chunk * (num - 1)  # the last rank has the fewest
            if sizes[one.dim] <= 0:
                return False
        elif type(one) is not Replicate:
            return False
    return any(type(one) is Shard for one in lead.placements)


def _mask_of(ops: Any, mask: Any, lead: DTensor) -> Any:
    """The rows of a mask, whose dimensions are the last ones of *lead*."""
    if not isinstance(mask, DTensor):
        return mask
    missing = lead.dim() - mask.dim()

    def placed(one: Any) -> Any:
        has_rows = type(one) is Shard and one.dim >= missing and mask.shape[one.dim - missing] > 1
        return Shard(one.dim - missing) if has_rows else Replicate()

    return rows_of(ops, mask, tuple(map(placed, lead.placements)))


def _wrapped(found: Any, kind: Result, like: Any, ops: Any, placements: tuple[Any, ...]) -> Any:
    if not isinstance(found, torch.Tensor):
        return found
    if kind is Result.WHOLE:
        return ops.wrap(found)
    return wrapped(found, ops.mesh, as_summands(placements) if kind is Result.SUM else placements, *like)


# ---- shapes of results ----

_known: dict[Any, tuple[Any, ...]] = {}


def _shown(op: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Shapes and strides of the results on whole tensors; the same for the same arguments."""
    key = op, _key(args), _key(kwargs)
    found = _known.get(key)
    if found is None:
        if len(_known) >= MAX_SPECS:
            _known.clear()
        empty, named = tree_map(_empty, (args, kwargs))
        results = op(*empty, **named)
        found = _known[key] = tuple(
            (tuple(one.shape), one.stride()) if isinstance(one, torch.Tensor) else None
            for one in (results if isinstance(results, tuple) else (results,))
        )
    return found


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return tuple(arg.shape), arg.stride(), arg.dtype
    if isinstance(arg, dict):
        return tuple((name, _key(one)) for name, one in arg.items())
    return tuple(map(_key, arg)) if isinstance(arg, (list, tuple)) else (type(arg), arg)


def _empty(leaf: Any) -> Any:
    """A tensor like a leaf, without elements."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")


# ---- operators ----


def _but(place: int, num: int) -> Callable[[Any], int]:
    """All dimensions of an argument but the last ones."""
    return lambda args: args[place].dim() - num


def _before(place: int, sizes: int) -> Callable[[Any], int]:
    """All dimensions of an argument but the last ones, of which another one has the sizes."""
    return lambda args: args[place].dim() - len(args[sizes])


def _first(num: int) -> Callable[[Any], int]:
    return lambda _args: num


_R, _S, _W = Result.ROWS, Result.SUM, Result.WHOLE

ROW_RULES: dict[str, RowRule] = {
    # normalizations: over the last dimensions, or over groups of channels
    "native_layer_norm_backward": RowRule(1, (0, 1, 3, 4), _before(1, 2), (_R, _S, _S)),
    "_fused_rms_norm": RowRule(0, (0,), _before(0, 1), (_R, _R)),
    "_fused_rms_norm_backward": RowRule(1, (0, 1, 3), _before(1, 2), (_R, _S)),
    "native_group_norm": RowRule(0, (0,), _first(1), (_R, _R, _R), counts=(3,)),
    "native_group_norm_backward": RowRule(1, (0, 1, 2, 3), _first(1), (_R, _S, _S), counts=(5,)),
    # images
    "convolution": RowRule(0, (0,), _first(1), (_R,)),
    "convolution_backward": RowRule(1, (0, 1), _first(1), (_R, _S, _S)),
    "max_pool2d_with_indices": RowRule(0, (0,), _but(0, 2), (_R, _R)),
    "max_pool2d_with_indices_backward": RowRule(1, (0, 1, 7), _but(1, 2), (_R,)),
    "avg_pool2d": RowRule(0, (0,), _but(0, 2), (_R,)),
    "avg_pool2d_backward": RowRule(1, (0, 1), _but(1, 2), (_R,)),
    "_adaptive_avg_pool2d": RowRule(0, (0,), _but(0, 2), (_R,)),
    "_adaptive_avg_pool2d_backward": RowRule(1, (0, 1), _but(1, 2), (_R,)),
    "constant_pad_nd": RowRule(0, (0,), lambda args: args[0].dim() - len(args[1]) // 2, (_R,)),
    # attention: batches and heads
    "_scaled_dot_product_flash_attention_for_cpu": RowRule(0, (0, 1, 2), _first(2), (_R, _R), mask="attn_mask"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": RowRule(
        1, (0, 1, 2, 3, 4, 5), _first(2), (_R, _R, _R), mask="attn_mask"
    ),
    "_scaled_dot_product_flash_attention": RowRule(0, (0, 1, 2), _first(2), (_R, _R, _W, _W, _W, _W, _W, _W, _W)),
    "_scaled_dot_product_flash_attention_backward": RowRule(1, (0, 1, 2, 3, 4, 5), _first(2), (_R, _R, _R)),
    "_scaled_dot_product_efficient_attention": RowRule(0, (0, 1, 2), _first(2), (_R, _R, _W, _W), mask=3),
    "_scaled_dot_product_efficient_attention_backward": RowRule(
        1, (0, 1, 2, 3, 5, 6), _first(2), (_R, _R, _R, _W), mask=4, no_grad=(10, 3)
    ),
}
"""By name of the operator, of which the default overload is meant."""
