"""The rule for questions that join tables of hosts with those of the head, see `lookups`. Pure."""

from __future__ import annotations

from sqlglot import exp

from monarch_hpc.telemetry.sql.plan import MAX_ROWS, PARTIAL, QueryPlan
from monarch_hpc.telemetry.sql.splitting.lookups import LookupSource
from monarch_hpc.telemetry.sql.splitting.texts import (
    BegunAggregates,
    NotSplitError,
    ReadQuestion,
    limits,
    named,
    order_by,
    parts_of,
    raw,
    sql_of,
    text_of,
    text_of_ordered,
)
from monarch_hpc.wire.tables.pieces import QueryPiece

__all__ = ["join_results"]


def join_results(query: ReadQuestion, source: LookupSource) -> QueryPlan:
    """Return how a question is answered whose columns have their tables.

    Raises:
        NotSplitError: it needs the rows themselves.
    """
    writer = _Writer(source)
    outputs = [writer.last(one) for one in query.outputs]
    groups = [writer.last(one) for one in query.groups]
    having = "" if query.having is None else f" HAVING {writer.last(query.having)}"
    order = [text_of_ordered(one, writer.last(one.this)) for one in query.order]
    left = [writer.last(one) for one in source.conditions if not source.side(one)]
    own, others = source.parts
    tables = ", ".join([PARTIAL, *map(sql_of, others)])
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    last = f"SELECT {named(outputs, query.names)} FROM {tables}{_where(left)}{grouped}{having}{order_by(order)}"
    return QueryPlan("lookup", [_piece(query, source, writer)], last + limits(query), by_host=len(own) > 1)


def _piece(query: ReadQuestion, source: LookupSource, writer: _Writer) -> QueryPiece:
    own, _ = source.parts
    keys = [f"{text} AS {name}" for text, name in writer.keys.items()]
    chosen = _where([sql_of(one) for one in source.conditions if source.side(one)])
    rows = f"FROM {', '.join(map(sql_of, own))}{chosen}"
    if not query.groups and not any(part.find(exp.AggFunc) for part in parts_of(query)):
        if len(own) < 2 or not keys:
            raise NotSplitError  # to pull the rows is the same
        return QueryPiece(source.tables, f"SELECT {', '.join(keys)} {rows} LIMIT {MAX_ROWS + 1}")
    aggregates = writer.aggregates
    if not aggregates.combined:
        aggregates.column("count(*)", "sum")
    # A host without rows sends nothing, as it has no group: a row of nothing would meet those of other tables.
    names = ", ".join(writer.keys.values())
    by_number = ", ".join(str(place + 1) for place in range(len(keys)))
    merge = [*writer.keys.values(), *(f"{combine}({name}) AS {name}" for name, combine in aggregates.combined.items())]
    return QueryPiece(
        source.tables,
        f"SELECT {', '.join([*keys, *aggregates.begun])} {rows}" + _groups(by_number),
        f"SELECT {', '.join(merge)} FROM {PARTIAL}" + _groups(names),
    )


def _groups(keys: str) -> str:
    return f" GROUP BY {keys}" if keys else " HAVING count(*) > 0"


def _where(conditions: list[str]) -> str:
    return f" WHERE {' AND '.join(f'({one})' for one in conditions)}" if conditions else ""


class _Writer:
    """Writes the parts of the last text.

    Attributes:
        keys: columns of hosts that it uses, with their names among the results.
        aggregates: those that hosts begin.
    """

    def __init__(self, source: LookupSource) -> None:
        self.keys: dict[str, str] = {}
        self.aggregates = BegunAggregates(f"{PARTIAL}.")
        self._source = source

    def last(self, part: exp.Expression) -> str:
        """An expression over the results of hosts and the other tables."""
        copy = exp.Paren(this=part.copy())
        for node in [*copy.walk(prune=lambda node: isinstance(node, exp.Filter | exp.AggFunc))]:
            if isinstance(node, exp.Filter) and isinstance(node.this, exp.AggFunc):
                node.replace(raw(self._complete(node.this, node.expression.this)))
            elif isinstance(node, exp.AggFunc):
                node.replace(raw(self._complete(node, None)))
        for column in [*copy.find_all(exp.Column)]:
            if column.table.lower() in self._source.on_hosts:
                name = self.keys.setdefault(sql_of(column), f"b{len(self.keys)}")
                column.replace(raw(f"{PARTIAL}.{name}"))
        return text_of(copy.this)

    def _complete(self, call: exp.AggFunc, condition: exp.Expression | None) -> str:
        """An aggregate of rows, each of which stands once for each row of other tables that it meets."""
        own, last = None, ""
        if condition is not None:
            side = self._source.side(condition)
            if side is None:
                raise NotSplitError
            own, last = (condition, "") if side else (None, sql_of(condition))
        tail = f" FILTER (WHERE {last})" if last else ""
        if call.find(exp.Column) is None or self._source.side(call):
            return self.aggregates.complete(call, own, tail)
        # Of values of other tables, which a row of the results has for all rows that it stands for.
        is_plain = own is None and self._source.side(call) is False and not call.find(exp.Distinct)
        if not is_plain or call.expressions:
            raise NotSplitError
        if type(call) in (exp.Min, exp.Max):
            return sql_of(call) + tail
        if type(call) is exp.Count:
            has = f"({sql_of(call.this)}) IS NOT NULL" + (f" AND ({last})" if last else "")
            return f"coalesce(sum({self.aggregates.column('count(*)', 'sum')}) FILTER (WHERE {has}), 0)"
        raise NotSplitError
