"""Questions that join tables of hosts with those of the head, which say more about a proc or a host. Pure.

Rows of hosts that agree in what such a question compares, groups by and shows meet the same rows of the other tables.
So hosts group their rows by these columns and begin the aggregates, and the few results are joined instead of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.sql.plan import PARTIAL
from monarch_hpc.telemetry.sql.splitting.joins import conjuncts, has_column, join_at_home
from monarch_hpc.wire.tables.pieces import ON_HOSTS, sql_tables

__all__ = ["LookupSource", "read_lookups"]


@dataclass(frozen=True, slots=True)
class LookupSource:
    """The tables of such a question, whose joins are all inner ones.

    Args:
        known: the tables, by what the question calls them.
        on_hosts: what it calls those of hosts.
        parts: the FROM of hosts, and that of the others.
        conditions: all that holds for each row of the joins, with the table before each column.
        firsts: for the columns of USING, the table whose column a name without a table stands for.
    """

    known: Mapping[str, str]
    on_hosts: frozenset[str]
    parts: tuple[Sequence[exp.Expression], Sequence[exp.Expression]]
    conditions: Sequence[exp.Expression]
    firsts: Mapping[str, str]

    @property
    def tables(self) -> list[str]:
        """The tables of hosts, each once."""
        return [*dict.fromkeys(self.known[one] for one in self.known if one in self.on_hosts)]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns of all tables."""
        return frozenset(column.name for table in self.known.values() for column in sql_tables()[table].columns)

    def side(self, part: exp.Expr) -> bool | None:
        """Whether all columns of an expression are of hosts; None if they are of both sides, or there are none."""
        sides = {column.table.lower() in self.on_hosts for column in part.find_all(exp.Column)}
        return sides.pop() if len(sides) == 1 else None

    def qualify(self, part: exp.Expression) -> bool:
        """Write the table before each column of an expression; whether all of them are known."""
        for column in [*part.find_all(exp.Column)]:
            if column.table:
                if column.table.lower() not in self.known or column.args["table"].args.get("quoted"):
                    return False
                continue
            owner = self.firsts.get(column.name) or _owner(self.known, column.name)
            if owner is None:
                return False
            column.set("table", exp.to_identifier(owner))
        return True


def read_lookups(root: exp.Select) -> LookupSource | None:
    """Return the tables of a question; None if it is about others, or cannot be answered so."""
    if not root.args.get("from_"):
        return None
    first: exp.Expression = root.args["from_"].this
    joins = root.args.get("joins") or []
    known: dict[str, str] = {}
    firsts: dict[str, str] = {}
    equal: list[exp.Expression] = []
    for one, join in zip((first, *(join.this for join in joins)), (None, *joins), strict=True):
        name = one.alias_or_name.lower()
        if not _is_table(one) or name in known or name == PARTIAL or (join is not None and not _is_inner(join)):
            return None
        for column in [] if join is None else join.args.get("using") or []:
            before = firsts.get(column.name) or _owner(known, column.name)
            if before is None or not has_column(one.name.lower(), column.name):
                return None
            firsts[column.name] = before
            equal.append(
                exp.EQ(this=exp.column(column.name, table=before), expression=exp.column(column.name, table=name))
            )
        known[name] = one.name.lower()
    on_hosts = frozenset(name for name, table in known.items() if table in ON_HOSTS)
    if not on_hosts or len(on_hosts) == len(known):
        return None
    said = [join.args["on"] for join in joins if join.args.get("on")]
    said += [root.args["where"].this] if root.args.get("where") else []
    conditions = [*equal, *(one.copy() for condition in said for one in conjuncts(condition))]
    tables = [first, *(join.this for join in joins)]
    parts = (
        [one for one in tables if one.alias_or_name.lower() in on_hosts],
        [one for one in tables if one.alias_or_name.lower() not in on_hosts],
    )
    found = LookupSource(known, on_hosts, parts, conditions, firsts)
    if not all(map(found.qualify, conditions)):
        return None
    own = [condition for condition in conditions if found.side(condition)]
    names = [one for one in known if one in on_hosts]
    if not all(join_at_home(own, known, name, {*names[:place]}) for place, name in enumerate(names) if place):
        return None
    return found


def _is_table(one: exp.Expression) -> bool:
    return (
        type(one) is exp.Table
        and one.name.lower() in sql_tables()
        and not any(value for key, value in one.args.items() if key not in ("this", "alias"))
        and not any(identifier.args.get("quoted") for identifier in one.find_all(exp.Identifier))
    )


def _is_inner(join: exp.Join) -> bool:
    others = any(value for key, value in join.args.items() if key not in {"this", "on", "using", "kind"})
    return not others and join.kind in ("", "INNER", "CROSS")


def _owner(known: Mapping[str, str], column: str) -> str | None:
    """The only table that has a column, by what the question calls it; None if none or several have."""
    owners = [name for name, table in known.items() if has_column(table, column)]
    return owners[0] if len(owners) == 1 else None
