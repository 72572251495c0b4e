"""`python -m monarch_hpc.telemetry.kept.compact DIRECTORY GROUP MAX_BYTES`: makes files of tables of a group's parts.

The helper of the group's first host starts it: it takes pyarrow's 100 MB of memory only while it works. Killed at any
moment, it leaves each row in one place.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from monarch_hpc.core.storage.files import write_private
from monarch_hpc.telemetry.kept.columns import round_durations
from monarch_hpc.telemetry.kept.parts import GROUP_HOSTS, PartFile, list_tables, table_path
from monarch_hpc.telemetry.kept.reading import PARTS, decode_part, find_kept
from monarch_hpc.wire.tables.catalog import TABLES

__all__ = ["compact", "drop_old", "main", "render"]

_BATCH_BYTES = 32 << 20
"""Compressed parts that become one file: some five million records, which take a gigabyte while they are columns."""

_FIRST_TO_GO = ("sends", "handled", "spans", "transfers")
"""Tables whose oldest files are removed first: metrics, samples and deaths are few, and say more."""

_ROW_GROUP = 131_072

_DICTIONARY = "RLE_DICTIONARY"

_DURATIONS = ("ran_us", "took_us")


def compact(directory: Path, group: int) -> int:
    """Make files of tables of the parts of a group of hosts, and remove the parts; return how many parts."""
    kept = find_kept(directory)
    own = [part for part in kept.parts if part.host // GROUP_HOSTS == group]
    while own:
        batch: list[PartFile] = []
        while own and (not batch or sum(part.num_bytes for part in batch) + own[0].num_bytes <= _BATCH_BYTES):
            batch.append(own.pop(0))
        _write(directory, group, batch, {part: kept.tables_of(part, TABLES) for part in batch})
        for part in batch:
            part.path.unlink(missing_ok=True)
    return sum(part.host // GROUP_HOSTS == group for part in kept.parts)


def _write(directory: Path, group: int, parts: Sequence[PartFile], names: dict[PartFile, list[str]]) -> None:
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, rows in decode_part(part, names[part]):
            found.setdefault(name, []).append(rows)
    for name, tables in found.items():
        held = [(part.host, part.number) for part in parts if name in names[part]]
        write_private(table_path(directory, name, group), render(pa.concat_tables(tables), held))


def render(table: Any, parts: Sequence[tuple[int, int]]) -> bytes:
    """Return the contents of a file of a table: 5 to 8 bytes for a call."""
    keys = [name for name in ("host", "pid", "record", "t") if name in table.column_names]
    table = table.sort_by([(name, "ascending") for name in keys])
    for place, field in enumerate(table.schema):
        if field.name in _DURATIONS:
            table = table.set_column(place, field, round_durations(table.column(place)))
    encodings = {field.name: _choose_encoding(table.select([field.name])) for field in table.schema}
    metadata = {PARTS: json.dumps(list(parts))}
    return _write_table(table.replace_schema_metadata(metadata), encodings)


def _choose_encoding(column: Any) -> str:
    """The encoding in which the first rows of a column, a table of its own, are smallest."""
    kind = column.schema.field(0).type
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        encodings = [_DICTIONARY, "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
    elif pa.types.is_float64(kind):
        encodings = [_DICTIONARY, "BYTE_STREAM_SPLIT"]
    else:
        return _DICTIONARY
    some = column.slice(0, _ROW_GROUP)
    return min(encodings, key=lambda one: len(_write_table(some, {column.column_names[0]: one})))


def _write_table(table: Any, encodings: Mapping[str, str]) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(
        table,
        written,
        compression="zstd",
        compression_level=1,
        row_group_size=_ROW_GROUP,
        use_dictionary=[name for name, one in encodings.items() if one == _DICTIONARY],
        column_encoding={name: one for name, one in encodings.items() if one != _DICTIONARY} or None,
    )
    return bytes(written.getvalue())


def drop_old(directory: Path, group: int, max_bytes: int) -> None:
    """Remove the oldest files of a group as long as all of them have more than *max_bytes*."""
    files = {
        name: [path for path in paths if path.stem.startswith(f"{group}-")]
        for name, paths in list_tables(directory).items()
    }
    sizes = {path: path.stat().st_size for paths in files.values() for path in paths}
    excess = sum(sizes.values()) - max_bytes
    for name in sorted(files, key=lambda name: (name not in _FIRST_TO_GO, name)):
        for path in files[name][:-1]:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= sizes[path]


def main(arguments: Sequence[str]) -> int:
    """Compact one group of one allocation."""
    directory, group, max_bytes = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    os.umask(0o077)
    compact(directory, group)
    drop_old(directory, group, max_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
