"""The rows of parts that earlier questions of this process were about: parts never change, and take long to decode."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.kept.parts import PartFile
from monarch_hpc.telemetry.kept.reading import Columns, decode_part
from monarch_hpc.wire.tables.catalog import TABLES

__all__ = ["DecodedParts"]

_MAX_BYTES = 64 << 20
"""Limit on the memory of rows that are kept: of nearly a million calls with the columns of a usual question. The helper
and what it has started have 250 MiB after questions, of which libraries take more than half."""

_ENTRY_BYTES = 1000
"""Memory of an entry beside that of its rows."""


@dataclass(slots=True, eq=False)
class _Decoded:
    """The rows of one table in a part, with some columns."""

    columns: frozenset[str]
    rows: list[Any]
    num_bytes: int
    question: int


class DecodedParts:
    """The rows of parts, as far as they fit.

    Args:
        max_bytes: limit on their memory.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._question = 0
        self._entries: dict[tuple[PartFile, str], _Decoded] = {}  # what was used last is last

    @property
    def num_bytes(self) -> int:
        """The memory of all rows that are kept."""
        return self._num_bytes

    def begin(self) -> None:
        """Begin a question: what it uses is kept before what earlier ones have used."""
        self._question += 1

    def rows(self, part: PartFile, names: Collection[str], columns: Columns) -> Iterator[tuple[str, Any]]:
        """Yield what `decode_part` does, in the order of tables."""
        wanted = {name: self._columns(name, columns) for name in names}
        known = {name: self._entries.get((part, name)) for name in names}
        lacking = {
            name: wanted[name] if one is None else wanted[name] | one.columns
            for name, one in known.items()
            if one is None or not wanted[name] <= one.columns
        }
        decoded: dict[str, list[Any]] = {name: [] for name in lacking}
        if lacking:
            for name, rows in decode_part(part, lacking.keys(), lacking):
                decoded[name].append(rows)
        for name in names:
            tables = decoded.get(name)
            entry = known[name]
            if tables is not None:
                num_bytes = _ENTRY_BYTES + sum(rows.nbytes for rows in tables)
                entry = _Decoded(lacking[name], tables, num_bytes, self._question)
            assert entry is not None, "it was decoded now, or before"
            self._keep((part, name), entry)
            for rows in entry.rows:
                yield name, rows.select([one for one in rows.column_names if one in wanted[name]])

    @staticmethod
    def _columns(name: str, columns: Columns) -> frozenset[str]:
        return frozenset(one.name for one in TABLES[name].columns if one.name in columns.get(name, (one.name,)))

    def _keep(self, key: tuple[PartFile, str], entry: _Decoded) -> None:
        """Keep an entry in its new place, if there is room without those that the same question has used."""
        known = self._entries.pop(key, None)
        self._num_bytes -= 0 if known is None else known.num_bytes
        while self._num_bytes + entry.num_bytes > self._max_bytes:
            oldest = next(iter(self._entries), None)
            if oldest is None or self._entries[oldest].question == self._question:
                return
            self._num_bytes -= self._entries.pop(oldest).num_bytes
        entry.question = self._question
        self._entries[key] = entry
        self._num_bytes += entry.num_bytes
