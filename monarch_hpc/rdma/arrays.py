"""New NumPy arrays, and arrays of given memory. Imported where a buffer of an array is used, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np

from monarch_hpc.core.arguments import shown

__all__ = ["check_type", "empty_array", "lay_over"]


def empty_array(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """A new array."""
    return np.empty(shape, dtype)


def check_type(dtype: object) -> tuple[str, int]:
    """Return the name of *dtype* and its size in bytes.

    Raises:
        TypeError: it is none, or its elements are references.
    """
    try:
        known: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"dtype must be a type of NumPy or torch, such as 'float32', not {shown(dtype)}") from None
    if known.hasobject or known.names is not None or not known.itemsize:
        raise TypeError(f"dtype {known} has no plain elements of one size: only plain data can be shared")
    return known.name, known.itemsize


def lay_over(memory: memoryview, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An array of *memory*, read-only if that is."""
    return np.frombuffer(memory, dtype).reshape(shape)
