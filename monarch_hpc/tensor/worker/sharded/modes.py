"""Runs code without the rules for sharded tensors, several times in each step of a training, or records below them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Above", "Below", "BelowAll", "WithoutModes"]

_torch: Any = torch._C


class WithoutModes:
    """While it is entered, no dispatch mode of torch is in force, but what records; on the worker's thread.

    torch's own way looks at modes of its compiler, too, which takes longer than an operator.
    """

    __slots__ = ("_modes", "_num_kept")

    def __enter__(self) -> None:
        pop = _torch._pop_torch_dispatch_stack
        self._modes = [pop(None) for _ in range(_torch._len_torch_dispatch_stack())]
        kept = [mode for mode in self._modes if getattr(mode, "sees_all", False)]
        self._num_kept = len(kept)
        for mode in kept:
            _torch._push_on_torch_dispatch_stack(mode)

    def __exit__(self, *_: object) -> None:
        for _kept in range(self._num_kept):
            _torch._pop_torch_dispatch_stack(None)
        for mode in reversed(self._modes):
            _torch._push_on_torch_dispatch_stack(mode)


class BelowAll(WithoutModes):
    """While it is entered, operators run at once: no mode, no DTensor, and no autograd sees them."""

    __slots__ = ("_guard",)

    def __enter__(self) -> None:
        super().__enter__()
        self._guard = _torch._AutoDispatchBelowAutograd()
        self._guard.__enter__()

    def __exit__(self, *_: object) -> None:
        self._guard.__exit__(None, None, None)
        super().__exit__()


class Above:
    """While it is entered, another one is not.

    Args:
        left: that one, which is entered before and after.
    """

    __slots__ = ("_left",)

    def __init__(self, left: WithoutModes) -> None:
        self._left = left

    def __enter__(self) -> None:
        self._left.__exit__(None, None, None)

    def __exit__(self, *_: object) -> None:
        self._left.__enter__()


class Below(WithoutModes):
    """While it is entered, a dispatch mode sees what those that are in force let run.

    Args:
        mode: the mode.
    """

    __slots__ = ("_mode",)

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        super().__enter__()
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        for mode in reversed(self._modes):
            _torch._push_on_torch_dispatch_stack(mode)

    def __exit__(self, *_: object) -> None:
        for _mode in self._modes:
            _torch._pop_torch_dispatch_stack(None)
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        super().__exit__()
