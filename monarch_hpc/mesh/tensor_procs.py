"""Tensors on procs: the methods of meshes of procs that need torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from monarch_hpc.mesh.view import MeshView

__all__ = ["TensorProcs"]

_TENSORS = "monarch_hpc.tensor.active"
"""Tensors on meshes, by name: this layer does not depend on them."""


def _tensors() -> Any:
    return importlib.import_module(_TENSORS)


class TensorProcs(MeshView):
    """A mesh of procs, as far as it makes tensors."""

    def activate(self) -> AbstractContextManager[object]:
        """Have torch's functions make tensors on these procs: ``with procs.activate():``; needs torch.

        In the block, functions that make tensors of none make them on every proc. Operations on such tensors run where
        they are, also after the block. At its end, all that was issued is done.

        Raises:
            SpawnError: the procs did not start.
            DeviceMeshError: a proc is gone; also at the end of the block.
        """
        activation: AbstractContextManager[object] = _tensors().activate(self)
        return activation

    def capture(self, function: Callable[..., Any] | None = None, *, verify: bool = False) -> Any:
        """Have a function on mesh tensors replayed by one record; a decorator. See docs/tensors.md; needs torch."""
        return _tensors().capture_on(self, function, verify)

    def rank_tensor(self, dim: str) -> Any:
        """The coordinate of each proc along a dimension, as a mesh tensor; needs torch, and KeyError if unknown."""
        return _tensors().rank_tensor(self, dim)

    rank = rank_tensor

    def rank_tensors(self) -> dict[str, Any]:
        """The coordinates along all dimensions, by name; see `rank_tensor`."""
        tensors: dict[str, Any] = _tensors().rank_tensors(self)
        return tensors
