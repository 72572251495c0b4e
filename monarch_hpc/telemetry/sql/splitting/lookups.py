"""Questions that join tables of hosts with those of the head, which say more about a proc or a host. Pure.

Rows of hosts that agree in what such a question compares, groups by and shows meet the same rows of the other tables.
So hosts group their rows by these columns and begin the aggregates, and the few results are joined instead of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.sql.plan import PARTIAL
from monarch_hpc.telemetry.sql.splitting.joins import conjuncts, has_column, join_at_home
from monarch_hpc.wire.tables.pieces import ON_HOSTS, sql_tables

__all__ = ["JoinedTable", "LookupSource", "read_lookups"]


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """One of the tables of the last text.

    Args:
        table: None for what hosts have answered.
        on: what rows before it are joined by that stay without a row of it, too; None for an inner join.
    """

    table: exp.Expression | None
    on: Sequence[exp.Expression] | None


@dataclass(frozen=True, slots=True)
class LookupSource:
    """The tables of such a question. All conditions have the table before each column.

    Args:
        known: the tables, by what the question calls them.
        on_hosts: what it calls those of hosts.
        own: the FROM of hosts.
        own_conditions: those of the rows that hosts join.
        joined: the FROM of the last text.
        conditions: what holds for each row of the last text's joins, but by outer joins.
        firsts: for the columns of USING, the table whose column a name without a table stands for.
        may_lack: whether rows of the other tables stay that meet none of hosts.
    """

    known: Mapping[str, str]
    on_hosts: frozenset[str]
    own: Sequence[exp.Expression]
    own_conditions: Sequence[exp.Expression]
    joined: Sequence[JoinedTable]
    conditions: Sequence[exp.Expression]
    firsts: Mapping[str, str]
    may_lack: bool

    @property
    def all_conditions(self) -> list[exp.Expression]:
        """Those of hosts, of the joins, and of the last text."""
        by_joins = [one for joined in self.joined for one in joined.on or ()]
        return [*self.own_conditions, *by_joins, *self.conditions]

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
    joins: list[exp.Join] = root.args.get("joins") or []
    tables: list[tuple[exp.Expression, exp.Join | None]] = [(root.args["from_"].this, None)]
    tables += [(join.this, join) for join in joins]
    if joins and joins[0].side == "RIGHT" and not joins[0].args.get("using"):
        tables[:2] = [(joins[0].this, None), (tables[0][0], joins[0])]  # LEFT, the other way round
    known: dict[str, str] = {}
    firsts: dict[str, str] = {}
    outer: dict[str, list[exp.Expression]] = {}
    conditions: list[exp.Expression] = []
    for one, join in tables:
        name = one.alias_or_name.lower()
        side = None if join is None else _side_of(join, is_swapped=one is not join.this)
        if not _is_table(one) or name in known or name == PARTIAL or (join is not None and side is None):
            return None
        said: list[exp.Expression] = []
        for column in [] if join is None else join.args.get("using") or []:
            before = firsts.get(column.name) or _owner(known, column.name)
            if before is None or not has_column(one.name.lower(), column.name):
                return None
            firsts[column.name] = before
            said.append(
                exp.EQ(this=exp.column(column.name, table=before), expression=exp.column(column.name, table=name))
            )
        if join is not None and join.args.get("on"):
            said += [part.copy() for part in conjuncts(join.args["on"])]
        known[name] = one.name.lower()
        if side:
            outer[name] = said
        else:
            conditions += said
    if root.args.get("where"):
        conditions += [part.copy() for part in conjuncts(root.args["where"].this)]
    on_hosts = frozenset(name for name, table in known.items() if table in ON_HOSTS)
    may_lack = not on_hosts.isdisjoint(outer)
    if not on_hosts or len(on_hosts) == len(known) or (may_lack and len(on_hosts) > 1):
        return None
    return _read(
        LookupSource(known, on_hosts, [], [], [], conditions, firsts, may_lack), [one for one, _ in tables], outer
    )


def _read(
    source: LookupSource, tables: Sequence[exp.Expression], outer: Mapping[str, list[exp.Expression]]
) -> LookupSource | None:
    """Say which conditions hosts check, and in which order the others are joined with what they have answered."""
    if not all(map(source.qualify, (*source.conditions, *(one for said in outer.values() for one in said)))):
        return None
    own = [one for one in tables if one.alias_or_name.lower() in source.on_hosts]
    others = [one for one in tables if one.alias_or_name.lower() not in source.on_hosts]
    if source.may_lack:
        (name,) = source.on_hosts
        own_conditions = [one for one in outer[name] if source.side(one)]
        place, left = tables.index(own[0]), [one for one in outer[name] if not source.side(one)]
        conditions: Sequence[exp.Expression] = source.conditions
    else:
        own_conditions = [one for one in source.conditions if source.side(one)]
        place, left = 0, None
        conditions = [one for one in source.conditions if not source.side(one)]
    joined = [JoinedTable(one, outer.get(one.alias_or_name.lower())) for one in others]
    joined.insert(place, JoinedTable(None, left))
    names = [one.alias_or_name.lower() for one in own]
    at_home = (
        join_at_home(own_conditions, source.known, name, {*names[:place]}) for place, name in enumerate(names) if place
    )
    if not all(at_home):
        return None
    return replace(source, own=own, own_conditions=own_conditions, joined=joined, conditions=conditions)


def _is_table(one: exp.Expression) -> bool:
    return (
        type(one) is exp.Table
        and one.name.lower() in sql_tables()
        and not any(value for key, value in one.args.items() if key not in ("this", "alias"))
        and not any(identifier.args.get("quoted") for identifier in one.find_all(exp.Identifier))
    )


def _side_of(join: exp.Join, *, is_swapped: bool) -> str | None:
    """LEFT, or empty for an inner join; None for others."""
    others = any(value for key, value in join.args.items() if key not in {"this", "on", "using", "kind", "side"})
    if others or join.kind not in ("", "INNER", "CROSS", "OUTER"):
        return None
    if is_swapped:
        return "LEFT"
    return join.side if join.side in ("", "LEFT") else None


def _owner(known: Mapping[str, str], column: str) -> str | None:
    """The only table that has a column, by what the question calls it; None if none or several have."""
    owners = [name for name, table in known.items() if has_column(table, column)]
    return owners[0] if len(owners) == 1 else None
