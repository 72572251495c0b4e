"""Carries subclasses of `torch.autograd.Function` to the ranks: their `apply` calls no function that we intercept."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from monarch_hpc.tensor.ops.proxy import first_tensor

__all__ = ["carry_custom_functions"]

_original: Any = torch.autograd.Function.__dict__["apply"].__func__


class _Apply:
    """`apply` of a custom function: called on the ranks, where the graph is."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.__qualname__ = f"{cls.__qualname__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _original(self.cls, *args, **kwargs)


_apply_of = cache(_Apply)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = first_tensor((args, kwargs))
    if tensor is None:
        return _original(cls, *args, **kwargs)
    return tensor._h.view.operations.dispatch(_apply_of(cls), args, kwargs)


def carry_custom_functions() -> None:
    """Let `Function.apply` take mesh tensors from here on; others it takes as before."""
    torch.autograd.Function.apply = classmethod(_apply)  # type: ignore[assignment,method-assign]
