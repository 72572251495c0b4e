"""A host's part of a question, and what the process that has answered one keeps for the next.

The rows of a host are those of its files, which grow by a part each minute and are the same otherwise, and those that
processes have in memory. A question that is asked again, as by a dashboard, is answered from its results of earlier
parts, if these can be combined, and from what is new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.recent import Recent
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.kept.decoded import DecodedParts, PartIndex
from monarch_hpc.telemetry.kept.parts import PartFile
from monarch_hpc.telemetry.kept.reading import Columns, Kept, find_kept
from monarch_hpc.telemetry.kept.records import RecordSource
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, columns_named, columns_needed, combine
from monarch_hpc.telemetry.sql.live import PLACES, LiveReader, LiveRecords
from monarch_hpc.telemetry.sql.record_rows import RecordRows, index_of_file, results_of_records
from monarch_hpc.wire.control.scribe import BeginLeaf
from monarch_hpc.wire.tables.pieces import RECORD_TABLES, HostQuestion, QueryPiece

__all__ = ["HostPart"]

_KEEP_RESULTS = 64
"""Questions whose results of parts are kept: more than the panels of a dashboard."""

_MAX_RESULT_BYTES = 64 << 10
"""Limit on such a result: of some hundred groups. One of more is as large as the rows that it saves to read."""


_File = PartFile | Path
"""A part, or a file of a table."""


@dataclass(frozen=True, slots=True)
class _FileResult:
    """The result of a piece over some files of the host."""

    files: list[_File]
    result: Any


class HostPart:
    """Answers the parts of questions about one host."""

    def __init__(self) -> None:
        self._decoded = DecodedParts()
        self._results: Recent[str, _FileResult] = Recent(_KEEP_RESULTS)
        self._reader = LiveReader()
        self._indexes: dict[tuple[Path, str], PartIndex] = {}
        self._known: set[_File] = set()

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
        # Before the files: what is in neither has been lost in between.
        live = self._reader.take(names, procs, begin.host, correction)
        kept = find_kept(Path(begin.directory), begin.rank) if begin.directory else Kept([], {}, [])
        if self._known and not self._known.issubset(_files_of(kept)):
            self._known.clear()
            self._reader.forget()  # the records of a file that is gone may still be in memory
            live = self._reader.take(names, procs, begin.host, correction)
            kept = find_kept(Path(begin.directory), begin.rank)
        own = _OwnFiles(self._decoded, self._indexes, kept, begin, live, question)
        self._reader.keep(live, own.known)
        self._known.update(*own.files.values())
        rest = RowSet(rows, own.of_others, question.since_s)
        results = []
        for piece in question.pieces:
            if piece.is_divisible and len(piece.tables) == 1 and piece.tables[0] in names and not question.since_s:
                results.append(self._divided(piece, own, rest))
            else:
                whole = {name: own.rows(name, own.files[name]) for name in piece.tables if name in names}
                results += results_of_records([piece], rest, whole)
        return results, live.num_lost

    def _divided(self, piece: QueryPiece, own: _OwnFiles, rest: RowSet) -> Any:
        """The result of a piece, of which that over earlier files is kept."""
        (name,) = piece.tables
        files = own.files[name]
        kept = self._results.get(piece.host)
        if kept is None or (kept.files != files and not {*kept.files}.issubset(files)):
            kept = _FileResult([], None)
        if kept.files != files:
            known = {*kept.files}
            new = [file for file in files if file not in known]
            (result,) = results_of_records([piece], rest, {name: own.written(name, new)})
            kept = _FileResult(files, result if kept.result is None else combine(piece, [kept.result, result]))
            if kept.result.nbytes <= _MAX_RESULT_BYTES:
                self._results[piece.host] = kept
        latest = own.rows(name, [])
        if kept.result is not None and latest.is_empty:
            return kept.result
        (result,) = results_of_records([piece], rest, {name: latest})
        return result if kept.result is None else combine(piece, [kept.result, result])


def _files_of(kept: Kept) -> set[_File]:
    return {*kept.parts, *(path for paths in kept.files.values() for path in paths)}


class _OwnFiles:
    """The rows of records of one host, in its files and in memory.

    Args:
        indexes: what is known of files of tables.

    Attributes:
        files: for each table, the files that have records of the host.
        known: for each table, the numbers of records in these that may be in memory, too.
        of_others: where the rows of tables that are not records are kept.
    """

    def __init__(
        self,
        decoded: DecodedParts,
        indexes: dict[tuple[Path, str], PartIndex],
        kept: Kept,
        begin: BeginLeaf,
        live: LiveRecords,
        question: HostQuestion,
    ) -> None:
        self._decoded = decoded
        self._indexes = indexes
        self._kept = kept
        self._live = live
        self._named = columns_named(question.pieces)
        self._needed: Columns = columns_needed(question.pieces)
        self._place = KeptRows(Path(begin.directory), ranks=[begin.rank], hosts={begin.rank: begin.host})
        self.of_others = [self._place] if begin.directory else []
        self._parts = kept.parts
        self.files: dict[str, list[_File]] = {}
        self.known: dict[str, dict[RecordSource, list[Any]]] = {}
        self._as_such: dict[str, list[Any]] = {}
        decoded.begin(self._parts, live.least)
        present = {(path, name) for name, paths in kept.files.items() for path in paths}
        for gone in [key for key in indexes if key not in present]:
            del indexes[gone]
        for name in live.taken:
            self._find(name)

    def _find(self, name: str) -> None:
        """Find the files of a table, and what must be known of each."""
        files: list[_File] = []
        known: dict[RecordSource, list[Any]] = {}
        as_such: list[Any] = []
        self.files[name], self.known[name], self._as_such[name] = files, known, as_such
        parts = (part for part in self._parts if self._kept.tables_of(part, [name]))
        least = {source: number for source, number in self._live.least.items() if source.what in PLACES[name]}
        for file in (*parts, *self._kept.files.get(name, ())):
            try:
                if isinstance(file, PartFile):
                    index = self._decoded.index(file, name, self._named)
                else:
                    index = self._indexes.get((file, name)) or index_of_file(file, name, self._place, least)
                    self._indexes[file, name] = index
                    index.forget_below(least)
            except FileNotFoundError:
                continue  # it has become a part of a table, or was the oldest
            files.append(file)
            as_such += index.rows
            for source, numbers in index.numbers.items():
                known.setdefault(source, []).extend(numbers)

    def written(self, name: str, files: Iterable[_File]) -> RecordRows:
        """The rows of a table that are records in some files; none of those that are gone by now."""
        records: list[Any] = []
        paths = []
        for file in files:
            if isinstance(file, PartFile):
                with contextlib.suppress(FileNotFoundError):
                    found = self._decoded.rows(file, [name], self._named, only_records=True)
                    records += [rows for _, rows in found]
            else:
                paths.append(file)
        return RecordRows(records, paths, place=self._place)

    def rows(self, name: str, files: Iterable[_File]) -> RecordRows:
        """All rows of a table but those that are records in other files."""
        written, older = self.written(name, files), self._as_such[name]
        live = self._live.rows(name, self._needed if older else self._named, self.known[name])
        # Calls that were open then; those of them that are in memory may have ended.
        every = self._live.rows(name, self._needed, {}) if older else None
        return RecordRows([*written.rows, live], written.files, older, every, self._place)
