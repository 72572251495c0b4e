"""The records of a host that are in the memory of its processes, and their rows as Arrow's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import read_open
from monarch_hpc.telemetry.kept.arrow import table_of_rows
from monarch_hpc.telemetry.kept.chunks import CASTS, EVENTS, METRICS, SENDS, SPANS, TRANSFERS
from monarch_hpc.telemetry.kept.columns import KeptProcess, columns_of
from monarch_hpc.telemetry.kept.reading import Columns, process_of
from monarch_hpc.telemetry.kept.records import RecordSource, TakenRecords, take_records, without
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.wire.tables.pieces import sql_tables
from monarch_hpc.wire.tables.procs import RunProcess

__all__ = ["PLACES", "LiveReader", "LiveRecords"]

PLACES = {
    "handled": {EVENTS},
    "sends": {EVENTS, SENDS, CASTS},
    "metrics": {METRICS},
    "spans": {SPANS},
    "transfers": {TRANSFERS},
}
"""The memory that has the records of a table."""


_MAX_BYTES = 16 << 20
"""Limit on the memory of records that are not read again: those that no part has yet, of some ten busy procs."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The records of one table in one place of a process.

    Args:
        process: reads what their numbers stand for.
    """

    source: RecordSource
    process: Callable[[], KeptProcess]
    records: TakenRecords


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The records of some tables in the memory of processes.

    Attributes:
        taken: those that are complete, by table.
        open: rows of calls and spans that have not ended, by table.
        least: for all places of the processes, the least number that a record there has now or later.
        num_lost: records that later ones have overwritten.
    """

    taken: dict[str, list[_Taken]] = field(default_factory=dict)
    open: dict[str, Any] = field(default_factory=dict)
    least: dict[RecordSource, int] = field(default_factory=dict)
    num_lost: int = 0

    def rows(self, name: str, columns: Columns, known: Mapping[RecordSource, Sequence[Any]]) -> Any:
        """Return some columns of the rows of a table.

        Args:
            known: numbers of records that are left out, see `records.numbers_of`.
        """
        wanted = columns.get(name)
        found = [_chosen(self.open[name], wanted)]
        for one in self.taken[name]:
            records = without(one.records.records, known.get(one.source, ()))
            if len(records):
                found.append(columns_of(name, one.process(), records, wanted))
        return pa.concat_tables(found)


class LiveReader:
    """Reads the records in the memory of the processes of a host for one question after the other."""

    def __init__(self) -> None:
        self._before: dict[tuple[RecordSource, str], TakenRecords] = {}

    def take(
        self,
        names: Collection[str],
        procs: Iterable[tuple[ProcPlace, int]],
        host: str,
        correction: Correction,
    ) -> LiveRecords:
        """Return the records of some tables that are in the memory of processes.

        Args:
            procs: the processes of the host, with the descriptor of their memory.
        """
        places = set[str]().union(*(PLACES[name] for name in names))
        taken: dict[str, list[_Taken]] = {name: [] for name in names}
        opened: dict[str, list[Sequence[Any]]] = {name: [] for name in names}
        least: dict[RecordSource, int] = {}
        num_lost = 0
        for place, fd in procs if names else ():
            memory = memory_of(fd)
            sources = {what: RecordSource(place.run, place.mesh, place.rank, place.pid, what) for what in places}
            least.update(dict.fromkeys(sources.values(), 0))
            keys = {(name, what): (source, name) for what, source in sources.items() for name in names}
            before = {place: self._before[key] for place, key in keys.items() if key in self._before}
            found, lost = take_records(memory, places, names, before)
            num_lost += lost
            for one in found:
                # Later than the records: what their numbers stand for is written before.
                process = partial(process_of, memory, place.run, place.mesh, place.rank, place.pid, host, correction)
                taken[one.table].append(_Taken(sources[one.what], process, one))
                least[sources[one.what]] = one.least
            process_row = RunProcess(place.run, place.mesh, place.rank, host, place.pid, "ready", "")
            for name in names:
                columns = sql_tables()[name].columns
                began = read_open(name, memory, process_row, correction)
                opened[name] += [[getattr(row, column.name) for column in columns] for row in began]
        rows = {name: table_of_rows(sql_tables()[name], some) for name, some in opened.items()}
        return LiveRecords(taken, rows, least, num_lost)

    def keep(self, live: LiveRecords, known: Mapping[str, Mapping[RecordSource, Sequence[Any]]]) -> None:
        """Have the next question read only what is new.

        Args:
            live: what was taken now.
            known: for each of its tables, numbers of records that are not wanted again, see `forget`.
        """
        num_bytes = sum(one.records.nbytes for (_, name), one in self._before.items() if name not in live.taken)
        self._before = {key: one for key, one in self._before.items() if key[1] not in live.taken}
        for name, some in live.taken.items():
            for one in some:
                records = without(one.records.records, known[name].get(one.source, ()))
                num_bytes += records.nbytes
                if one.records.is_lasting and num_bytes <= _MAX_BYTES:
                    # A copy is no part of what was read with others.
                    self._before[one.source, name] = replace(one.records, records=records.copy())

    def forget(self) -> None:
        """Have the next question read everything: those are wanted again that were not."""
        self._before.clear()


def _chosen(rows: Any, wanted: Collection[str] | None) -> Any:
    return rows if wanted is None else rows.select([name for name in rows.column_names if name in wanted])
