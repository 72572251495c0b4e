"""Splits a question into texts for hosts, the nodes of their tree, and the asking process. Pure.

With `joins` the door to sqlglot. What is not understood completely is not split: then hosts send the columns and rows
that the question needs, see `pull`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.sql.joins import HOME, QuestionSource, read_source
from monarch_hpc.telemetry.sql.plan import MAX_ROWS, PARTIAL, QueryPlan
from monarch_hpc.wire.tables.pieces import QueryPiece

__all__ = ["split"]


class _Engine(Postgres):
    """The dialect of the engine, as far as it is not the nearest one's."""

    class Generator(Postgres.Generator):  # type: ignore[misc, valid-type]  # made by its metaclass
        """Writes the engine's names of functions."""

        TRANSFORMS: ClassVar = {
            **Postgres.Generator.TRANSFORMS,
            exp.Median: lambda self, one: self.func("median", one.this),
        }


_DIALECT = _Engine

_PARTIAL = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
"""Aggregates that can be combined."""

_PLAIN = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Star, exp.Paren, exp.Neg, exp.Not),
    *(exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe, exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike),
    *(exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Cast, exp.DataType, exp.Abs, exp.Floor, exp.Ceil, exp.Lower),
    *(exp.Upper, exp.Length, exp.Greatest, exp.Least, exp.Round, exp.Sqrt, exp.Ln, exp.Filter, exp.Where, exp.Ordered),
    *(exp.Alias, exp.Interval, exp.Var),
)
"""Expressions that mean the same on a host as in the asking process, and are written back as they were read."""


class _NotSplit(Exception):
    """A rule does not fit."""


@dataclass(frozen=True, slots=True)
class _Query:
    """A question about one table, or about several that hosts can join.

    Args:
        source: the tables.
        outputs: the expressions of its columns.
        names: names of the columns, as the engine calls them.
        order: the expressions by which it is sorted.
    """

    source: QuestionSource
    where: exp.Expression | None
    outputs: Sequence[exp.Expression]
    names: Sequence[str]
    groups: Sequence[exp.Expression]
    having: exp.Expression | None
    order: Sequence[exp.Ordered]
    limit: int | None
    offset: int


def split(sql: str, names: Sequence[str]) -> QueryPlan | None:
    """Split a question that the engine has accepted; None if its tables must be pulled.

    Args:
        names: the columns of its answer, as the engine calls them.
    """
    try:
        query = _parse(sql, names)
        if query.groups or any(part.find(exp.AggFunc) for part in _parts(query)):
            try:
                return _partial(query)
            except _NotSplit:
                return _home(query)
        return _rows(query)
    except _NotSplit:
        return None


# ---- reading ----


def _parse(sql: str, names: Sequence[str]) -> _Query:
    try:
        root = sqlglot.parse_one(sql, dialect=_DIALECT)
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise _NotSplit from error
    known = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct"}
    if type(root) is not exp.Select or any(value for key, value in root.args.items() if key not in known):
        raise _NotSplit
    if root.find(exp.Subquery, exp.Window) is not None or len([*root.find_all(exp.Select)]) != 1:
        raise _NotSplit
    source = read_source(root)
    if source is None:
        raise _NotSplit
    outputs = [one.unalias() for one in root.expressions]
    if len(outputs) != len(names) or any(isinstance(one, exp.Star) for one in outputs):
        raise _NotSplit
    aliases = {one.alias.lower(): one.unalias() for one in root.expressions if one.alias}

    def resolve(part: exp.Expression) -> exp.Expression:
        """What an ordinal or an alias stands for."""
        if isinstance(part, exp.Literal) and not part.is_string:
            if not 1 <= int(part.this) <= len(outputs):
                raise _NotSplit
            ordinal = outputs[int(part.this) - 1]
            return ordinal.copy()  # type: ignore[no-any-return]  # of the same class
        if isinstance(part, exp.Column) and not part.table and part.name.lower() in aliases:
            meant = aliases[part.name.lower()]
            if part.name.lower() in source.columns and meant != part:
                raise _NotSplit  # the column, or the alias
            return meant.copy()  # type: ignore[no-any-return]  # of the same class
        return part

    distinct = root.args.get("distinct")
    group = root.args.get("group")
    groups = [resolve(one) for one in group.expressions] if group else []
    if group and any(value for key, value in group.args.items() if key != "expressions"):
        raise _NotSplit
    having = root.args["having"].this if root.args.get("having") else None
    if distinct is not None:
        if distinct.args.get("on") or groups or having or root.find(exp.AggFunc):
            raise _NotSplit
        groups = [one.copy() for one in outputs]
    order = []
    for one in root.args["order"].expressions if root.args.get("order") else []:
        if type(one) is not exp.Ordered:
            raise _NotSplit
        order.append(exp.Ordered(**{**one.args, "this": resolve(one.this.copy())}))
    if having is not None and any(
        one.name.lower() in aliases and one.name.lower() not in source.columns for one in having.find_all(exp.Column)
    ):
        raise _NotSplit
    if not group and having is not None:
        raise _NotSplit
    query = _Query(
        source,
        root.args["where"].this if root.args.get("where") else None,
        outputs,
        names,
        groups,
        having,
        order,
        _number(root.args.get("limit"), None),
        _number(root.args.get("offset"), 0) or 0,
    )
    for part in _parts(query):
        _check(part)
    for one in (column for part in _parts(query) for column in part.find_all(exp.Column)):
        if one.name not in source.columns:
            raise _NotSplit  # quoted, or in another case
    return query


def _number(clause: exp.Expression | None, default: int | None) -> int | None:
    if clause is None:
        return default
    value = clause.expression
    if not isinstance(value, exp.Literal) or value.is_string or not value.this.isdigit():
        raise _NotSplit
    return int(value.this)


def _parts(query: _Query) -> Iterator[exp.Expression]:
    yield from query.outputs
    yield from query.groups
    yield from query.order
    yield from query.source.conditions
    yield from (part for part in (query.where, query.having) if part is not None)


def _check(part: exp.Expression) -> None:
    """Raise if anything but aggregates is not among `_PLAIN`."""
    for node in part.walk():
        if not isinstance(node, (*_PLAIN, exp.AggFunc)):
            raise _NotSplit


# ---- rules ----


def _partial(query: _Query) -> QueryPlan:
    """Aggregates that hosts begin and others complete."""
    host: list[str] = [f"{_sql(group)} AS k{place}" for place, group in enumerate(query.groups)]
    keys = [f"k{place}" for place in range(len(query.groups))]
    combined: dict[str, str] = {}  # column of the partial result -> the aggregate that combines it
    made: dict[str, str] = {}  # an aggregate of the question -> its final expression

    def column(text: str, combine: str) -> str:
        for name, known in zip(combined, host[len(keys) :], strict=True):
            if known == f"{text} AS {name}" and combined[name] == combine:
                return name
        name = f"a{len(combined)}"
        host.append(f"{text} AS {name}")
        combined[name] = combine
        return name

    def final(call: exp.AggFunc, condition: exp.Expression | None) -> str:
        if type(call) not in _PARTIAL or call.find(exp.Distinct) or len([*call.find_all(exp.AggFunc)]) != 1:
            raise _NotSplit
        tail = "" if condition is None else f" FILTER (WHERE {_sql(condition)})"
        text = _sql(call) + tail
        if type(call) is exp.Count:
            return f"coalesce(sum({column(text, 'sum')}), 0)"
        if type(call) is exp.Avg:
            total = column(f"sum({_sql(call.this)}){tail}", "sum")
            num = column(f"count({_sql(call.this)}){tail}", "sum")
            return f"(CAST(sum({total}) AS DOUBLE) / nullif(sum({num}), 0))"
        combine = {exp.Sum: "sum", exp.Min: "min", exp.Max: "max"}[type(call)]
        return f"{combine}({column(text, combine)})"

    groups = {_sql(group): key for group, key in zip(query.groups, keys, strict=True)}

    def rewrite(part: exp.Expression) -> str:
        copy = exp.Paren(this=part.copy())
        for node in [*copy.walk(prune=lambda node: isinstance(node, exp.Filter | exp.AggFunc))]:
            if isinstance(node, exp.Filter) and isinstance(node.this, exp.AggFunc):
                text = _sql(node)
                made[text] = made.get(text) or final(node.this, node.expression.this)
            elif isinstance(node, exp.AggFunc):
                text = _sql(node)
                made[text] = made.get(text) or final(node, None)
            else:
                continue
            node.replace(_raw(made[text]))
        _replace(copy, groups)
        if any(not name.startswith("\0") for name in (one.name for one in copy.find_all(exp.Column))):
            raise _NotSplit
        return _text(copy.this)

    outputs = [rewrite(one) for one in query.outputs]
    having = "" if query.having is None else f" HAVING {rewrite(query.having)}"
    order = [_text_of(one, rewrite(one.this)) for one in query.order]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    by_number = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    merge = [*keys, *(f"{combine}({name}) AS {name}" for name, combine in combined.items())]
    return QueryPlan(
        "partial",
        [
            QueryPiece(
                [*query.source.tables],
                f"SELECT {', '.join(host)} FROM {_from(query)}{by_number}",
                f"SELECT {', '.join(merge)} FROM {PARTIAL}{grouped}",
            )
        ],
        f"SELECT {_named(outputs, query.names)} FROM {PARTIAL}{grouped}{having}{_order(order)}{_limits(query)}",
        by_host=query.source.is_joined,
    )


def _home(query: _Query) -> QueryPlan:
    """Groups each of which is on one host: hosts answer completely."""
    on_one_host = any(isinstance(group, exp.Column) and group.name in HOME for group in query.groups)
    if not on_one_host or not query.source.is_inner:  # an outer join has groups without a host
        raise _NotSplit
    grouped = f" GROUP BY {', '.join(map(_sql, query.groups))}"
    having = "" if query.having is None else f" HAVING {_sql(query.having)}"
    return _sorted("home", query, grouped + having)


def _rows(query: _Query) -> QueryPlan:
    """Rows that hosts choose, and of which they send the first ones."""
    return _sorted("rows", query, "")


def _sorted(rule: str, query: _Query, grouped: str) -> QueryPlan:
    outputs = [f"{_sql(one)} AS c{place}" for place, one in enumerate(query.outputs)]
    hidden = [f"{_sql(one.this)} AS o{place}" for place, one in enumerate(query.order)]
    own = [_text_of(one, _sql(one.this)) for one in query.order]
    order = [_text_of(one, f"o{place}") for place, one in enumerate(query.order)]
    limit = "" if query.limit is None else f" LIMIT {query.limit + query.offset}"
    host = f"SELECT {', '.join([*outputs, *hidden])} FROM {_from(query)}{grouped}"
    if query.source.is_joined and not limit:
        host += f" LIMIT {MAX_ROWS + 1}"  # no more than may be sent: a join of two tables can be of any size
    merge = f"SELECT * FROM {PARTIAL}{_order(order)}{limit}" if limit else ""
    columns = [f"c{place}" for place in range(len(outputs))]
    return QueryPlan(
        rule,
        [QueryPiece([*query.source.tables], host + (_order(own) if limit else "") + limit, merge)],
        f"SELECT {_named(columns, query.names)} FROM {PARTIAL}{_order(order)}{_limits(query)}",
        by_host=rule == "home" or query.source.is_joined,
    )


# ---- writing ----


def _sql(part: exp.Expr) -> str:
    return part.sql(_DIALECT)


def _raw(text: str) -> exp.Column:
    """A piece of text in an expression."""
    return exp.Column(this=exp.Identifier(this="\0" + text, quoted=False))


def _replace(copy: exp.Expression, groups: dict[str, str]) -> None:
    for node in [*copy.walk(prune=lambda node: _sql_of(node) in groups)]:
        if node is not copy and _sql_of(node) in groups:
            node.replace(_raw(groups[_sql_of(node)]))


def _sql_of(node: exp.Expr) -> str:
    return _sql(node) if isinstance(node, exp.Condition) else ""


def _text(part: exp.Expression) -> str:
    return _sql(part).replace("\0", "")


def _text_of(one: exp.Ordered, text: str) -> str:
    ordered = exp.Ordered(**{**one.args, "this": _raw(text)})
    return _text(ordered)


def _from(query: _Query) -> str:
    tables = " ".join(map(_sql, query.source.items)).replace(" , ", ", ")
    return tables if query.where is None else f"{tables} WHERE {_sql(query.where)}"


def _named(outputs: Sequence[str], names: Sequence[str]) -> str:
    quoted = ('"' + name.replace('"', '""') + '"' for name in names)
    return ", ".join(f"{text} AS {name}" for text, name in zip(outputs, quoted, strict=True))


def _order(order: Sequence[str]) -> str:
    return f" ORDER BY {', '.join(order)}" if order else ""


def _limits(query: _Query) -> str:
    limit = "" if query.limit is None else f" LIMIT {query.limit}"
    return limit + (f" OFFSET {query.offset}" if query.offset else "")
