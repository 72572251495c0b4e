"""The rows of parts that earlier questions of this process were about: parts never change, and take long to decode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.kept.parts import PartFile
from monarch_hpc.telemetry.kept.reading import Columns, decode_rows
from monarch_hpc.telemetry.kept.records import RecordSource
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.pieces import RECORD_TABLES

__all__ = ["DecodedParts", "PartIndex"]

_MAX_BYTES = 32 << 20
"""Limit on the memory of rows that are kept: of a million calls with the columns of a usual question. The helper and
what it has started have 250 MiB after questions, of which libraries take more than half."""

_ENTRY_BYTES = 1000
"""Memory of an entry beside that of its rows."""


@dataclass(slots=True, eq=False)
class _Decoded:
    """The rows of one table in a part, with some columns: those that were kept as such, and those that records are."""

    columns: frozenset[str]
    as_such: list[Any]
    of_records: list[Any]
    num_bytes: int
    question: int


@dataclass(frozen=True, slots=True)
class PartIndex:
    """What is known of a table in a part, however old the question was that has decoded it.

    Attributes:
        rows: those that were kept as such, with all columns.
        numbers: those of its records that processes may have in memory, too.
    """

    rows: list[Any] = field(default_factory=list)
    numbers: dict[RecordSource, list[Any]] = field(default_factory=dict)

    def forget_below(self, least: Mapping[RecordSource, int]) -> None:
        """Forget numbers that no process has in memory any more.

        Args:
            least: where processes have records in memory, and the least number that one has.
        """
        for source in [*self.numbers]:
            number = least.get(source)
            if number is None or all(some.max() < number for some in self.numbers[source]):
                del self.numbers[source]


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
        self._indexes: dict[tuple[PartFile, str], PartIndex] = {}
        self._least: Mapping[RecordSource, int] | None = None
        self._parts: list[PartFile] = []

    @property
    def num_bytes(self) -> int:
        """The memory of all rows that are kept."""
        return self._num_bytes

    def begin(self, parts: Collection[PartFile] = (), least: Mapping[RecordSource, int] | None = None) -> None:
        """Begin a question: what it uses is kept before what earlier ones have used.

        Args:
            parts: all that there are: what is known of others is forgotten.
            least: where processes have records in memory, and the least number that one has: they never have smaller
                ones again. Without it, `index` knows nothing.
        """
        self._question += 1
        self._least = least
        if self._parts != [*parts]:
            self._parts = [*parts]
            present = {*parts}
            self._indexes = {key: index for key, index in self._indexes.items() if key[0] in present}

    def index(self, part: PartFile, name: str, columns: Columns) -> PartIndex:
        """Return what is known of a table of records in a part.

        Args:
            columns: those with which the rows are decoded if nothing is known of them.
        """
        assert self._least is not None, "a question that asks for it says what is in memory"
        index = self._indexes.get((part, name))
        if index is None:
            self._entries.pop((part, name), None)
            for _ in self.rows(part, [name], columns):
                pass
            index = self._indexes[part, name]
        index.forget_below(self._least)
        return index

    def rows(
        self, part: PartFile, names: Collection[str], columns: Columns, *, only_records: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Yield what `decode_part` does, in the order of tables.

        Args:
            only_records: leave out rows that were kept as such.
        """
        wanted = {name: self._columns(name, columns) for name in names}
        known = {name: self._entries.get((part, name)) for name in names}
        lacking = {
            name: wanted[name] if one is None else wanted[name] | one.columns
            for name, one in known.items()
            if one is None or not wanted[name] <= one.columns
        }
        made = self._decode(part, lacking)
        for name in names:
            entry = made.get(name) or known[name]
            assert entry is not None, "it was decoded now, or before"
            self._keep((part, name), entry)
            for rows in entry.of_records if only_records else (*entry.as_such, *entry.of_records):
                yield name, rows.select([one for one in rows.column_names if one in wanted[name]])

    def _decode(self, part: PartFile, lacking: Mapping[str, frozenset[str]]) -> dict[str, _Decoded]:
        if not lacking:
            return {}
        made = {name: _Decoded(columns, [], [], _ENTRY_BYTES, self._question) for name, columns in lacking.items()}
        indexes = {name: PartIndex() for name in lacking}
        for one in decode_rows(part, lacking.keys(), lacking):
            entry, rows = made[one.table], one.rows
            if one.source is None:
                indexes[one.table].rows.append(rows)
                rows = rows.select([column for column in rows.column_names if column in entry.columns])
                entry.as_such.append(rows)
            else:
                entry.of_records.append(rows)
                if one.source in (self._least or ()):
                    indexes[one.table].numbers.setdefault(one.source, []).append(one.numbers)
            entry.num_bytes += rows.nbytes
        if self._least is not None:
            self._indexes.update({(part, name): indexes[name] for name in indexes if name in RECORD_TABLES})
        return made

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
