"""The columns of tables as Arrow's, and rows as columns."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from monarch_hpc.wire.tables.schema import Table

__all__ = ["TIME", "least_time", "schema_of", "table_of_rows"]

TIME = pa.timestamp("us", tz="UTC")
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


@functools.cache
def schema_of(table: Table[Any]) -> pa.Schema:
    """The columns of a table as Arrow's: ``t`` is a timestamp."""
    fields = [(one.name, TIME if one.name == "t" else _TYPES[one.kind]) for one in table.columns]
    return pa.schema(fields)


def table_of_rows(table: Table[Any], rows: Sequence[Sequence[Any]]) -> pa.Table:
    """The rows of `wire.tables`, each a list of values, as columns."""
    if not rows:
        return schema_of(table).empty_table()
    columns = list(zip(*rows, strict=True))
    arrays = []
    for column, values in zip(table.columns, columns, strict=True):
        if column.name == "t":
            moments = pa.array([int(value * 1e6) for value in values], pa.int64())
            arrays.append(moments.view(TIME))
        elif column.kind is str:
            # Programs may give names that are not valid Unicode.
            arrays.append(pa.array([value.encode(errors="replace").decode() for value in values], pa.string()))
        else:
            arrays.append(pa.array(values, _TYPES[column.kind]))
    return pa.Table.from_arrays(arrays, schema=schema_of(table))


def least_time(t: float) -> pa.Scalar:
    """A moment of Unix time, in seconds, to compare the column ``t`` with."""
    return pa.scalar(int(t * 1e6), TIME)
