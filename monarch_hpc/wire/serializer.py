"""Serializes user values: pickle protocol 5, with large buffers beside the body.

cloudpickle pickles classes and functions of `__main__` and notebooks by value; everything importable is pickled by
name. Three kinds of buffers travel beside the body, not copied here:

- buffers that a type gives to pickle, such as those of NumPy arrays, pandas and Arrow tables; the value that is read
  shares the memory in which they arrive;
- memory that several objects share, such as tensors: see `wire.seen_memory`; likewise;
- `bytes`, `bytearray`, and long pieces of the pickle itself, see `wire.pieces`.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from threading import RLock, local
from typing import Any, ClassVar

import cloudpickle

from monarch_hpc.wire.frames import MAX_BUFFERS, Buffer
from monarch_hpc.wire.pieces import MAX_PIECES, MIN_PIECE_BYTES, PieceReader, PieceWriter, has_pieces, put_beside
from monarch_hpc.wire.seen_memory import MAX_MEMORIES, SeenMemories
from monarch_hpc.wire.views import reduce_view

__all__ = ["MIN_BUFFER_BYTES", "dumps", "loads", "reduce_in_messages", "try_dumps", "when_serialized"]

MIN_BUFFER_BYTES = 4096
"""Smaller buffers stay in the body: a copy is cheaper than an entry in the frame's table."""

_MAX_KEPT = MAX_BUFFERS - MAX_PIECES - MAX_MEMORIES - 1
"""Limit on the buffers that types give to pickle; further ones are copied into the body."""

_importing = RLock()

_IMPORT_S = 10.0
"""A thread whose import takes longer may wait for another one that waits for its turn."""

_PLAIN = frozenset({int, float, bool, type(None)})
_TEXT = frozenset({str, bytes})

Reducer = Callable[[Any, SeenMemories], Any]
"""Returns what pickle's `__reduce_ex__` would, or `NotImplemented`."""

_REDUCERS: dict[type, Reducer] = {}
"""Reducers by exact type, for types of packages that a process may or may not have imported."""

_REDUCER_MODULES = {"pyarrow": "monarch_hpc.wire.arrow", "torch": "monarch_hpc.wire.tensors"}
"""Packages -> modules with their reducers that are not in `_REDUCERS` yet."""


_IN_MESSAGES: dict[type, Callable[[Any], tuple[Any, ...]]] = {memoryview: reduce_view}
"""Reducers by exact type that pickle itself does not have."""


class _Serializing(local):
    """The value that this thread serializes.

    Attributes:
        follow_ups: to be called once it is serialized as a whole.
    """

    follow_ups: list[Callable[[], None]] | None = None


_serializing = _Serializing()


class _PlainPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    dispatch_table: ClassVar = ChainMap(_IN_MESSAGES, cloudpickle.Pickler.dispatch_table)


class _Pickler(_PlainPickler):
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
            _REDUCERS.update(importlib.import_module(module).reducers())
            _REDUCER_MODULES.pop(package, None)


def reduce_in_messages(kind: type, reducer: Callable[[Any], tuple[Any, ...]]) -> None:
    """Have objects of *kind* reduced by *reducer* here, but not by pickle itself."""
    _IN_MESSAGES[kind] = reducer


def when_serialized(follow_up: Callable[[], None]) -> None:
    """Call *follow_up*, which must not raise, once the value that a reducer is called for is serialized as a whole."""
    if _serializing.follow_ups is not None:
        _serializing.follow_ups.append(follow_up)


def try_dumps(value: Any) -> None:
    """Raise what `dumps` would raise; nothing is sent, so that nothing follows."""
    _dump(value)


def dumps(value: Any) -> tuple[bytes, list[Buffer]]:
    """Serialize *value*; return the body and the buffers that travel beside it, not copied.

    Raises:
        Exception: whatever the value's own pickling raises.
    """
    kind = type(value)
    if kind in _PLAIN or (_is_plain(value) if kind is tuple else kind in _TEXT and _is_plain((value,))):
        pickled = pickle.dumps(value, 5)
        return (pickled, []) if len(pickled) < MIN_PIECE_BYTES else put_beside(pickled)
    packed, follow_ups = _dump(value)
    for follow_up in follow_ups:
        follow_up()
    return packed


def _dump(value: Any) -> tuple[tuple[bytes, list[Buffer]], list[Callable[[], None]]]:
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

    def keep_object(whole: bytes | bytearray) -> bool:
        """Tell whether an object is now a buffer; a `bytearray` must not be resized until it has been sent."""
        if len(buffers) >= _MAX_KEPT:
            return False
        buffers.append(memoryview(whole) if type(whole) is bytearray else whole)
        return True

    if _REDUCER_MODULES:
        _add_reducers()
    pieces = PieceWriter(keep_object)
    memories = SeenMemories() if _REDUCERS else None
    outer = _serializing.follow_ups
    follow_ups: list[Callable[[], None]] = []
    _serializing.follow_ups = follow_ups
    try:
        if memories is None:
            _PlainPickler(pieces, protocol=5, buffer_callback=keep).dump(value)
        else:
            _Pickler(pieces, keep, memories).dump(value)
            memories.fill(buffers)
    finally:
        _serializing.follow_ups = outer
    body, beside = pieces.take()
    return (body, buffers + beside), follow_ups


def loads(body: Buffer, buffers: Sequence[Buffer] = (), *, in_turn: bool = False) -> object:
    """Rebuild what `dumps` serialized; arrays share the memory of *buffers*.

    Only for data of a peer that proved the allocation's key: loading runs code that the peer chooses.

    Args:
        in_turn: whether other threads may import the same packages at this moment, see `_InTurn`.
    """
    if not buffers or not has_pieces(body):
        return _InTurn(io.BytesIO(body), buffers=buffers).load() if in_turn else pickle.loads(body, buffers=buffers)
    reader = PieceReader(memoryview(body), buffers)
    return (_InTurn if in_turn else pickle.Unpickler)(reader, buffers=buffers[: len(buffers) - reader.num_long]).load()


class _InTurn(pickle.Unpickler):
    """Imports modules while no other thread does.

    Two threads that begin with two modules of one package, each of which needs the other, would wait for each other.
    Python then lets one of them go on with a module that is half made: "cannot import name".
    """

    def find_class(self, module: str, name: str) -> Any:
        alone = _importing.acquire(timeout=_IMPORT_S)
        try:
            return super().find_class(module, name)
        finally:
            if alone:
                _importing.release()


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
