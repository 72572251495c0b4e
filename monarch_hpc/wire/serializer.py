"""Serializes user values: pickle protocol 5, with large buffers beside the body.

cloudpickle pickles classes and functions of `__main__` and notebooks by value; everything importable is pickled by
name. Three kinds of buffers travel beside the body, not copied here:

- buffers that a type gives to pickle, such as those of NumPy arrays; the value that is read shares the memory in which
  they arrive;
- memory that several objects share, such as tensors: see `wire.seen_memory`; likewise;
- long pieces of the pickle itself, such as `bytes`: see `wire.pieces`.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer
from monarch_hpc.wire.pieces import MAX_PIECES, MIN_PIECE_BYTES, PieceReader, PieceWriter, has_pieces
from monarch_hpc.wire.seen_memory import MAX_MEMORIES, SeenMemories

__all__ = ["MIN_BUFFER_BYTES", "dumps", "loads"]

MIN_BUFFER_BYTES = 4096
"""Smaller buffers stay in the body: a copy is cheaper than an entry in the frame's table."""

_MAX_KEPT = MAX_BUFFERS - MAX_PIECES - MAX_MEMORIES - 1
"""Limit on the buffers that types give to pickle; further ones are copied into the body."""

_PLAIN = frozenset({int, float, bool, type(None)})
_TEXT = frozenset({str, bytes})

Reducer = Callable[[Any, SeenMemories], Any]
"""Returns what pickle's `__reduce_ex__` would, or `NotImplemented`."""

_REDUCERS: dict[type, Reducer] = {}
"""Reducers by exact type, for types of packages that a process may or may not have imported."""

_REDUCER_MODULES = {"torch": "monarch_hpc.wire.tensors"}
"""Packages -> modules with their reducers that are not in `_REDUCERS` yet."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(
        self, pieces: PieceWriter, keep: Callable[[pickle.PickleBuffer], bool], memories: SeenMemories
    ) -> None:
        super().__init__(pieces, protocol=5, buffer_callback=keep)
        self._memories = memories

    def reducer_override(self, value: Any) -> Any:
        """Reduce *value* for pickle."""
        reducer = _REDUCERS.get(type(value))
        reduced = NotImplemented if reducer is None else reducer(value, self._memories)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def _add_reducers() -> None:
    for package, module in list(_REDUCER_MODULES.items()):
        # While it is being imported by another thread, its types may not be there yet.
        spec = getattr(sys.modules.get(package), "__spec__", None)
        if spec is not None and not getattr(spec, "_initializing", False):
            _REDUCERS.update(importlib.import_module(module).REDUCERS)
            _REDUCER_MODULES.pop(package, None)


def dumps(value: Any) -> tuple[bytes, list[Buffer]]:
    """Serialize *value*; return the body and the buffers that travel beside it, not copied.

    Raises:
        Exception: whatever the value's own pickling raises.
    """
    kind = type(value)
    if kind in _PLAIN or (_is_plain(value) if kind is tuple else kind in _TEXT and _is_plain((value,))):
        return pickle.dumps(value, 5), []
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Tell pickle whether to copy the buffer into the body."""
        if memories is not None and memories.takes(buffer, len(buffers)):
            buffers.append(b"")  # see `fill`
            return False
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < MIN_BUFFER_BYTES or len(buffers) >= _MAX_KEPT:
            return True
        buffers.append(raw)
        return False

    if _REDUCER_MODULES:
        _add_reducers()
    pieces = PieceWriter()
    memories = SeenMemories() if _REDUCERS else None
    if memories is None:
        cloudpickle.Pickler(pieces, protocol=5, buffer_callback=keep).dump(value)
    else:
        _Pickler(pieces, keep, memories).dump(value)
        memories.fill(buffers)
    body, beside = pieces.take()
    return body, buffers + beside


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> object:
    """Rebuild what `dumps` serialized; arrays share the memory of *buffers*.

    Only for data of a peer that proved the allocation's key: loading runs code that the peer chooses.
    """
    if not buffers or not has_pieces(body):
        return pickle.loads(body, buffers=buffers)
    reader = PieceReader(memoryview(body), buffers)
    return pickle.Unpickler(reader, buffers=buffers[: len(buffers) - reader.num_long]).load()


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether plain pickle gives the same result as cloudpickle, at a tenth of its cost, and no long piece."""
    for value in values:  # a generator costs three times as much
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind in _TEXT:
            if len(value) >= MIN_PIECE_BYTES:
                return False
        elif kind is not tuple or not _is_plain(value):
            return False
    return True
