"""Pickling of memoryviews, which pickle refuses: only the elements seen travel, with their format and shape."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from monarch_hpc.wire.frames import Buffer

__all__ = ["reduce_view"]

_CAST = frozenset("bBcHhIiLlQqNnfd?P")
"""Formats to which `memoryview.cast` casts."""


def reduce_view(view: memoryview) -> tuple[Any, ...]:
    """Reduce *view* for pickle.

    Raises:
        TypeError: it has a format or a shape that only an array of NumPy can have, which is not imported.
        ValueError: it was released.
    """
    shape = view.shape or ()
    casts = view.format in _CAST and 0 not in shape
    if casts and view.c_contiguous:
        return _rebuild, (pickle.PickleBuffer(view), view.format, shape, view.readonly)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:  # it copies the elements if there are gaps between them
        return _view_of, (numpy.asarray(view), view.readonly)
    if not casts:
        raise TypeError(
            f"a memoryview of format {view.format!r} and shape {view.shape} cannot be sent without NumPy; import it"
        )
    return _rebuild, (pickle.PickleBuffer(bytearray(view)), view.format, shape, view.readonly)


def _rebuild(buffer: Buffer, format: str, shape: tuple[int, ...], readonly: bool) -> memoryview:
    view = memoryview(buffer)
    if view.readonly and not readonly:
        view = memoryview(bytearray(view))
    return _view_of(view.cast("B").cast(format, shape), readonly)  # type: ignore[call-overload]  # format is not literal


def _view_of(buffer: Any, readonly: bool) -> memoryview:
    view = memoryview(buffer)
    return view.toreadonly() if readonly else view
