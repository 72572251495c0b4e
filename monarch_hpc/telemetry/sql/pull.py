"""The texts by which hosts send what a question needs of their tables, found on the plan of the engine.

A plan is one of DataFusion's, which is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.sql.plan import MAX_ROWS, QueryPlan
from monarch_hpc.wire.tables.pieces import ON_HOSTS, QueryPiece, sql_tables

__all__ = ["pull"]


@dataclass(frozen=True, slots=True)
class _Scan:
    """What one place of a question needs of a table.

    Args:
        columns: their names.
        where: the rows; empty for all.
    """

    table: str
    columns: Sequence[str]
    where: str


def pull(sql: str, tables: Sequence[str], plan: Any, unparse: Callable[[Any], str]) -> QueryPlan:
    """Return how the tables of a question are pulled.

    Args:
        tables: those that its text names.
        plan: the optimised logical plan.
        unparse: writes a part of the plan as SQL.
    """
    scans = [*_scans(plan, unparse)]
    text = plan.display_indent()
    pieces = []
    for table in (name for name in tables if name in ON_HOSTS):
        own = [scan for scan in scans if scan.table == table]
        if not own or len(own) != text.count(f"TableScan: {table} ") + text.count(f"TableScan: {table}\n"):
            # One in a subquery, which the plan does not show as an input.
            pieces.append(QueryPiece([table], _latest(table, f"SELECT * FROM {table}")))
            continue
        named = {name for scan in own for name in scan.columns}
        columns = [one.name for one in sql_tables()[table].columns if one.name in named]
        columns = columns or [sql_tables()[table].columns[0].name]
        where = " OR ".join(dict.fromkeys(f"({scan.where})" for scan in own))
        chosen = f" WHERE {where}" if all(scan.where for scan in own) else ""
        pieces.append(QueryPiece([table], _latest(table, f"SELECT {', '.join(columns)} FROM {table}{chosen}")))
    return QueryPlan("pull", pieces, sql)


def _latest(table: str, text: str) -> str:
    """With the latest rows first, and no more than may be sent: one more shows that there were more."""
    order = " ORDER BY t DESC" if sql_tables()[table].history else ""
    return f"{text}{order} LIMIT {MAX_ROWS + 1}"


def _scans(plan: Any, unparse: Callable[[Any], str], above: Any = None) -> Iterator[_Scan]:
    one = plan.to_variant()
    if type(one).__name__ == "TableScan":
        columns = [name for _, name in one.projection()]
        table, where = one.table_name(), ""
        if type(getattr(above, "to_variant", lambda: None)()).__name__ == "Filter":
            try:
                before, found, where = unparse(above).partition(" WHERE ")
            except Exception:  # noqa: BLE001 the engine's errors have no class of their own; all rows are right, too
                found = ""
            # One scan and its condition, whose columns may be written with the table's name.
            where = where if found and before.endswith(f" FROM {table}") else ""
        yield _Scan(table, columns, where)
    for part in plan.inputs():
        yield from _scans(part, unparse, plan)
