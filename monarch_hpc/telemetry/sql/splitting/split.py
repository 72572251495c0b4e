"""Splits a question into texts for hosts, the nodes of their tree, and the asking process. Pure.

With `joins` the door to sqlglot. What is not understood completely is not split: then hosts send the columns and rows
that the question needs, see `pull`.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp

from monarch_hpc.telemetry.sql.plan import MAX_ROWS, PARTIAL, QueryPlan
from monarch_hpc.telemetry.sql.splitting.joined_results import join_results
from monarch_hpc.telemetry.sql.splitting.joins import HOME, QuestionSource, read_source
from monarch_hpc.telemetry.sql.splitting.lookups import read_lookups
from monarch_hpc.telemetry.sql.splitting.texts import (
    DIALECT,
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

__all__ = ["split"]


_PLAIN = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Star, exp.Paren, exp.Neg, exp.Not),
    *(exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe, exp.Like, exp.ILike, exp.RegexpLike, exp.RegexpILike),
    *(exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Cast, exp.DataType, exp.Abs, exp.Floor, exp.Ceil, exp.Lower),
    *(exp.Upper, exp.Length, exp.Greatest, exp.Least, exp.Round, exp.Sqrt, exp.Ln, exp.Filter, exp.Where, exp.Ordered),
    *(exp.Alias, exp.Interval, exp.Var, exp.IsNan, exp.Extract),
)
"""Expressions that mean the same on a host as in the asking process, and are written back as they were read."""


def split(sql: str, names: Sequence[str]) -> QueryPlan | None:
    """Split a question that the engine has accepted; None if its tables must be pulled.

    Args:
        names: the columns of its answer, as the engine calls them.
    """
    try:
        query = _parse(sql, names)
        if query.lookups is not None:
            return join_results(query, query.lookups)
        if query.groups or any(part.find(exp.AggFunc) for part in parts_of(query)):
            try:
                return _partial(query)
            except NotSplitError:
                return _home(query)
        return _rows(query)
    except NotSplitError:
        return None


# ---- reading ----


def _parse(sql: str, names: Sequence[str]) -> ReadQuestion:
    try:
        root = sqlglot.parse_one(sql, dialect=DIALECT)
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise NotSplitError from error
    known = {"expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset", "distinct"}
    if type(root) is not exp.Select or any(value for key, value in root.args.items() if key not in known):
        raise NotSplitError
    if root.find(exp.Subquery, exp.Window) is not None or len([*root.find_all(exp.Select)]) != 1:
        raise NotSplitError
    source, lookups = read_source(root), None
    if source is None:
        lookups = read_lookups(root)
        if lookups is None:
            raise NotSplitError
        source = QuestionSource(lookups.tables, lookups.columns, [], lookups.all_conditions, is_inner=True)
    outputs = [one.unalias() for one in root.expressions]
    if len(outputs) != len(names) or any(isinstance(one, exp.Star) for one in outputs):
        raise NotSplitError
    aliases = {one.alias.lower(): one.unalias() for one in root.expressions if one.alias}

    def resolve(part: exp.Expression) -> exp.Expression:
        """What an ordinal or an alias stands for."""
        if isinstance(part, exp.Literal) and not part.is_string:
            if not 1 <= int(part.this) <= len(outputs):
                raise NotSplitError
            ordinal = outputs[int(part.this) - 1]
            return ordinal.copy()  # type: ignore[no-any-return]  # of the same class
        if isinstance(part, exp.Column) and not part.table and part.name.lower() in aliases:
            meant = aliases[part.name.lower()]
            if part.name.lower() in source.columns and meant != part:
                raise NotSplitError  # the column, or the alias
            return meant.copy()  # type: ignore[no-any-return]  # of the same class
        return part

    distinct = root.args.get("distinct")
    group = root.args.get("group")
    groups = [resolve(one) for one in group.expressions] if group else []
    if group and any(value for key, value in group.args.items() if key != "expressions"):
        raise NotSplitError
    having = root.args["having"].this if root.args.get("having") else None
    if distinct is not None:
        if distinct.args.get("on") or groups or having or root.find(exp.AggFunc):
            raise NotSplitError
        groups = [one.copy() for one in outputs]
    order = []
    for one in root.args["order"].expressions if root.args.get("order") else []:
        if type(one) is not exp.Ordered:
            raise NotSplitError
        order.append(exp.Ordered(**{**one.args, "this": resolve(one.this.copy())}))
    if having is not None and any(
        one.name.lower() in aliases and one.name.lower() not in source.columns for one in having.find_all(exp.Column)
    ):
        raise NotSplitError
    if not group and having is not None:
        raise NotSplitError
    query = ReadQuestion(
        source,
        root.args["where"].this if root.args.get("where") and lookups is None else None,
        outputs,
        names,
        groups,
        having,
        order,
        _number(root.args.get("limit"), None),
        _number(root.args.get("offset"), 0) or 0,
        lookups,
    )
    for part in parts_of(query):
        _check(part)
    for one in (column for part in parts_of(query) for column in part.find_all(exp.Column)):
        if one.name not in source.columns:
            raise NotSplitError  # quoted, or in another case
    if lookups is not None and not all(map(lookups.qualify, parts_of(query))):
        raise NotSplitError
    return query


def _number(clause: exp.Expression | None, default: int | None) -> int | None:
    if clause is None:
        return default
    value = clause.expression
    if not isinstance(value, exp.Literal) or value.is_string or not value.this.isdigit():
        raise NotSplitError
    return int(value.this)


def _check(part: exp.Expression) -> None:
    """Raise if anything but aggregates, maybe of different values, is not among `_PLAIN`."""
    for node in part.walk():
        is_of_aggregate = isinstance(node, exp.Distinct) and isinstance(node.parent, exp.AggFunc)
        if not is_of_aggregate and not isinstance(node, (*_PLAIN, exp.AggFunc)):
            raise NotSplitError


# ---- rules ----


def _partial(query: ReadQuestion) -> QueryPlan:
    """Aggregates that hosts begin and others complete."""
    keys = [f"k{place}" for place in range(len(query.groups))]
    aggregates = BegunAggregates()
    made: dict[str, str] = {}  # an aggregate of the question -> its final expression
    groups = {sql_of(group): key for group, key in zip(query.groups, keys, strict=True)}

    def rewrite(part: exp.Expression) -> str:
        copy = exp.Paren(this=part.copy())
        for node in [*copy.walk(prune=lambda node: isinstance(node, exp.Filter | exp.AggFunc))]:
            if isinstance(node, exp.Filter) and isinstance(node.this, exp.AggFunc):
                text = sql_of(node)
                made[text] = made.get(text) or aggregates.complete(node.this, node.expression.this)
            elif isinstance(node, exp.AggFunc):
                text = sql_of(node)
                made[text] = made.get(text) or aggregates.complete(node, None)
            else:
                continue
            node.replace(raw(made[text]))
        _replace(copy, groups)
        if any(not name.startswith("\0") for name in (one.name for one in copy.find_all(exp.Column))):
            raise NotSplitError
        return text_of(copy.this)

    outputs = [rewrite(one) for one in query.outputs]
    having = "" if query.having is None else f" HAVING {rewrite(query.having)}"
    order = [text_of_ordered(one, rewrite(one.this)) for one in query.order]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    by_number = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    host = [*(f"{sql_of(group)} AS {key}" for group, key in zip(query.groups, keys, strict=True)), *aggregates.begun]
    merge = [*keys, *(f"{combine}({name}) AS {name}" for name, combine in aggregates.combined.items())]
    return QueryPlan(
        "partial",
        [
            QueryPiece(
                [*query.source.tables],
                f"SELECT {', '.join(host)} FROM {_from(query)}{by_number}",
                f"SELECT {', '.join(merge)} FROM {PARTIAL}{grouped}",
                is_divisible=not query.source.is_joined,
            )
        ],
        f"SELECT {named(outputs, query.names)} FROM {PARTIAL}{grouped}{having}{order_by(order)}{limits(query)}",
        by_host=query.source.is_joined,
    )


def _home(query: ReadQuestion) -> QueryPlan:
    """Groups each of which is on one host: hosts answer completely."""
    source = query.source
    homes = [group for group in query.groups if isinstance(group, exp.Column) and group.name in HOME]
    # Where an outer join has made up a row of a table, its columns are NULL on all hosts.
    if not any(source.is_inner or home.table.lower() in source.whole for home in homes):
        raise NotSplitError
    grouped = f" GROUP BY {', '.join(map(sql_of, query.groups))}"
    having = "" if query.having is None else f" HAVING {sql_of(query.having)}"
    return _sorted("home", query, grouped + having)


def _rows(query: ReadQuestion) -> QueryPlan:
    """Rows that hosts choose, and of which they send the first ones."""
    return _sorted("rows", query, "")


def _sorted(rule: str, query: ReadQuestion, grouped: str) -> QueryPlan:
    outputs = [f"{sql_of(one)} AS c{place}" for place, one in enumerate(query.outputs)]
    hidden = [f"{sql_of(one.this)} AS o{place}" for place, one in enumerate(query.order)]
    own = [text_of_ordered(one, sql_of(one.this)) for one in query.order]
    order = [text_of_ordered(one, f"o{place}") for place, one in enumerate(query.order)]
    limit = "" if query.limit is None else f" LIMIT {query.limit + query.offset}"
    host = f"SELECT {', '.join([*outputs, *hidden])} FROM {_from(query)}{grouped}"
    if query.source.is_joined and not limit:
        host += f" LIMIT {MAX_ROWS + 1}"  # no more than may be sent: a join of two tables can be of any size
    merge = f"SELECT * FROM {PARTIAL}{order_by(order)}{limit}" if limit else ""
    columns = [f"c{place}" for place in range(len(outputs))]
    return QueryPlan(
        rule,
        [QueryPiece([*query.source.tables], host + (order_by(own) if limit else "") + limit, merge)],
        f"SELECT {named(columns, query.names)} FROM {PARTIAL}{order_by(order)}{limits(query)}",
        by_host=rule == "home" or query.source.is_joined,
    )


# ---- writing ----


def _replace(copy: exp.Expression, groups: dict[str, str]) -> None:
    for node in [*copy.walk(prune=lambda node: _sql_of(node) in groups)]:
        if node is not copy and _sql_of(node) in groups:
            node.replace(raw(groups[_sql_of(node)]))


def _sql_of(node: exp.Expr) -> str:
    return sql_of(node) if isinstance(node, exp.Condition) else ""


def _from(query: ReadQuestion) -> str:
    tables = " ".join(map(sql_of, query.source.items)).replace(" , ", ", ")
    return tables if query.where is None else f"{tables} WHERE {sql_of(query.where)}"
