"""Joins that hosts do, each of its own rows, have the rows that one host with all rows would answer."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("datafusion")
pytest.importorskip("sqlglot")
pa = pytest.importorskip("pyarrow")

from monarch_hpc.telemetry.sql.context import RowSet, columns_needed, finish, results_of  # noqa: E402
from monarch_hpc.telemetry.sql.plan import MAX_ROWS, QueryPlan  # noqa: E402
from monarch_hpc.telemetry.sql.planning import Planner  # noqa: E402
from tests.property.test_split import NUM_QUERIES, compare, make_rows, merge_tree, rows_of, sort_and_limit  # noqa: E402

TABLES = ("handled", "sends", "spans")


@pytest.fixture(scope="module", autouse=True)
def planner() -> Planner:
    """The engine keeps threads and descriptors of its own."""
    planner = Planner()
    planner.plan("SELECT 1")
    return planner


def make_join(chance: random.Random) -> tuple[str, str]:
    """FROM and WHERE of a query: of two or three tables, which are called a, b and c."""
    first, *others = [chance.choice(TABLES[:2]) for _ in range(chance.choice([2, 2, 3]))]
    text, conditions, called = f"{first} a", [], ["a"]
    for name, other in zip("bc", others, strict=False):
        left = chance.choice(called)
        home = [f"{left}.host = {name}.host", f"{name}.incarnation = {left}.incarnation"]
        apart = [f"{left}.call = {name}.call", f"{left}.rank = {name}.rank", f"{left}.endpoint = {name}.actor"]
        chosen = chance.sample(home, chance.choice([0, 1, 1, 1, 2])) + chance.sample(apart, chance.randrange(1, 3))
        chance.shuffle(chosen)
        if chance.random() < 0.2:
            chosen.append(f"{name}.bytes > 1")
        kind = chance.choice(["JOIN", "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "USING", ","])
        if kind == "USING" and name == "b":
            text += f" JOIN {other} b USING ({chance.choice(['host, ', 'incarnation, ', ''])}call, rank)"
        elif kind in ("USING", ","):
            # A comma binds less: a join behind it does not see the table before it.
            text += f", {other} {name}" if len(called) == len(others) else f" CROSS JOIN {other} {name}"
            conditions += chosen
        else:
            text += f" {kind} {other} {name} ON {' AND '.join(chosen)}"
        called.append(name)
    conditions += chance.choice([[], [], ["a.bytes > 0"], ["b.status = 'a'"], ["(a.rank IS NULL OR b.pid < 2)"]])
    return text, f" WHERE {' AND '.join(conditions)}" if conditions else ""


def make_query(chance: random.Random) -> tuple[str, int | None, int]:
    """A query, the number of its first columns by which it is sorted, if it is, and its limit; -1 for none."""
    tables, where = make_join(chance)
    keys = chance.sample(["a.endpoint", "b.actor", "b.rank", "a.host", "b.incarnation"], chance.randrange(3))
    if chance.random() < 0.6:
        aggregates = ["count(*)", "count(b.call)", "sum(a.bytes)", "avg(b.bytes)", "max(a.t)", "min(b.status)"]
        chosen = chance.sample(aggregates, 2)
        if chance.random() < 0.25:
            chosen.append("median(b.bytes)")
        having = chance.choice(["", "", " HAVING count(*) > 2"]) if keys else ""
        names = [*keys, *chosen]
        sql = f"SELECT {', '.join(names)} FROM {tables}{where}"
        sql += f" GROUP BY {', '.join(keys)}{having}" if keys else ""
    else:
        names = [*keys, "a.t", "b.call"]
        sql = f"SELECT {chance.choice(['', 'DISTINCT '])}{', '.join(names)} FROM {tables}{where}"
    return sort_and_limit(chance, sql, len(names))


@pytest.mark.slow  # hundreds of questions, each planned for several hosts
def test_joins_of_hosts_have_the_rows_of_one_host(planner: Planner) -> None:
    chance = random.Random(NUM_QUERIES)
    rules: dict[str, int] = {}
    for _ in range(NUM_QUERIES):
        hosts = [
            {name: make_rows(chance, host, chance.choice([0, 2, 8]), name) for name in TABLES}
            for host in range(chance.randrange(1, 6))
        ]
        sql, num_sorted, limit = make_query(chance)
        try:
            taken = planner.plan(sql)
        except ValueError as error:
            if "ORDER BY" in str(error):  # it does not sort by some expressions of aggregates
                continue
            raise AssertionError(sql) from error
        plan = taken.split
        rules[plan.rule] = rules.get(plan.rule, 0) + 1
        assert plan.by_host == (plan.rule != "pull"), sql
        everything = {name: pa.concat_tables([host[name] for host in hosts]) for name in TABLES}
        expected = finish(QueryPlan("pull", [], sql), [], RowSet(everything), [])
        for one in {plan.rule: plan, "pull": taken.pulled}.values():
            shards = [results_of(one.pieces, RowSet(host), []) for host in hosts]
            answer = finish(one, merge_tree(one, shards), RowSet(), [])
            assert answer.column_names == expected.column_names, sql
            compare(rows_of(answer), rows_of(expected), num_sorted, limit, (sql, one))
    assert min(rules.get(rule, 0) for rule in ("partial", "rows", "pull")) >= NUM_QUERIES // 20, rules
    assert rules.get("home", 0) > 0, rules


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        (
            "SELECT a.host, count(*) FROM handled a JOIN spans b ON a.host = b.host AND a.pid = b.pid GROUP BY 1",
            "partial",
        ),
        (
            "SELECT count(*) FROM handled a, sends b WHERE (a.incarnation = b.incarnation) AND a.call < b.call",
            "partial",
        ),
        ("SELECT name, max(ran_us) FROM handled JOIN spans USING (run, host, pid) GROUP BY name", "partial"),
        ("SELECT a.host, median(b.took_us) FROM handled a JOIN spans b ON a.host = b.host GROUP BY a.host", "home"),
        (
            "SELECT a.host, median(b.took_us) FROM handled a RIGHT JOIN spans b ON a.host = b.host GROUP BY a.host",
            "pull",
        ),
        (
            "SELECT a.host, median(b.took_us) FROM handled a LEFT JOIN spans b ON a.host = b.host GROUP BY a.host",
            "home",
        ),
        (
            "SELECT b.host, median(b.took_us) FROM handled a RIGHT JOIN spans b ON a.host = b.host GROUP BY b.host",
            "home",
        ),
        (
            "SELECT a.host, median(b.took_us) FROM handled a FULL JOIN spans b ON a.host = b.host GROUP BY a.host",
            "pull",
        ),
        ("SELECT b.host, count(*) FROM handled a FULL JOIN spans b ON a.host = b.host GROUP BY b.host", "partial"),
        ("SELECT a.call FROM handled a LEFT JOIN spans b ON a.host = b.host WHERE b.span IS NULL", "rows"),
        ("SELECT a.call FROM handled a JOIN handled b ON a.incarnation = b.incarnation", "rows"),
        # The caller of a call is on another host, and a process of a table of the head on all of them.
        ("SELECT a.call FROM handled a JOIN sends b ON a.caller = b.incarnation AND a.call = b.call", "pull"),
        ("SELECT a.call FROM handled a JOIN sends b ON a.caller_host = b.host", "pull"),
        ("SELECT a.call FROM handled a JOIN procs b ON a.host = b.host", "pull"),
        # Not for each row.
        ("SELECT a.call FROM handled a JOIN sends b ON a.host = b.host OR a.call = b.call", "pull"),
        ("SELECT a.call FROM handled a JOIN sends b ON NOT a.host = b.host", "pull"),
        ("SELECT a.call FROM handled a LEFT JOIN sends b ON a.call = b.call WHERE a.host = b.host", "pull"),
        ("SELECT a.call FROM handled a JOIN sends b ON a.host = a.host", "pull"),
        ("SELECT a.call FROM handled a JOIN sends b ON a.host = b.host JOIN spans c ON c.pid = b.pid", "pull"),
        ("SELECT a.call FROM handled a JOIN (SELECT * FROM sends) b ON a.host = b.host", "pull"),
        ("SELECT a.call FROM handled a NATURAL JOIN sends b", "pull"),
    ],
)
def test_hosts_join_what_is_on_one_host(planner: Planner, sql: str, rule: str) -> None:
    plan = planner.plan(sql).split
    assert (plan.rule, plan.by_host) == (rule, rule != "pull")


def test_hosts_make_the_columns_of_both_sides_that_are_named(planner: Planner) -> None:
    sql = (
        "SELECT a.endpoint, b.name FROM handled a JOIN spans b ON a.host = b.host AND a.pid = b.pid WHERE b.took_us > 3"
    )
    (piece,) = planner.plan(sql).split.pieces
    assert piece.tables == ["handled", "spans"] and piece.host.endswith(f" LIMIT {MAX_ROWS + 1}")
    keys = {"run", "mesh", "rank", "host", "pid", "t", "record"}
    assert columns_needed([piece]) == {"handled": keys | {"endpoint"}, "spans": keys | {"name", "took_us"}}
