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
    left = [writer.last(one) for one in source.conditions]
    tables = writer.tables()
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    last = f"SELECT {named(outputs, query.names)} FROM {tables}{_where(left)}{grouped}{having}{order_by(order)}"
    return QueryPlan("lookup", [_piece(query, source, writer)], last + limits(query), by_host=len(source.own) > 1)


def _piece(query: ReadQuestion, source: LookupSource, writer: _Writer) -> QueryPiece:
    keys = [f"{text} AS {name}" for text, name in writer.keys.items()]
    rows = f"FROM {', '.join(map(sql_of, source.own))}{_where(list(map(sql_of, source.own_conditions)))}"
    if not query.groups and not any(part.find(exp.AggFunc) for part in parts_of(query)):
        if len(source.own) < 2 or not keys:
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
        is_divisible=len(source.own) == 1,
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

    def tables(self) -> str:
        """The FROM of the last text."""
        found = ""
        for one in self._source.joined:
            table = PARTIAL if one.table is None else sql_of(one.table)
            if not found:
                found = table
            elif one.on is None:
                found += f" CROSS JOIN {table}"
            else:
                found += f" LEFT JOIN {table} ON {' AND '.join(f'({self.last(said)})' for said in one.on) or 'true'}"
        return found

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
        may_lack = self._source.may_lack
        if may_lack and own is not None:
            raise NotSplitError  # it may hold for a row that there is none of
        if type(call) is exp.Count and call.find(exp.Column) is None and may_lack:
            return f"coalesce(sum({self._num_rows()}){tail}, 0)"
        if call.find(exp.Column) is None or self._source.side(call):
            if may_lack and not _is_strict(call):
                raise NotSplitError
            return self.aggregates.complete(call, own, tail)
        # Of values of other tables, which a row of the results has for all rows that it stands for.
        is_plain = own is None and self._source.side(call) is False and not call.find(exp.Distinct)
        if not is_plain or call.expressions:
            raise NotSplitError
        if type(call) in (exp.Min, exp.Max):
            return sql_of(call) + tail
        if type(call) is exp.Count:
            has = f"({sql_of(call.this)}) IS NOT NULL" + (f" AND ({last})" if last else "")
            return f"coalesce(sum({self._num_rows()}) FILTER (WHERE {has}), 0)"
        raise NotSplitError

    def _num_rows(self) -> str:
        """For how many rows one of the last text stands."""
        num = self.aggregates.column("count(*)", "sum")
        return f"coalesce({num}, 1)" if self._source.may_lack else num


def _is_strict(call: exp.AggFunc) -> bool:
    """Whether an aggregate is of values that are NULL where a row has NULL in each column."""
    kinds = (exp.Column, exp.Identifier, exp.Literal, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren)
    parts = [*call.walk()][1:]
    return any(isinstance(part, exp.Column) for part in parts) and all(isinstance(part, kinds) for part in parts)
