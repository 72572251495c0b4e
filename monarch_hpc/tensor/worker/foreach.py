"""Decides whether an optimizer takes its steps for many parameters at once, as with ``foreach=True``.

On CPUs torch goes through the parameters one by one unless it is asked not to. For small ones that takes longer than
their arithmetic, which is the same, in the same order, for some optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["SAME_BITS", "steps_at_once"]

SAME_BITS = frozenset({"Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "RMSprop", "Rprop", "SGD"})
"""Optimizers of torch whose steps at once have the bits of steps one by one, of `_DTYPES` and without other options
than numbers."""

_DTYPES = frozenset({torch.float32, torch.float64})
_ASKED = "fused", "capturable", "differentiable"
"""Options with which somebody has chosen, like ``foreach``."""
_MIN_NUM = 8
"""Fewer parameters take as long in both ways."""
_MAX_BYTES = 1 << 20
"""Longest parameters of a group. What is between two operators is as long, and the next one reads it out of a cache:
40 parameters of 16 KiB take 0.6 of the time, of 64 KiB 0.9, of 144 KiB 1.2."""


def steps_at_once(cls: str, group: Mapping[str, Any], params: Sequence[Any]) -> bool:
    """Whether the parameters of a group step at once, where nobody has chosen.

    Args:
        cls: name of a class in `torch.optim`.
        group: the options.
        params: the parameters, as the optimizer has them.
    """
    return (
        cls in SAME_BITS
        and len(params) >= _MIN_NUM
        and not any(group.get(option) for option in _ASKED)
        and group.get("foreach") is None
        and not any(isinstance(value, torch.Tensor) for value in group.values())
        and all(type(param) in (torch.nn.Parameter, torch.Tensor) and _is_plain(param) for param in params)
        and sum(param.nbytes for param in params) <= _MAX_BYTES
    )


def _is_plain(param: torch.Tensor) -> bool:
    return param.device.type == "cpu" and param.dtype in _DTYPES and param.layout == torch.strided
