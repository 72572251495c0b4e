"""Plans questions in SQL: checks them, and finds the texts that hosts run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from monarch_hpc.telemetry.sql.context import RowSet, combine, context_of, finish, results_of, run, unparse
from monarch_hpc.telemetry.sql.given import TakenQuestion
from monarch_hpc.telemetry.sql.plan import QueryPlan, tables_of
from monarch_hpc.telemetry.sql.pull import pull
from monarch_hpc.wire.tables.pieces import sql_tables

__all__ = ["Planner"]


class Planner:
    """Plans questions. What it makes at first serves all processes that are forked later."""

    def __init__(self) -> None:
        self._context = context_of(RowSet(), sql_tables().keys(), [])

    @staticmethod
    def load_splitter() -> None:
        """Load what splits questions, for processes that are forked later: it takes half as long as all the rest."""
        from monarch_hpc.telemetry.sql.splitting.split import split

        split("SELECT host, count(*) FROM handled GROUP BY 1 ORDER BY 1", ["host", "count(*)"])  # fills its caches

    def plan(self, sql: str) -> TakenQuestion:
        """Return how a question is answered.

        Any exception says that it is wrong, see `problems.explain`.
        """
        frame = run(self._context, sql)
        logical = frame.optimized_logical_plan()
        tables = tables_of(sql)
        pulled = pull(sql, tables, logical, unparse)
        plan = self._split(sql, frame) if pulled.pieces else None
        return TakenQuestion(tables, plan or pulled, pulled, logical.display_indent())

    def _split(self, sql: str, frame: Any) -> QueryPlan | None:
        """How a question can be split, or one in parentheses that has all of its tables of hosts."""
        from monarch_hpc.telemetry.sql.splitting.inner import inner_questions  # late: not all questions need them
        from monarch_hpc.telemetry.sql.splitting.split import split

        plan = split(sql, frame.schema().names)
        if plan is not None:
            return plan if _fits(plan, frame.schema()) else None
        for place in inner_questions(sql):
            plan = self._split_inner(sql[place])
            if plan is not None:
                plan = replace(plan, final=f"{sql[: place.start]}{plan.final}{sql[place.stop :]}")
                if _fits(plan, frame.schema()):
                    return plan
        return None

    def _split_inner(self, sql: str) -> QueryPlan | None:
        """How a question in parentheses can be split; only if it has groups: of rows, those that fit are not enough."""
        from monarch_hpc.telemetry.sql.splitting.split import split

        try:
            names = run(self._context, sql).schema().names
        except Exception:  # noqa: BLE001 the engine's errors have no class of their own
            return None  # it is about the one around it
        plan = split(sql, names)
        return plan if plan is not None and plan.rule != "rows" else None


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
