"""NumPy arrays in trees. Imported where a tree has one, and only there."""

from __future__ import annotations

import ast
import functools
from typing import Any

import numpy as np

from monarch_hpc.core.text.description import class_name
from monarch_hpc.rdma.local import check_unmasked
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.leaf import Leaf
from monarch_hpc.rdma.trees.strides import Strides

__all__ = ["LIBRARY"]

_Array = np.ndarray[Any, Any]


class _Arrays:
    """NumPy; see `rdma.trees.leaf.ArrayLibrary`."""

    types: frozenset[type] = frozenset((np.ndarray, np.memmap))

    def look(self, what: str, data: _Array, box: Box | None, whole: tuple[int, ...]) -> Leaf:
        """See `ArrayLibrary.look`."""
        if type(data) not in self.types:  # such as a unit, which would be lost
            check_unmasked(what, data)
            raise TypeError(
                f"{what} is a {class_name(data)}: put plain arrays into the tree, as numpy.asarray(...) of it"
            )
        shape = data.shape
        strides = Strides(int(data.__array_interface__["data"][0]), shape, data.strides, data.dtype.itemsize)
        span = allocation = strides.span
        root: Any = data
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root is not data:
            start = int(root.__array_interface__["data"][0])
            low, high = Strides(start, root.shape, root.strides, root.dtype.itemsize).span
            allocation = (low, high) if low <= span[0] and span[1] <= high else span
        own = Box((0,) * len(shape), shape)
        return Leaf(
            "numpy",
            _name(data.dtype),
            "cpu",
            strides,
            span,
            allocation,
            bool(data.flags.writeable),
            "",
            box or own,
            whole or shape,
            data,
        )

    def signature(self, data: _Array) -> tuple[Any, ...] | None:
        """See `ArrayLibrary.signature`."""
        dtype = data.dtype
        if dtype.hasobject:  # whose elements are values, and no memory
            return None
        address = data.__array_interface__["data"]  # and whether it is read-only
        return type(data), address, data.shape, data.strides, dtype

    def glance(self, data: _Array) -> object:
        """See `ArrayLibrary.glance`; an array that has a weak reference keeps its memory, as NumPy resizes none."""
        return data.shape, data.strides, data.dtype, data.flags.writeable

    def item_bytes(self, dtype: str) -> int:
        """See `ArrayLibrary.item_bytes`."""
        try:
            return _dtype(dtype).itemsize
        except TypeError:
            raise TypeError(f"NumPy has no elements of {dtype}: use torch tensors, or another dtype") from None

    def is_floating(self, dtype: str) -> bool:
        """See `ArrayLibrary.is_floating`."""
        return bool(_dtype(dtype).kind == "f" or dtype == "bfloat16")

    def memory(self, num_bytes: int, _device: str) -> _Array:
        """See `ArrayLibrary.memory`."""
        return np.empty(num_bytes, np.uint8)

    def make(self, memory: Any, dtype: str, strides: Strides, _form: str) -> _Array:
        """See `ArrayLibrary.make`."""
        return np.ndarray(strides.shape, _dtype(dtype), memory, strides.first, strides.steps)

    def copy(self, target: _Array, source: Any) -> None:
        """See `ArrayLibrary.copy`."""
        np.copyto(target, source, casting="unsafe")


LIBRARY = _Arrays()
"""NumPy."""


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    """A name from which `_dtype` makes the type again."""
    try:
        if np.dtype(dtype.name) == dtype:
            return dtype.name
    except TypeError:
        pass
    return repr(np.lib.format.dtype_to_descr(dtype))


def _dtype(name: str) -> np.dtype[Any]:
    if name[0] in "[('":
        return np.lib.format.descr_to_dtype(ast.literal_eval(name))
    return np.dtype(name)
