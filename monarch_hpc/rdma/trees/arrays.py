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

_MAX_DIMS = 64  # of NumPy 2
_ORIGINS = [(0,) * num for num in range(_MAX_DIMS + 1)]


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
        return self._leaf(data, data.__array_interface__["data"], box, whole)

    def look_again(self, _what: str, data: _Array, signature: tuple[Any, ...]) -> Leaf:
        """See `ArrayLibrary.look_again`."""
        return self._leaf(data, signature[1], None, ())

    def _leaf(self, data: _Array, place: tuple[int, bool], box: Box | None, whole: tuple[int, ...]) -> Leaf:
        # There are thousands: `tuple.__new__` takes a third of the time of a named tuple's own.
        (address, fixed), shape, dtype = place, data.shape, data.dtype
        strides = tuple.__new__(Strides, (address, shape, data.strides, dtype.itemsize))
        span = (address, address + data.nbytes) if data.flags.c_contiguous else strides.span
        allocation = span if data.base is None else _allocation(data, span)
        if box is None:
            box = tuple.__new__(Box, (_ORIGINS[len(shape)], shape))
        rest = (strides, span, allocation, not fixed, "", box, whole or shape, data)
        return tuple.__new__(Leaf, ("numpy", _name(dtype), "cpu", *rest))

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


def _allocation(data: _Array, span: tuple[int, int]) -> tuple[int, int]:
    """The memory of the array that *data* is a view of; *span* if it is not within that."""
    root: Any = data
    while isinstance(root.base, np.ndarray):
        root = root.base
    start = int(root.__array_interface__["data"][0])
    low, high = Strides(start, root.shape, root.strides, root.dtype.itemsize).span
    return (low, high) if low <= span[0] and span[1] <= high else span


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
