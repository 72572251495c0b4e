"""Questions as they were read, and how parts of them are written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.sql.splitting.joins import QuestionSource
from monarch_hpc.telemetry.sql.splitting.lookups import LookupSource

__all__ = [
    "DIALECT",
    "BegunAggregates",
    "NotSplitError",
    "ReadQuestion",
    "limits",
    "named",
    "order_by",
    "parts_of",
    "raw",
    "sql_of",
    "text_of",
    "text_of_ordered",
]


class _Engine(Postgres):
    """The dialect of the engine, as far as it is not the nearest one's."""

    class Generator(Postgres.Generator):  # type: ignore[misc, valid-type]  # made by its metaclass
        """Writes the engine's names of functions."""

        TRANSFORMS: ClassVar = {
            **Postgres.Generator.TRANSFORMS,
            exp.IsNan: lambda self, one: self.func("isnan", one.this),
            exp.Median: lambda self, one: self.func("median", one.this),
        }


DIALECT = _Engine

_PARTIAL = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
"""Aggregates that can be combined."""


class NotSplitError(Exception):
    """A rule does not fit."""


@dataclass(frozen=True, slots=True)
class ReadQuestion:
    """A question about one table, or about several that can be joined.

    Args:
        source: the tables.
        outputs: the expressions of its columns.
        names: names of the columns, as the engine calls them.
        order: the expressions by which it is sorted.
        lookups: the tables, if some are not on hosts.
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
    lookups: LookupSource | None = None


def parts_of(query: ReadQuestion) -> Iterator[exp.Expression]:
    """All expressions of a question."""
    yield from query.outputs
    yield from query.groups
    yield from query.order
    yield from query.source.conditions
    yield from (part for part in (query.where, query.having) if part is not None)


class BegunAggregates:
    """Aggregates that hosts begin and others complete.

    Args:
        prefix: goes before the columns of what hosts have begun, where it is completed.

    Attributes:
        combined: the aggregate that combines each of these columns.
    """

    def __init__(self, prefix: str = "") -> None:
        self.combined: dict[str, str] = {}
        self._prefix = prefix
        self._names: dict[tuple[str, str], str] = {}

    @property
    def begun(self) -> list[str]:
        """The columns as hosts make them."""
        return [f"{text} AS {name}" for (text, _), name in self._names.items()]

    def column(self, text: str, combine: str) -> str:
        """The column of an aggregate that hosts make, as the last text has it."""
        name = self._names.get((text, combine))
        if name is None:
            name = self._names[text, combine] = f"a{len(self._names)}"
            self.combined[name] = combine
        return self._prefix + name

    def complete(self, call: exp.AggFunc, condition: exp.Expression | None, last: str = "") -> str:
        """The text that completes an aggregate.

        Args:
            call: the aggregate.
            condition: of the rows that hosts look at.
            last: FILTER over what hosts have begun.

        Raises:
            NotSplitError: it cannot be combined.
        """
        if type(call) not in _PARTIAL or call.find(exp.Distinct) or len([*call.find_all(exp.AggFunc)]) != 1:
            raise NotSplitError
        tail = "" if condition is None else f" FILTER (WHERE {sql_of(condition)})"
        text = sql_of(call) + tail
        if type(call) is exp.Count:
            return f"coalesce(sum({self.column(text, 'sum')}){last}, 0)"
        if type(call) is exp.Avg:
            total = self.column(f"sum({sql_of(call.this)}){tail}", "sum")
            num = self.column(f"count({sql_of(call.this)}){tail}", "sum")
            return f"(CAST(sum({total}){last} AS DOUBLE) / nullif(sum({num}){last}, 0))"
        combine = {exp.Sum: "sum", exp.Min: "min", exp.Max: "max"}[type(call)]
        return f"{combine}({self.column(text, combine)}){last}"


# ---- writing ----


def sql_of(part: exp.Expr) -> str:
    """An expression as the engine reads it."""
    return part.sql(DIALECT)


def raw(text: str) -> exp.Column:
    """A piece of text in an expression."""
    return exp.Column(this=exp.Identifier(this="\0" + text, quoted=False))


def text_of(part: exp.Expression) -> str:
    """An expression with pieces of text."""
    return sql_of(part).replace("\0", "")


def text_of_ordered(one: exp.Ordered, text: str) -> str:
    """What a question is sorted by, with *text* as the expression."""
    ordered = exp.Ordered(**{**one.args, "this": raw(text)})
    return text_of(ordered)


def named(outputs: Sequence[str], names: Sequence[str]) -> str:
    """The columns of an answer."""
    quoted = ('"' + name.replace('"', '""') + '"' for name in names)
    return ", ".join(f"{text} AS {name}" for text, name in zip(outputs, quoted, strict=True))


def order_by(order: Sequence[str]) -> str:
    """The end of a text that is sorted."""
    return f" ORDER BY {', '.join(order)}" if order else ""


def limits(query: ReadQuestion) -> str:
    """The end of a text with the rows that a question wants."""
    limit = "" if query.limit is None else f" LIMIT {query.limit}"
    return limit + (f" OFFSET {query.offset}" if query.offset else "")
