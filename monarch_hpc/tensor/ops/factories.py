"""torch's functions that make tensors of none: in ``with mesh.activate()`` they make them on the ranks."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["FACTORIES", "from_values"]

_VALUES = "values"

FACTORIES: dict[Any, str | None] = {
    **dict.fromkeys(
        (
            torch.arange,
            torch.empty,
            torch.empty_strided,
            torch.eye,
            torch.full,
            torch.linspace,
            torch.logspace,
            torch.ones,
            torch.rand,
            torch.randint,
            torch.randn,
            torch.randperm,
            torch.zeros,
        )
    ),
    torch.tensor: _VALUES,
    torch.as_tensor: _VALUES,
    torch.scalar_tensor: _VALUES,
    torch.from_numpy: _VALUES,
}
"""Functions, and whether they take values of the program, which then are sent."""


def from_values(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Make a tensor of values here, as the program would without a mesh."""
    with torch._C.DisableTorchFunction():
        made: torch.Tensor = function(*args, **kwargs)
    return made
