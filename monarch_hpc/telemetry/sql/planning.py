"""Plans questions in SQL: checks them, and finds the texts that hosts run."""

from __future__ import annotations

from typing import Any

from monarch_hpc.telemetry.sql.context import RowSet, combine, context_of, finish, results_of, run, unparse
from monarch_hpc.telemetry.sql.given import TakenQuestion
from monarch_hpc.telemetry.sql.plan import QueryPlan, tables_of
from monarch_hpc.telemetry.sql.pull import pull
from monarch_hpc.telemetry.sql.splitting.split import split
from monarch_hpc.wire.tables.pieces import sql_tables

__all__ = ["Planner"]


class Planner:
    """Plans questions. What it makes at first serves all processes that are forked later."""

    def __init__(self) -> None:
        self._context = context_of(RowSet(), sql_tables().keys(), [])
        split("SELECT host, count(*) FROM handled GROUP BY 1 ORDER BY 1", ["host", "count(*)"])  # fills its caches

    def plan(self, sql: str) -> TakenQuestion:
        """Return how a question is answered.

        Any exception says that it is wrong, see `problems.explain`.
        """
        frame = run(self._context, sql)
        logical = frame.optimized_logical_plan()
        tables = tables_of(sql)
        pulled = pull(sql, tables, logical, unparse)
        plan = split(sql, frame.schema().names) if pulled.pieces else None
        if plan is None or not _fits(plan, frame.schema()):
            plan = pulled
        return TakenQuestion(tables, plan, pulled, logical.display_indent())


def _fits(plan: QueryPlan, schema: Any) -> bool:
    """Whether the texts of a split question can be run, and their answer has the columns of the question's."""
    (piece,) = plan.pieces
    try:
        (result,) = results_of([piece], RowSet(), [])
        merged = combine(piece, [result, result])
        answer = finish(plan, [[result]], RowSet(), [])
    except Exception:  # noqa: BLE001 the engine's errors have no class of their own
        return False
    return _kinds(merged.schema) == _kinds(result.schema) and _kinds(answer.schema) == _kinds(schema)


def _kinds(schema: Any) -> list[tuple[str, str]]:
    return [(field.name, str(field.type).replace("string_view", "string")) for field in schema]
