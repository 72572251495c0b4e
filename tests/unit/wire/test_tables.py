"""Tables of pandas and Arrow survive serialization, and their columns are not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monarch_hpc.wire.frames import Buffer
from monarch_hpc.wire.serializer import dumps, loads

pandas: Any = pytest.importorskip("pandas")
pyarrow: Any = pytest.importorskip("pyarrow")

_ROWS = 50_000


def travel(value: object) -> tuple[Any, int, int]:
    """Serialize *value*, move its buffers; return what is read, and the bytes of the body and of all."""
    body, buffers = dumps(value)
    moved: list[Buffer] = [bytearray(buffer) for buffer in buffers]
    return loads(body, moved), len(body), len(body) + sum(map(len, moved))


def _frame() -> Any:
    return pandas.DataFrame(
        {
            "number": np.arange(_ROWS),
            "part": np.linspace(0, 1, _ROWS),
            "name": [f"row {row}" for row in range(_ROWS)],
            "kind": pandas.Series(["a", "b"] * (_ROWS // 2), dtype="category"),
            "at": pandas.date_range("2020-01-01", periods=_ROWS, freq="s"),
        },
        index=pandas.RangeIndex(5, 5 + _ROWS, name="id"),
    )


def _table() -> Any:
    return pyarrow.table(
        {
            "number": np.arange(_ROWS),
            "name": [f"row {row}" for row in range(_ROWS)],
            "some": pyarrow.array([None, True] * (_ROWS // 2)),
            "lists": [[row] * (row % 3) for row in range(_ROWS)],
            "kind": pyarrow.array(["a", "b"] * (_ROWS // 2)).dictionary_encode(),
        }
    ).replace_schema_metadata({"made": "here"})


@pytest.mark.parametrize("rows", [slice(None), slice(100, 200), slice(None, None, 7), slice(0, 0)])
def test_a_frame_of_pandas_survives(rows: slice) -> None:
    frame = _frame().iloc[rows]
    read, body_bytes, _ = travel({"frame": frame})
    pandas.testing.assert_frame_equal(read["frame"], frame)
    assert body_bytes < 100_000


def test_the_columns_of_a_frame_travel_beside_the_body() -> None:
    _, body_bytes, _ = travel(_frame())
    assert body_bytes < 5000
    _, _, few_bytes = travel(_frame().iloc[100:110])
    assert few_bytes < 20_000


@pytest.mark.parametrize("rows", [(0, _ROWS), (100, 50), (7, 0)], ids=["whole", "slice", "nothing"])
def test_arrow_survives_and_a_slice_leaves_the_rest_at_home(rows: tuple[int, int]) -> None:
    table = _table().slice(*rows)
    (batch,) = _table().slice(*rows).to_batches() or [pyarrow.RecordBatch.from_pylist([], _table().schema)]
    columns = [table.column(place).combine_chunks() for place in range(table.num_columns)]
    value = [table, batch, table.column(1), *batch.columns, columns]
    read, body_bytes, num_bytes = travel(value)
    assert read[0].schema.metadata == table.schema.metadata
    for one, other in zip(read, value, strict=True):
        assert type(one) is type(other) and (one == other if isinstance(other, list) else one.equals(other))
    assert body_bytes < 20_000
    if rows[1] < _ROWS:
        assert num_bytes < 60_000


def test_a_whole_table_is_not_copied() -> None:
    table = pyarrow.table({"a": np.arange(_ROWS), "b": np.ones(_ROWS)})
    body, buffers = dumps(table)
    first = pyarrow.py_buffer(buffers[0])
    assert len(body) < 1000 and first.address == table.column(0).chunk(0).buffers()[1].address
    arrived: list[Buffer] = [bytearray(buffer) for buffer in buffers]
    read: Any = loads(body, arrived)
    assert read.column(0).chunk(0).buffers()[1].address == pyarrow.py_buffer(arrived[0]).address


class _Metres(pyarrow.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """A type that only this process knows, and that is not registered."""

    def __init__(self) -> None:
        super().__init__(pyarrow.int64(), "tests.metres")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _written: bytes) -> _Metres:
        return cls()


def test_slices_of_types_that_are_written_in_python_keep_them() -> None:
    array = pyarrow.ExtensionArray.from_storage(_Metres(), pyarrow.array(range(_ROWS)))
    nested = pyarrow.StructArray.from_arrays([array, array.storage], names=["length", "number"])
    value = [one.slice(5, 9) for one in (array, nested, pyarrow.chunked_array([array]), pyarrow.table({"a": array}))]
    read, _, _ = travel(value)
    for one, other in zip(read, value, strict=True):
        assert type(one) is type(other) and one.equals(other)
        assert one.schema == other.schema if isinstance(one, pyarrow.Table) else one.type == other.type


def test_slices_of_types_of_arrow_leave_the_rest_at_home() -> None:
    value = [
        pyarrow.array([b"x" * 16] * _ROWS, pyarrow.uuid()).slice(5, 9),
        pyarrow.array([{"a": ["x", "y"]}] * _ROWS).slice(5, 9),
        pyarrow.array([["a"], ["b"]] * _ROWS, pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())))[:9],
    ]
    read, _, num_bytes = travel(value)
    assert num_bytes < 20_000
    assert all(one.equals(other) and one.type == other.type for one, other in zip(read, value, strict=True))


def test_rows_without_columns_survive() -> None:
    columns, metadata = {"": pyarrow.nulls(3)}, {"made": "here"}
    rows = pyarrow.table(columns, metadata=metadata).select([])
    batch = pyarrow.record_batch(columns, metadata=metadata).select([])
    value = [rows, batch, pyarrow.table({})]
    read, _, _ = travel(value)
    assert [one.num_rows for one in read] == [3, 3, 0]
    for one, other in zip(read, value, strict=True):
        assert type(one) is type(other) and one.schema.equals(other.schema, check_metadata=True)


@pytest.mark.parametrize(
    "column",
    [
        pandas.array([1, None, 3] * 1000, dtype="Int64"),
        pandas.array([True, None] * 1000, dtype="boolean"),
        pandas.array(["a", None] * 1000, dtype="string[pyarrow]"),
        pandas.array([[1], None] * 1000, dtype=pandas.ArrowDtype(pyarrow.list_(pyarrow.int64()))),
        pandas.Categorical(["a", "b", None] * 1000, ["b", "a"], ordered=True),
        pandas.date_range("2020-01-01", periods=1000, tz="Europe/Berlin"),
        pandas.period_range("2020-01-01", periods=1000, freq="D"),
        pandas.interval_range(0, 1000),
        pandas.arrays.SparseArray([0, 0, 1] * 1000),
        np.array([1, "a", None, [1]] * 1000, dtype=object),
    ],
    ids=lambda column: str(column.dtype),
)
def test_columns_of_each_kind_survive(column: Any) -> None:
    frame = pandas.DataFrame({("a", 1): column, ("b", 2): np.arange(len(column))}).iloc[3::2]
    frame = frame.set_index([("b", 2), np.arange(len(frame))])
    frame.attrs["made"] = "here"
    read, _, _ = travel(frame)
    pandas.testing.assert_frame_equal(read, frame, check_flags=True)
    assert read.attrs == frame.attrs
