"""Runs code without the rules for sharded tensors, several times in each step of a training."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["WithoutModes"]

_torch: Any = torch._C


class WithoutModes:
    """While it is entered, no dispatch mode of torch is in force; on the worker's thread.

    torch's own way looks at modes of its compiler, too, which takes longer than an operator.
    """

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        pop = _torch._pop_torch_dispatch_stack
        self._modes = [pop(None) for _ in range(_torch._len_torch_dispatch_stack())]

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._modes):
            _torch._push_on_torch_dispatch_stack(mode)
