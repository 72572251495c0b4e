"""Runs texts in SQL over the rows of tables.

With `record_rows` the door to DataFusion, which runs in processes of its own only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import datafusion
import pyarrow as pa
from datafusion.unparser import Dialect, Unparser

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.kept.arrow import least_time, schema_of, table_of_rows
from monarch_hpc.telemetry.kept.decoded import DecodedParts
from monarch_hpc.telemetry.kept.reading import ALL_COLUMNS, Columns, find_kept
from monarch_hpc.telemetry.sql.plan import PARTIAL, QueryPlan, tables_of
from monarch_hpc.wire.tables.pieces import ON_HOSTS, RECORD_TABLES, QueryPiece, sql_tables
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "KEYS",
    "AnswerTooLong",
    "KeptRows",
    "RowSet",
    "columns_named",
    "columns_needed",
    "combine",
    "context_of",
    "finish",
    "has_rows",
    "open_context",
    "register",
    "results_of",
    "rows_of",
    "rows_since",
    "run",
    "union",
    "unparse",
]

_QUERY_BYTES = 1 << 30
"""Limit on the memory that the engine gives to sorts and groups; it does not use the disk."""

KEYS = ("run", "mesh", "rank", "pid", "record")
"""Columns that tell a row of a process from others."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """RowSet in the files of an allocation.

    Args:
        directory: the allocation's.
        ranks: only those of these hosts; None for all.
        without: not those of these hosts.
        hosts: names of hosts by rank, as far as they are known.
    """

    directory: Path
    ranks: Collection[int] | None = None
    without: Collection[int] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)

    def has(self, rank: int) -> bool:
        """Whether the rows of a host are wanted."""
        return rank not in self.without and (self.ranks is None or rank in self.ranks)

    def chosen(self, frame: Any) -> Any:
        """Those rows of a frame, whose column ``host`` has the name of their host, that are wanted."""
        names = [datafusion.lit(self.hosts[rank]) for rank in (self.ranks or self.without) if rank in self.hosts]
        if self.ranks is None and not names:
            return frame
        column = datafusion.col("host")
        return frame.filter(datafusion.functions.in_list(column, names, negated=self.ranks is None))


@dataclass(frozen=True, slots=True)
class RowSet:
    """The rows that texts are about.

    Args:
        live: by table, as Arrow's tables; others are empty.
        kept: those in files that are joined to them.
        since_s: Unix time of the oldest row of the past that is of interest; 0 for all.
    """

    live: Mapping[str, Any] = field(default_factory=dict)
    kept: Sequence[KeptRows] = ()
    since_s: float = 0.0


class AnswerTooLong(Exception):
    """An answer has more than its limit of bytes after so many rows."""

    def __init__(self, num_rows: int, max_bytes: int) -> None:
        super().__init__(num_rows, max_bytes)
        self.num_rows, self.max_bytes = num_rows, max_bytes


_decoded = DecodedParts()
"""The rows of parts of other hosts, and of tables that are not records, for the next question of this process."""


def open_context() -> Any:
    """Return a context without tables."""
    limits = datafusion.RuntimeEnvBuilder().with_greedy_memory_pool(_QUERY_BYTES).with_disk_manager_disabled()
    return datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1), limits)


def run(context: Any, sql: str) -> Any:
    """Return the frame of a question; its rows are found when they are asked for."""
    # Nothing but questions: no CREATE, COPY, INSERT, SET; and it has no functions that read files.
    options = datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    return context.sql_with_options(sql, options)


def unparse(plan: Any) -> str:
    """Return a logical plan, or a part of one, as SQL."""
    return str(Unparser(Dialect.default()).plan_to_sql(plan))


def register(context: Any, name: str, rows: Any) -> None:
    """Make a table of rows."""
    batches = rows.to_batches(max_chunksize=max(len(rows), 1))
    context.register_record_batches(name, [batches or [pa.RecordBatch.from_pylist([], schema=rows.schema)]])


def columns_named(pieces: Iterable[QueryPiece]) -> dict[str, set[str]]:
    """Return the columns of tables of records that the texts of some pieces are about, and the time; all of others.

    A word in the text of a piece is a column of its tables, or something else.
    """
    found: dict[str, set[str]] = {}
    for piece in pieces:
        is_open = "*" in re.sub(r"count\(\*\)", "", piece.host, flags=re.IGNORECASE)  # a star stands for all of them
        words = {word.lower() for word in re.findall(r"\w+", piece.host)}
        for table in piece.tables:
            known = {column.name for column in sql_tables()[table].columns}
            # By all columns of others than records, live rows are told from kept ones.
            named = known if is_open or table not in RECORD_TABLES else known.intersection((*words, "t"))
            found.setdefault(table, set()).update(named)
    return found


def columns_needed(pieces: Iterable[QueryPiece]) -> dict[str, set[str]]:
    """Return those columns, and those that tell live rows from kept ones."""
    found = columns_named(pieces)
    for table, named in found.items():
        named.update({column.name for column in sql_tables()[table].columns}.intersection((*KEYS, "host", "t")))
    return found


def context_of(
    rows: RowSet,
    names: Collection[str],
    unreadable: list[str],
    pulled: Collection[str] = (),
    columns: Columns = ALL_COLUMNS,
) -> Any:
    """A context with some tables; those that were *pulled* have their kept rows already.

    Args:
        columns: those that tables have; the rows may have more.
    """
    context = open_context()
    asked = [name for name in names if name not in pulled]
    kept = _read_kept(context, rows, asked, unreadable, columns) if rows.kept and asked else {}
    for name in names:
        table, live = sql_tables()[name], rows.live.get(name)
        chosen = [one.name for one in table.columns if one.name in columns.get(name, (one.name,))]
        live = (table_of_rows(table, []) if live is None else live).select(chosen)
        live = rows_since(table, live, rows.since_s)
        if kept.get(name):
            context.register_view(name, _join(context, table, chosen, live, kept[name]))
        else:
            register(context, name, live)
    return context


def rows_since(table: Table[Any], rows: Any, since_s: float) -> Any:
    """Those rows that are of interest."""
    if not (table.history and since_s and len(rows)):
        return rows
    import pyarrow.compute  # late: it takes as long to load as the engine itself

    return rows.filter(pyarrow.compute.greater_equal(rows.column("t"), least_time(since_s)))


def _read_kept(
    context: Any, rows: RowSet, names: Collection[str], unreadable: list[str], needed: Columns
) -> dict[str, list[Any]]:
    """The kept rows of some tables, each as frames of the engine."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    _decoded.begin()
    for some in rows.kept:
        kept = find_kept(some.directory)
        unreadable += map(str, kept.unreadable)
        for name, rows_of_parts in kept.rows(names, some.has, needed, _decoded.rows).items():
            found[name].append(context.from_arrow(rows_of_parts))
        for name in names:
            found[name] += [some.chosen(context.read_parquet(str(path))) for path in kept.files.get(name, {})]
    if rows.since_s:
        least = datafusion.lit(least_time(rows.since_s))
        for name in names:
            if sql_tables()[name].history:
                found[name] = [frame.filter(datafusion.col("t") >= least) for frame in found[name]]
    return found


def _join(context: Any, table: Table[Any], columns: Sequence[str], live: Any, kept: list[Any]) -> Any:
    """Some columns of the live rows of a table, and of those kept rows that are not among them."""
    every = union([frame.select(*columns) for frame in kept])
    keys = [name for name in KEYS if name in columns]
    own_names = {column.name for column in table.columns}
    if "record" not in own_names and "state" not in own_names:
        return every.union(context.from_arrow(live)).distinct() if len(live) else every.distinct()
    if not len(live):
        return every
    own = context.from_arrow(live)
    return every.join(own.select(*keys), on=keys, how="anti").select(*columns).union(own)


def union(frames: list[Any]) -> Any:
    """Frames behind each other; the engine descends as deep as unions are in each other."""
    while len(frames) > 1:
        pairs = zip(frames[::2], frames[1::2], strict=False)
        frames = [*(one.union(other) for one, other in pairs), *frames[len(frames) // 2 * 2 :]]
    return frames[0]


# ---- a question over many hosts ----


def has_rows(some: KeptRows) -> bool:
    """Whether there may be kept rows of the hosts that are wanted, or files that cannot be read."""
    kept = find_kept(some.directory)
    return bool(kept.files or kept.unreadable or any(some.has(part.host) for part in kept.parts))


def results_of(pieces: Sequence[QueryPiece], rows: RowSet, unreadable: list[str]) -> list[Any]:
    """Return the results of the pieces over some rows."""
    columns = columns_needed(pieces)
    context = context_of(rows, columns.keys(), unreadable, columns=columns)
    return [rows_of(run(context, piece.host)) for piece in pieces]


def combine(piece: QueryPiece, results: Iterable[Any]) -> Any:
    """Return the results of several hosts as one."""
    every = _concat(results)
    if not piece.merge:
        return every
    context = open_context()
    register(context, PARTIAL, every)
    return _concat([every.schema.empty_table(), rows_of(run(context, piece.merge))])


def finish(
    plan: QueryPlan,
    results: Sequence[Sequence[Any]],
    rows: RowSet,
    unreadable: list[str],
    max_bytes: int = _QUERY_BYTES,
) -> Any:
    """Return the answer to a question.

    Args:
        results: those of each piece, of which there is one at least.
        rows: those of the tables that are not on hosts.
        unreadable: gets the files that cannot be read.
        max_bytes: limit on the memory of the answer.

    Raises:
        AnswerTooLong: it takes more; the rest of it is not computed.
    """
    if plan.rule == "pull":
        live = {**rows.live}
        for piece, some in zip(plan.pieces, results, strict=True):
            (table,) = piece.tables
            live[table] = _widened(sql_tables()[table], _concat(some))
        pulled = [table for piece in plan.pieces for table in piece.tables]
        context = context_of(replace(rows, live=live), tables_of(plan.final), unreadable, pulled)
        return rows_of(run(context, plan.final), max_bytes)
    others = [name for name in tables_of(plan.final) if name not in ON_HOSTS] if plan.rule == "lookup" else []
    context = context_of(rows, others, unreadable)
    register(context, PARTIAL, _concat(results[0]))
    return rows_of(run(context, plan.final), max_bytes)


def rows_of(frame: Any, max_bytes: int = _QUERY_BYTES) -> Any:
    """The rows of a frame, which the engine sorts and groups within its limit, but would return without one."""
    batches, num_rows, num_bytes = [], 0, 0
    for one in frame.execute_stream():
        batch = one.to_pyarrow()
        batches.append(batch)
        num_rows += len(batch)
        num_bytes += batch.nbytes
        if num_bytes > max_bytes:
            raise AnswerTooLong(num_rows, max_bytes)
    # Those of files may have another representation of text than the frame says.
    return _concat(pa.Table.from_batches([batch]) for batch in batches) if batches else frame.schema().empty_table()


def _concat(results: Iterable[Any]) -> Any:
    """Results behind each other; versions of the engine may differ in how they represent text."""
    tables = [*results]
    schema = pa.schema([(field.name, field.type) for field in tables[0].schema])
    return pa.concat_tables([_as(table, schema) for table in tables])


def _as(table: Any, schema: Any) -> Any:
    if [(field.name, field.type) for field in table.schema] == [(field.name, field.type) for field in schema]:
        return pa.Table.from_arrays(table.columns, schema=schema)  # to cast loads functions that little else needs
    return table.select(schema.names).cast(schema)


def _widened(table: Table[Any], rows: Any) -> Any:
    """With all columns: those that were not pulled are not looked at, and have no values."""
    schema = schema_of(table)
    columns = [
        rows.column(one.name).cast(one.type) if one.name in rows.column_names else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
