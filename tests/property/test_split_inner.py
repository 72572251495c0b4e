"""Questions in parentheses that are split have, with the text around them, the rows that one host would answer."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("datafusion")
pytest.importorskip("sqlglot")
pa = pytest.importorskip("pyarrow")

from monarch_hpc.telemetry.shipped import question  # noqa: E402
from monarch_hpc.telemetry.sql.context import RowSet, finish, results_of  # noqa: E402
from monarch_hpc.telemetry.sql.plan import QueryPlan  # noqa: E402
from monarch_hpc.telemetry.sql.planning import Planner  # noqa: E402
from tests.property.test_split import NUM_QUERIES, compare, make_rows, merge_tree, rows_of, sort_and_limit  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def planner() -> Planner:
    """The engine keeps threads and descriptors of its own."""
    planner = Planner()
    planner.plan("SELECT 1")
    return planner


def make_query(chance: random.Random) -> tuple[str, int | None, int]:
    """A query, the number of its first columns by which it is sorted, if it is, and its limit; -1 for none."""
    where = chance.choice(["", " WHERE bytes > 1", " WHERE status = 'a' OR rank IS NULL", " WHERE pid = 99"])
    value = chance.choice(["count(*)", "avg(ran_us)", "sum(bytes)", "max(rank)", "median(bytes)"])
    keys = chance.choice([["host", "endpoint"], ["host", "endpoint", "rank"], ["endpoint"], ["error", "endpoint"]])
    if chance.random() < 0.2:
        inner = f"SELECT {', '.join(keys)}, bytes AS num FROM handled{where}"
    else:
        inner = f"SELECT {', '.join(keys)}, {value} AS num FROM handled{where} GROUP BY {', '.join(keys)}"
        inner += chance.choice(["", "", " HAVING count(*) > 2"])
    twice = "SELECT a.endpoint, max(b.num) FROM some a JOIN some b ON a.endpoint = b.endpoint GROUP BY 1"
    most = "most AS (SELECT endpoint, median(num) AS num FROM some GROUP BY endpoint)"
    over = "SELECT s.endpoint, s.num FROM some s JOIN most m ON s.endpoint = m.endpoint AND s.num >= m.num"
    outer = chance.choice(
        [
            f"WITH some AS ({inner}) {twice}",
            f"WITH some AS ({inner}), {most} {over}",
            f"SELECT x.endpoint, stddev(x.num) FROM (-- with (\n{inner}) x GROUP BY x.endpoint",
            f"SELECT endpoint, num FROM (SELECT endpoint, max(num) AS num FROM ({inner}) x GROUP BY 1) WHERE num > 0",
            f"WITH handled AS ({inner}) SELECT endpoint, num FROM handled WHERE endpoint <> ') ('",
            f"SELECT 'all', (SELECT max(num) FROM ({inner}))",
            f"WITH some AS ({inner}) SELECT endpoint, num FROM some UNION ALL SELECT 'none', NULL",
            f"WITH some AS ({inner}) SELECT s.endpoint, s.num FROM some s JOIN handled h ON h.call = s.num",
        ]
    )
    return sort_and_limit(chance, outer, 2)


@pytest.mark.slow  # a hundred questions, each planned for up to 16 hosts
def test_questions_with_others_in_them_have_the_rows_of_one_host(planner: Planner) -> None:
    chance = random.Random(NUM_QUERIES)
    rules: dict[str, int] = {}
    for _ in range(NUM_QUERIES // 2):
        tables = [make_rows(chance, host, chance.choice([0, 0, 3, 20])) for host in range(chance.randrange(1, 17))]
        sql, num_sorted, limit = make_query(chance)
        plan = planner.plan(sql).split
        rules[plan.rule] = rules.get(plan.rule, 0) + 1
        everything = {"handled": pa.concat_tables(tables)}
        expected = finish(QueryPlan("pull", [], sql), [], RowSet(everything), [])
        shards = [results_of(plan.pieces, RowSet({"handled": table}), []) for table in tables]
        answer = finish(plan, merge_tree(plan, shards), RowSet(), [])
        assert answer.column_names == expected.column_names, sql
        compare(rows_of(answer), rows_of(expected), num_sorted, limit, (sql, plan))
    assert min(rules.get(rule, 0) for rule in ("partial", "home", "pull")) >= NUM_QUERIES // 40, rules


GROUPED = "SELECT host, count(*) AS num FROM handled GROUP BY host"


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        (question("slow-rank"), "partial"),
        (question("straggler-host"), "home"),
        (question("late-to-collective"), "partial"),
        (f"WITH some AS ({GROUPED}) SELECT * FROM some", "partial"),
        (f"WITH some AS ({GROUPED}) SELECT s.num, p.state FROM some s JOIN procs p ON s.host = p.host", "pull"),
        # Those with groups only: rows that were cut would be grouped.
        ("SELECT max(call) FROM (SELECT call, pid FROM handled WHERE bytes > 3)", "pull"),
        # All tables of hosts are in it.
        (f"WITH some AS ({GROUPED}) SELECT s.num FROM some s, spans", "pull"),
        (f"WITH some AS ({GROUPED}), more AS ({GROUPED}) SELECT s.num FROM some s, more", "pull"),
        # It stands for itself.
        (f"WITH partial AS (SELECT 1 AS k0, 2 AS a0), some AS ({GROUPED}) SELECT * FROM some", "pull"),
        ("SELECT (SELECT count(*) FROM handled WHERE bytes > x.least) FROM (SELECT 3 AS least) x", "pull"),
    ],
)
def test_a_question_in_parentheses_is_split_if_it_has_all_tables(planner: Planner, sql: str, rule: str) -> None:
    taken = planner.plan(sql)
    assert taken.split.rule == rule and taken.pulled.rule == "pull"
