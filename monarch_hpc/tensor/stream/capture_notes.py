"""The notes that an engine, and what issues on it, take while a step is captured."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import torch

from monarch_hpc.tensor.ops.meta import GraphLeaf
from monarch_hpc.tensor.stream.sites import Site

__all__ = ["ENGINES", "FrameRecorder"]

ENGINES: WeakSet[Any] = WeakSet()
"""All engines of this process: a step that is captured on one may use others."""


class FrameRecorder(Protocol):
    """Takes what an engine sends; see `tensor.capture.recorder`."""

    def add(self, view: Any, ints: list[int], objects: list[Any], sites: list[Site]) -> None:
        """Take a frame; the caller holds the lock."""
        ...

    def note_leaf(self, leaf: GraphLeaf) -> None:
        """Note a leaf of autograd's graph whose gradient is asked for, set or computed."""
        ...

    def note_sent(self, number: int, source: torch.Tensor, is_constant: bool) -> None:
        """Note a tensor of the program that was sent, and whether it was made of numbers in the code."""
        ...

    def refuse_read(self) -> NoReturn:
        """Refuse to read a value."""
        ...
