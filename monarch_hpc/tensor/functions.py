"""Methods of mesh tensors as functions, which take lists, tuples and dicts with tensors too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._pytree import tree_map

from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.stream.capture_notes import ENGINES

__all__ = ["coalescing", "reduce", "reduce_", "slice_mesh", "to_mesh"]


def _mapped(function: Callable[[MeshTensor], Any], tree: Any) -> Any:
    return tree_map(lambda leaf: function(leaf) if leaf.__class__ is MeshTensor else leaf, tree)


def slice_mesh(tensors: Any, **selection: int | slice) -> Any:
    """See `MeshTensor.slice_mesh`."""
    return _mapped(lambda tensor: tensor.slice_mesh(**selection), tensors)


def to_mesh(tensors: Any, mesh: Any, stream: Any = None) -> Any:
    """See `MeshTensor.to_mesh`."""
    return _mapped(lambda tensor: tensor.to_mesh(mesh, stream), tensors)


def reduce(tensors: Any, dims: str | tuple[str, ...] = (), reduction: str = "sum", **options: Any) -> Any:
    """See `MeshTensor.reduce`."""
    return _mapped(lambda tensor: tensor.reduce(dims, reduction, **options), tensors)


def reduce_(tensors: Any, dims: str | tuple[str, ...] = (), reduction: str = "sum") -> Any:
    """See `MeshTensor.reduce_`."""
    return _mapped(lambda tensor: tensor.reduce_(dims, reduction), tensors)


@contextmanager
def coalescing() -> Iterator[None]:
    """Send what is issued in the block in as few messages as possible, at its end: ``with coalescing():``.

    A read in the block sends what was issued before it.
    """
    engines = list(ENGINES)
    for engine in engines:
        engine.hold(1)
    try:
        yield
    finally:
        for engine in engines:
            engine.hold(-1)
