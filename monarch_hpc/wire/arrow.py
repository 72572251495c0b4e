"""Pickling of Arrow tables that are slices: without the rest of the tables they were cut from.

Others are left to pyarrow, which gives their buffers to pickle; so are slices with an extension type that is written in
Python, as Arrow's own format has its name only, and the receiver may not have registered it. The module can be imported
without pyarrow; its functions are called where there are tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from monarch_hpc.wire.seen_memory import SeenMemories

__all__ = ["reducers"]

_SPARED_BYTES = 4096
"""Less than this is not worth a copy."""


def _is_slice(value: Any, types: Iterable[Any]) -> bool:
    """Whether the buffers of *value*, of *types*, are much longer than what it shows of them, and can be cut."""
    shown: int = value.nbytes
    whole: int = value.get_total_buffer_size()
    return whole > shown + shown // 8 + _SPARED_BYTES and not any(map(_is_of_python, types))


def _is_of_python(kind: Any) -> bool:
    """Whether *kind*, or one inside it, is an extension type that is written in Python."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):
        return isinstance(kind, pyarrow.ExtensionType) or _is_of_python(kind.storage_type)
    if isinstance(kind, pyarrow.DictionaryType):
        return _is_of_python(kind.value_type)
    return any(_is_of_python(kind.field(place).type) for place in range(kind.num_fields))


def _reduce_table(table: Any, _memories: SeenMemories) -> Any:
    if not table.num_columns and table.num_rows:
        return _rows_of_table, (table.num_rows, table.schema.metadata)
    return (_read_table, (_written(table.schema, table),)) if _is_slice(table, table.schema.types) else NotImplemented


def _reduce_batch(batch: Any, _memories: SeenMemories) -> Any:
    if not batch.num_columns and batch.num_rows:
        return _rows_of_batch, (batch.num_rows, batch.schema.metadata)
    return (_read_batch, (_written(batch.schema, batch),)) if _is_slice(batch, batch.schema.types) else NotImplemented


def _reduce_chunks(chunks: Any, _memories: SeenMemories) -> Any:
    if not _is_slice(chunks, [chunks.type]):
        return NotImplemented
    import pyarrow

    table = pyarrow.table([chunks], names=[""])
    return _read_chunks, (_written(table.schema, table),)


def _reduce_array(array: Any, _memories: SeenMemories) -> Any:
    if not _is_slice(array, [array.type]):
        return NotImplemented
    import pyarrow

    batch = pyarrow.record_batch([array], names=[""])
    return _read_array, (_written(batch.schema, batch),)


def _written(schema: Any, value: Any) -> Any:
    """What *value* shows, in Arrow's own format."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        writer.write(value)
    return sink.getvalue()


def _read_table(written: Any) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(written).read_all()


def _read_batch(written: Any) -> Any:
    import pyarrow

    return pyarrow.ipc.open_stream(written).read_next_batch()


def _read_chunks(written: Any) -> Any:
    return _read_table(written).column(0)


def _read_array(written: Any) -> Any:
    return _read_batch(written).column(0)


def _rows_of_table(num_rows: int, metadata: dict[bytes, bytes] | None) -> Any:
    """A table without columns, whose rows pyarrow forgets."""
    import pyarrow

    return pyarrow.table({"": pyarrow.nulls(num_rows)}, metadata=metadata).select([])


def _rows_of_batch(num_rows: int, metadata: dict[bytes, bytes] | None) -> Any:
    import pyarrow

    return pyarrow.record_batch({"": pyarrow.nulls(num_rows)}, metadata=metadata).select([])


def _array_types(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _array_types(below)


def reducers() -> dict[type, Any]:
    """Reducers by exact type."""
    import pyarrow

    return {
        pyarrow.Table: _reduce_table,
        pyarrow.RecordBatch: _reduce_batch,
        pyarrow.ChunkedArray: _reduce_chunks,
        **dict.fromkeys(_array_types(pyarrow.Array), _reduce_array),
    }
