"""The bits of values, and how ranks replay a step, for tests of captured steps below DTensor."""

from __future__ import annotations

from typing import Any

__all__ = ["NUM_CALLS", "bits", "lowering"]

NUM_CALLS = 7
"""Enough for the last ones to run below DTensor."""


def lowering(step: Any) -> set[str]:
    """How the ranks replay a step."""
    return set(step.lowering().values())


def bits(tensors: Any) -> list[bytes]:
    """The values of tensors, to be compared to the last bit."""
    return [tensor.full_tensor().detach().numpy().tobytes() for tensor in tensors]
