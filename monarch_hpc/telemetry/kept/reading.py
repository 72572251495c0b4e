"""The kept rows of tables: those of parts, which are decoded here, and the files of tables."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.kept.arrow import schema_of, table_of_rows
from monarch_hpc.telemetry.kept.chunks import NAMES, RECORDS, ROWS, Heading, parse
from monarch_hpc.telemetry.kept.columns import KeptProcess, columns_of
from monarch_hpc.telemetry.kept.parts import PartFile, list_parts, list_tables, read_part
from monarch_hpc.telemetry.kept.records import (
    RecordSource,
    as_records,
    by_table,
    drop_empty,
    numbers_of,
    unpack_records,
)
from monarch_hpc.telemetry.layout import ACTORS_AT, HEADER, NUM_ACTORS, RECORD, RECORD_BYTES
from monarch_hpc.telemetry.names import parse_all_names
from monarch_hpc.telemetry.reading import DecodedRecord, Memory, read_header, read_names
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "ALL_COLUMNS",
    "PARTS",
    "Columns",
    "DecodedRows",
    "Kept",
    "decode_part",
    "decode_rows",
    "find_kept",
    "process_of",
]

PARTS = b"parts"
"""Key in the metadata of a table's file: host and number of the parts that it was made of, as JSON."""

_KEEP_FILES = 4096
"""Files of which is kept what they were made of: a day of one allocation has some hundred."""

Columns = Mapping[str, Collection[str]]
"""For tables, the columns that are needed; all of those of others."""

ALL_COLUMNS: Columns = {}

Decode = Callable[[PartFile, Collection[str], Columns], Iterable[tuple[str, pa.Table]]]
"""Decodes the rows of some tables in a part."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What an allocation has kept.

    Attributes:
        parts: parts of hosts.
        files: for each table, its files, and host and number of the parts that each was made of.
        unreadable: files that are neither, or that another version wrote and this one cannot read.
    """

    parts: list[PartFile]
    files: dict[str, dict[Path, set[tuple[int, int]]]]
    unreadable: list[Path]

    def tables_of(self, part: PartFile, names: Collection[str]) -> list[str]:
        """Return those of some tables whose files do not have the rows of a part."""
        place = part.host, part.number
        return [name for name in names if not any(place in held for held in self.files.get(name, {}).values())]

    def rows(
        self,
        names: Collection[str],
        wanted: Callable[[int], bool] = lambda _rank: True,
        columns: Columns = ALL_COLUMNS,
        decode: Decode | None = None,
    ) -> Mapping[str, pa.Table]:
        """The rows of some tables in the parts of those hosts that are *wanted*, by rank; no table without rows.

        Args:
            decode: what remembers the results of `decode_part`; None for that itself.
        """
        decode = decode_part if decode is None else decode
        found: dict[str, list[pa.Table]] = {}
        for part in filter(lambda part: wanted(part.host), self.parts):
            with contextlib.suppress(FileNotFoundError):
                for name, rows in decode(part, self.tables_of(part, names), columns):
                    found.setdefault(name, []).append(rows)
        return {name: pa.concat_tables(some) for name, some in found.items()}


def find_kept(directory: Path, host: int | None = None) -> Kept:
    """Look for what an allocation has kept.

    Args:
        host: rank of a host, whose parts are looked for only; all files of tables are.
    """
    parts = list_parts(directory, host)  # before tables: a part is removed after the files with its rows are there
    later = [part.path for part in parts if not part.is_readable]
    kept = Kept([part for part in parts if part.is_readable], {}, later)
    for name, paths in list_tables(directory).items():
        for path in paths:
            try:
                stat = path.stat()
                places = _parts_of(path, name, stat.st_size, stat.st_mtime_ns)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, pa.ArrowException):
                places = None
            if places is None:
                kept.unreadable.append(path)
            else:
                kept.files.setdefault(name, {})[path] = places
    return kept


@functools.lru_cache(_KEEP_FILES)
def _parts_of(path: Path, name: str, _num_bytes: int, _changed_ns: int) -> set[tuple[int, int]] | None:
    """Host and number of the parts that a table's file was made of; None if it is of another version.

    A file does not change: its size and time tell it from one that was there before.
    """
    import pyarrow.parquet as pq  # late: most allocations have no such files, and it takes long to load

    metadata = pq.read_metadata(path)
    held = json.loads((metadata.metadata or {}).get(PARTS, b"[]"))
    places = {(int(host), int(number)) for host, number in held}
    return places if _has_columns(name, metadata.schema.to_arrow_schema()) else None


def _has_columns(name: str, schema: pa.Schema) -> bool:
    """Whether a file with some schema has the columns of a table; those of a later version may have others, too."""
    return name not in TABLES or all(
        schema.get_field_index(field.name) >= 0 and schema.field(field.name).type == field.type
        for field in schema_of(TABLES[name])
    )


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one table in a part.

    Args:
        source: where their records were; None for rows that were kept as such.
        numbers: those of the records, see `records.numbers_of`; None without.
    """

    table: str
    rows: pa.Table
    source: RecordSource | None = None
    numbers: Any = None


def decode_part(
    part: PartFile, names: Collection[str], columns: Columns = ALL_COLUMNS
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of some tables in a part; raises `FileNotFoundError` if it is gone."""
    for one in decode_rows(part, names, columns):
        wanted = columns.get(one.table)
        is_chosen = one.source is not None or wanted is None
        yield one.table, one.rows if is_chosen else one.rows.select(_chosen(TABLES[one.table], wanted or ()))


def decode_rows(part: PartFile, names: Collection[str], columns: Columns = ALL_COLUMNS) -> Iterator[DecodedRows]:
    """Yield the rows of some tables in a part; raises `FileNotFoundError` if it is gone.

    The records of a process come together: a part has a chunk of them for each second or two, and a table, of
    whichever size, costs as much as some thousand rows.

    Args:
        columns: those that are made of records; rows that were kept as such have all of theirs.
    """
    found = [(heading, contents) for heading, contents, _ in parse(read_part(part.path))]
    processes = {_key(heading): (heading, contents) for heading, contents in found if heading.what == NAMES}
    records_of: dict[tuple[object, ...], tuple[Heading, list[bytes]]] = {}
    for heading, contents in found:
        if heading.what == ROWS and heading.table in names:
            with contextlib.suppress(ValueError):
                yield DecodedRows(heading.table, _rows(TABLES[heading.table], json.loads(contents)))
        elif heading.what in RECORDS and len(contents) % RECORD_BYTES == 0:
            own = heading.what, *_key(heading), heading.offset_ns, heading.error_us
            records = unpack_records(contents) if part.is_packed else contents
            records_of.setdefault(own, (heading, []))[1].append(records)
    for heading, some in records_of.values():
        process = None
        source = RecordSource(*_key(heading), heading.what)
        for name, records in by_table(heading.what, as_records(b"".join(some)), names):
            if len(records):
                process = process or _process(heading, processes.get(_key(heading)))
                rows = columns_of(name, process, records, columns.get(name))
                yield DecodedRows(name, rows, source, numbers_of(records))


def _chosen(table: Table[Any], wanted: Collection[str]) -> list[str]:
    return [column.name for column in table.columns if column.name in wanted]


def _key(heading: Heading) -> tuple[str, int, int, int]:
    return heading.run, heading.mesh, heading.rank, heading.pid


def _rows(table: Table[Any], rows: list[list[Any]]) -> pa.Table:
    num = len(table.columns)
    return table_of_rows(table, [row for row in rows if len(row) == num])


def _process(heading: Heading, names: tuple[Heading, bytes] | None) -> KeptProcess:
    contents = b"" if names is None else names[1]
    actors_at = HEADER.size + 4
    num_actors = int.from_bytes(contents[HEADER.size : actors_at], "little")
    names_at = actors_at + num_actors * RECORD_BYTES
    header = contents[: HEADER.size].ljust(HEADER.size, b"\0")
    actors = contents[actors_at:names_at]
    correction = Correction(heading.offset_ns, heading.error_us)
    process = heading.run, heading.mesh, heading.rank, heading.host, heading.pid
    return _known(process, correction, header, actors, contents[names_at:])


def process_of(
    memory: Memory, run: str, mesh: int, rank: int, pid: int, host: str, correction: Correction
) -> KeptProcess:
    """What the numbers in the records of a live process stand for."""
    actors = memory(ACTORS_AT, NUM_ACTORS * RECORD_BYTES)
    process = run, mesh, rank, host, pid
    return _known(process, correction, memory(0, HEADER.size), actors, read_names(memory))


def _known(
    process: tuple[str, int, int, str, int], correction: Correction, header: bytes, actors: bytes, names: bytes
) -> KeptProcess:
    known = parse_all_names(names)
    places: dict[int, tuple[str, int]] = {}
    numbers: dict[int, int] = {}
    written = drop_empty(actors[: len(actors) // RECORD_BYTES * RECORD_BYTES])
    for record in map(DecodedRecord._make, RECORD.iter_unpack(written)):
        name = known[record.name] if record.name < len(known) else ()
        places[record.actor] = (name[1] if len(name) > 1 else "", record.num_bytes)
        numbers[record.actor] = record.msg
    incarnation = read_header(lambda at, size: header[at : at + size].ljust(size, b"\0"))[1]
    return KeptProcess(*process, incarnation, correction.offset_ns, correction.error_us, known, places, numbers)
