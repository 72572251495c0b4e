"""The operators that have rules of our own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from monarch_hpc.tensor.worker.sharded.own_rules.batch_norms import native_batch_norm, native_batch_norm_backward
from monarch_hpc.tensor.worker.sharded.own_rules.losses import nll_loss_backward, nll_loss_forward
from monarch_hpc.tensor.worker.sharded.own_rules.quick import empty_like, mean, new_empty_strided, on_whole
from monarch_hpc.tensor.worker.sharded.own_rules.rows import ROW_RULES, by_rows

__all__ = ["OWN_RULES"]

OWN_RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "aten.nll_loss_forward.default": nll_loss_forward,
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.native_batch_norm.default": native_batch_norm,
    "aten.native_batch_norm_backward.default": native_batch_norm_backward,
    "aten.empty_like.default": empty_like,
    "aten.new_empty_strided.default": new_empty_strided,
    "aten.mean.default": mean,
    "aten.expand.default": on_whole,
    "aten.div.Scalar": on_whole,
    "aten.mul.Scalar": on_whole,
    **{f"aten.{name}.default": partial(by_rows, rule) for name, rule in ROW_RULES.items()},
}
"""Rules by operator: each takes the `ShardedOps`, the operator, its arguments, and those by name. It returns the
result, or NotImplemented for placements that it does not know; no random numbers are drawn then."""
