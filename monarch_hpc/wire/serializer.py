"""Serializes user values: pickle protocol 5, with large buffers beside the body.

cloudpickle pickles classes and functions of `__main__` and notebooks by value; everything importable is pickled by
name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer

__all__ = ["MIN_BUFFER_BYTES", "dumps", "loads"]

MIN_BUFFER_BYTES = 4096
"""Smaller buffers stay in the body: a copy is cheaper than an entry in the frame's table."""

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


def dumps(value: Any) -> tuple[bytes, list[Buffer]]:
    """Serialize *value*; return the body and the buffers that travel beside it, not copied.

    Raises:
        Exception: whatever the value's own pickling raises.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is tuple and _is_plain(value)):
        return pickle.dumps(value, 5), []
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Tell pickle whether to copy the buffer into the body."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < MIN_BUFFER_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    cloudpickle.Pickler(stream, protocol=5, buffer_callback=keep).dump(value)
    return stream.getvalue(), buffers


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> object:
    """Rebuild what `dumps` serialized; arrays share the memory of *buffers*.

    Only for data of a peer that proved the allocation's key: loading runs code that the peer chooses.
    """
    return pickle.loads(body, buffers=buffers)


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether plain pickle gives the same result as cloudpickle, at a tenth of its cost."""
    for value in values:  # a generator costs three times as much
        kind = type(value)
        if kind not in _PLAIN and not (kind is tuple and _is_plain(value)):
            return False
    return True
