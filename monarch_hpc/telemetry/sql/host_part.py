"""A host's part of a question, and what the process that has answered one keeps for the next.

The rows of a host are those of its files, which grow by a part each minute and are the same otherwise, and those that
processes have in memory. A question that is asked again, as by a dashboard, is answered from its results of earlier
parts, if these can be combined, and from what is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.recent import Recent
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.kept.decoded import DecodedParts
from monarch_hpc.telemetry.kept.parts import PartFile, list_parts
from monarch_hpc.telemetry.kept.reading import Columns, Kept, find_kept
from monarch_hpc.telemetry.kept.records import RecordSource
from monarch_hpc.telemetry.scribe.procs import ProcPlace
from monarch_hpc.telemetry.sql.context import (
    KeptRows,
    RecordRows,
    RowSet,
    columns_named,
    columns_needed,
    combine,
    results_of,
)
from monarch_hpc.telemetry.sql.live import LiveReader, LiveRecords
from monarch_hpc.wire.control.scribe import BeginLeaf
from monarch_hpc.wire.tables.pieces import RECORD_TABLES, HostQuestion, QueryPiece

__all__ = ["HostPart"]

_KEEP_RESULTS = 64
"""Questions whose results of parts are kept: more than the panels of a dashboard."""

_MAX_RESULT_BYTES = 64 << 10
"""Limit on such a result: of some hundred groups. One of more is as large as the rows that it saves to read."""


@dataclass(frozen=True, slots=True)
class _PartResult:
    """The result of a piece over some parts of the host."""

    parts: frozenset[PartFile]
    result: Any


class HostPart:
    """Answers the parts of questions about one host."""

    def __init__(self) -> None:
        self._decoded = DecodedParts()
        self._results: Recent[str, _PartResult] = Recent(_KEEP_RESULTS)
        self._reader = LiveReader()
        self._parts: set[PartFile] = set()

    def answer(
        self,
        question: HostQuestion,
        rows: Mapping[str, Any],
        procs: Iterable[tuple[ProcPlace, int]],
        begin: BeginLeaf,
        correction: Correction,
    ) -> tuple[list[Any], int]:
        """Return the results of the pieces, and the number of records in memory that later ones have overwritten.

        Args:
            rows: those of tables that are not records, by table.
            procs: the processes of the host, with the descriptor of their memory.
        """
        names = [name for name in question.tables if name in RECORD_TABLES]
        if not self._parts.issubset(list_parts(Path(begin.directory)) if self._parts else ()):
            self._parts.clear()
            self._reader.forget()  # the records of a part that is gone may still be in memory
        # Before the files: what is in neither has been lost in between.
        live = self._reader.take(names, procs, begin.host, correction)
        kept = find_kept(Path(begin.directory)) if begin.directory else Kept([], {}, [])
        own = _OwnFiles(self._decoded, kept, begin, live, question)
        self._reader.keep(live, own.known)
        self._parts.update(*own.parts.values())
        rest = RowSet(rows, own.of_others, question.since_s)
        results = []
        for piece in question.pieces:
            if piece.is_divisible and len(piece.tables) == 1 and piece.tables[0] in names and not question.since_s:
                results.append(self._divided(piece, own, rest))
            else:
                whole = {name: own.rows(name, own.parts[name]) for name in piece.tables if name in names}
                results += results_of([piece], rest, [], whole)
        return results, live.num_lost

    def _divided(self, piece: QueryPiece, own: _OwnFiles, rest: RowSet) -> Any:
        """The result of a piece, of which that over earlier parts is kept."""
        (name,) = piece.tables
        parts = frozenset(own.parts[name])
        kept = self._results.get(piece.host)
        if kept is None or not kept.parts <= parts:
            kept = _PartResult(frozenset(), None)
        new = [part for part in own.parts[name] if part not in kept.parts]
        if new:
            rows = RecordRows([one for part in new for one in own.records(name, part)])
            (result,) = results_of([piece], rest, [], {name: rows})
            kept = _PartResult(parts, result if kept.result is None else combine(piece, [kept.result, result]))
            if kept.result.nbytes <= _MAX_RESULT_BYTES:
                self._results[piece.host] = kept
        latest = own.rows(name, [])
        if kept.result is not None and latest.is_empty:
            return kept.result
        (result,) = results_of([piece], rest, [], {name: latest})
        return result if kept.result is None else combine(piece, [kept.result, result])


class _OwnFiles:
    """The rows of records of one host, in its files and in memory.

    Attributes:
        parts: for each table, the parts of the host that have its records.
        known: for each table, the numbers of records in these that may be in memory, too.
        of_others: where the rows of tables that are not records are kept.
    """

    def __init__(
        self, decoded: DecodedParts, kept: Kept, begin: BeginLeaf, live: LiveRecords, question: HostQuestion
    ) -> None:
        self._decoded = decoded
        self._kept = kept
        self._live = live
        self._named = columns_named(question.pieces)
        self._needed: Columns = columns_needed(question.pieces)
        self._place = KeptRows(Path(begin.directory), ranks=[begin.rank], hosts={begin.rank: begin.host})
        self.of_others = [self._place] if begin.directory else []
        own = [part for part in kept.parts if part.host == begin.rank]
        self.parts: dict[str, list[PartFile]] = {}
        self.known: dict[str, dict[RecordSource, list[Any]]] = {}
        self._as_such: dict[str, list[Any]] = {}
        decoded.begin(own, live.least)
        for name in live.taken:
            self.parts[name] = []
            known = self.known[name] = {}
            as_such = self._as_such[name] = []
            for part in own:
                if not kept.tables_of(part, [name]):
                    continue
                try:
                    index = decoded.index(part, name, self._named)
                except FileNotFoundError:
                    continue  # it has become a part of a table, or was the oldest
                self.parts[name].append(part)
                as_such += index.rows
                for source, numbers in index.numbers.items():
                    known.setdefault(source, []).extend(numbers)

    def records(self, name: str, part: PartFile) -> list[Any]:
        """The rows of a table that are records in a part; none if it is gone by now."""
        try:
            return [rows for _, rows in self._decoded.rows(part, [name], self._named, only_records=True)]
        except FileNotFoundError:
            return []

    def rows(self, name: str, parts: Collection[PartFile]) -> RecordRows:
        """All rows of a table but those that are records in other parts."""
        records = [rows for part in parts for rows in self.records(name, part)]
        older, files = self._as_such[name], [*self._kept.files.get(name, {})]
        columns = self._needed if older or files else self._named
        live = self._live.rows(name, columns, self.known[name])
        # Calls that were open then; those of them that are in memory may have ended.
        every = self._live.rows(name, self._needed, {}) if older else live
        return RecordRows([*records, live], older, files, every, self._place)
