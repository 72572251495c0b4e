"""Joins in a question, and whether hosts can make them: the tables of its FROM, as sqlglot reads them. Pure.

Each row of the tables is on one host. Where the rows that meet in a join have the same host, the join is one of the
rows of each host, and hosts do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.pieces import ON_HOSTS, sql_tables

__all__ = ["HOME", "QuestionSource", "conjuncts", "has_column", "join_at_home", "read_source"]

HOME = frozenset({"host", "incarnation"})
"""Columns each value of which is on one host only, that of the row."""

_SIDES = frozenset({"", "LEFT", "RIGHT", "FULL"})
_KINDS = frozenset({"", "INNER", "OUTER", "CROSS"})


@dataclass(frozen=True, slots=True)
class QuestionSource:
    """The tables of a question, as its FROM has them.

    Args:
        tables: their names, each once.
        columns: names of their columns.
        items: the first table, and the joins with others.
        conditions: those of the joins.
        is_inner: whether each row of the joins has one of each table.
        whole: what the question calls those tables of which each row of the joins has one.
    """

    tables: Sequence[str]
    columns: frozenset[str]
    items: Sequence[exp.Expression]
    conditions: Sequence[exp.Expression]
    is_inner: bool
    whole: frozenset[str] = frozenset()

    @property
    def is_joined(self) -> bool:
        """Whether there are several tables, or one several times."""
        return len(self.items) > 1


def read_source(root: exp.Select) -> QuestionSource | None:
    """Return what a question is about; None if hosts cannot join it, or do not have it."""
    if not root.args.get("from_"):
        return None
    first: exp.Expression = root.args["from_"].this
    joins = root.args.get("joins") or []
    known: dict[str, str] = {}  # as the question calls a table -> the table
    for one in (first, *(join.this for join in joins)):
        if not _is_table(one) or one.alias_or_name.lower() in known:
            return None
        known[one.alias_or_name.lower()] = one.name.lower()
    where = root.args["where"].this if root.args.get("where") else None
    sides = {join.side for join in joins}
    conditions = [join.args["on"] for join in joins if join.args.get("on")]
    is_inner = sides <= {""}
    before: set[str] = set()
    whole = {*known}
    for name, join in zip(known, (None, *joins), strict=True):
        if join is not None:
            whole -= {name} if join.side in ("LEFT", "FULL") else set()
            whole -= before if join.side in ("RIGHT", "FULL") else set()
            # What WHERE says of rows that a join has made up is not said of those it was made of.
            said = [join.args.get("on"), where if is_inner else None]
            if not _is_plain(join) or not _is_at_home(join, said, known, name, before):
                return None
        before.add(name)
    tables = [*dict.fromkeys(known.values())]
    columns = frozenset(column.name for table in tables for column in sql_tables()[table].columns)
    return QuestionSource(tables, columns, [first, *joins], conditions, is_inner, frozenset(whole))


def _is_table(one: exp.Expression) -> bool:
    return (
        type(one) is exp.Table
        and one.name.lower() in ON_HOSTS
        and not any(value for key, value in one.args.items() if key not in ("this", "alias"))
    )


def _is_plain(join: exp.Join) -> bool:
    allowed = {"this", "on", "using", "side", "kind"}
    others = any(value for key, value in join.args.items() if key not in allowed)
    return not others and join.side in _SIDES and join.kind in _KINDS


def _is_at_home(
    join: exp.Join, said: Sequence[exp.Expression | None], known: Mapping[str, str], name: str, before: set[str]
) -> bool:
    """Whether the rows of a table meet those of one before it only on their own host."""
    if any(one.name in HOME for one in join.args.get("using") or []):
        return True
    return join_at_home([condition for condition in said if condition is not None], known, name, before)


def join_at_home(said: Sequence[exp.Expression], known: Mapping[str, str], name: str, before: set[str]) -> bool:
    """Whether conditions say that the rows of a table meet those of one before it only on their own host.

    Args:
        said: they hold for each row of the join.
        known: the tables, by what the question calls them.
        name: what it calls the table.
        before: what it calls those before it.
    """
    for one in (part for condition in said for part in conjuncts(condition) if isinstance(part, exp.EQ)):
        sides = [(side.table.lower(), side.name) for side in (one.this, one.expression) if type(side) is exp.Column]
        if len(sides) != 2 or sides[0][1] != sides[1][1] or sides[0][1] not in HOME:
            continue
        (left, column), (right, _) = sides
        have = all(has_column(known[side], column) for side in (left, right) if side in known)
        if have and ((left == name and right in before) or (right == name and left in before)):
            return True
    return False


def conjuncts(condition: exp.Expression) -> Iterator[exp.Expression]:
    """The conditions all of which hold for each row for which *condition* does."""
    if isinstance(condition, exp.Paren):
        yield from conjuncts(condition.this)
    elif isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    else:
        yield condition


def has_column(table: str, column: str) -> bool:
    """Whether a table has a column of this name."""
    return any(one.name == column for one in sql_tables()[table].columns)
