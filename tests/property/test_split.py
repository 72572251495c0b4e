"""Questions that are split over hosts have the rows that one host with all rows would answer."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("datafusion")
pytest.importorskip("sqlglot")
pa = pytest.importorskip("pyarrow")

from monarch_hpc.telemetry.kept.arrow import schema_of  # noqa: E402
from monarch_hpc.telemetry.shipped import question  # noqa: E402
from monarch_hpc.telemetry.sql.context import RowSet, columns_needed, combine, finish, results_of  # noqa: E402
from monarch_hpc.telemetry.sql.plan import QueryPlan  # noqa: E402
from monarch_hpc.telemetry.sql.planning import Planner  # noqa: E402
from monarch_hpc.telemetry.sql.results import pack, unpack  # noqa: E402
from monarch_hpc.wire.tables.pieces import sql_tables  # noqa: E402

NUM_QUERIES = int(os.environ.get("NUM_QUERIES", "200"))
"""More of them search longer."""

FANOUT = 3
_T = 1_800_000_000


@pytest.fixture(scope="module", autouse=True)
def planner() -> Planner:
    """The engine keeps threads and descriptors of its own."""
    planner = Planner()
    planner.plan("SELECT 1")
    return planner


def make_rows(chance: random.Random, host: int, num: int, table: str = "handled") -> Any:
    """RowSet of a table of one host; with NULLs, which no process writes, but a later column may have."""
    values: dict[str, list[object]] = {}
    for one in schema_of(sql_tables()[table]):
        if one.name == "host":
            column: list[object] = [f"n{host}"] * num
        elif one.name == "incarnation":
            column = [f"{host}-{chance.randrange(2)}" for _ in range(num)]
        elif one.name == "t":
            column = [datetime.fromtimestamp(_T + chance.randrange(20), UTC) for _ in range(num)]
        elif one.type == pa.bool_():
            column = [chance.random() < 0.5 for _ in range(num)]
        elif one.type == pa.int64():
            column = [chance.randrange(4) for _ in range(num)]
        elif one.type == pa.float64():
            column = [chance.randrange(12) / 4 for _ in range(num)]
        else:
            column = [chance.choice(["", "a", "b", "ab"]) for _ in range(num)]
        if one.name in ("bytes", "ran_us", "error", "rank"):
            column = [None if chance.random() < 0.2 else value for value in column]
        values[one.name] = column
    return pa.table(values, schema=schema_of(sql_tables()[table]))


def make_query(chance: random.Random) -> tuple[str, int | None, int]:
    """A query, the number of its first columns by which it is sorted, if it is, and its limit; -1 for none."""
    scalar = ["rank", "endpoint", "error", "bytes", "status", "through_tree", "host", "incarnation", "rank + 1"]
    where = chance.choice(
        [
            "",
            "",
            " WHERE bytes > 1",
            " WHERE status = 'a' OR error LIKE 'a%'",
            " WHERE rank IS NULL",
            " WHERE t >= TIMESTAMP '2027-01-15T08:00:10' AND NOT through_tree",
            " WHERE bytes IN (1, 2) AND ran_us BETWEEN 0.5 AND 2",
            " WHERE pid = 99",
        ]
    )
    kind = chance.randrange(10)
    if kind < 5:
        keys = chance.sample(scalar, chance.randrange(4))
        aggregates = [
            *("count(*)", "count(error)", "sum(bytes)", "avg(bytes)", "avg(ran_us)", "min(error)", "max(t)"),
            *("max(ran_us) - min(ran_us)", "sum(ran_us) / 2", "count(*) FILTER (WHERE status = 'a')", "min(bytes) + 1"),
            *(
                "sum(bytes) FILTER (WHERE rank > 1)",
                "round(avg(ran_us), 2)",
                "CASE WHEN count(*) > 3 THEN 1 ELSE 0 END",
            ),
        ]
        chosen = chance.sample(aggregates, chance.randrange(1, 4))
        if chance.random() < 0.25:
            others = ["median(bytes)", "count(DISTINCT rank)", "stddev(ran_us)", "regr_slope(bytes, rank)"]
            chosen.append(chance.choice([*others, "round(extract(epoch FROM max(t) - min(t)), 1)"]))
            if chance.random() < 0.7:
                keys = ["host", *(key for key in keys if key != "host")]
        outputs = [*keys, *chosen]
        named = [f"{text} AS x{place}" if chance.random() < 0.5 else text for place, text in enumerate(outputs)]
        sql = f"SELECT {', '.join(named)} FROM handled{chance.choice(['', ' h', ' AS h'])}{where}"
        if keys:
            by_number = [str(place + 1) for place in range(len(keys))]
            sql += f" GROUP BY {', '.join(chance.choice([keys, by_number]))}"
            sql += chance.choice(["", "", " HAVING count(*) > 2", " HAVING max(bytes) IS NOT NULL"])
        num = len(outputs)
        names = outputs
    elif kind < 6:
        names = chance.sample(scalar, 2)
        num = 2
        sql = f"SELECT DISTINCT {', '.join(names)} FROM handled{where}"
    elif kind < 9:
        names = chance.sample([*scalar, "t", "ran_us * 2"], 3)
        num = 3
        sql = f"SELECT {', '.join(names)} FROM handled{where}"
    else:
        names = ["host", "num"]
        num = 2
        sql = (
            f"WITH some AS (SELECT host, endpoint, count(*) AS num FROM handled{where} GROUP BY host, endpoint) "
            "SELECT a.host, max(b.num) AS num FROM some a JOIN some b ON a.endpoint = b.endpoint GROUP BY a.host"
        )
    if chance.random() < 0.6:
        order = [
            f"{place + 1}{chance.choice(['', ' DESC', ' NULLS FIRST', ' DESC NULLS LAST'])}" for place in range(num)
        ]
        num_sorted = chance.randrange(1, num + 1)
        sql += f" ORDER BY {', '.join(order[:num_sorted])}"
        if chance.random() < 0.5:
            offset = chance.choice([0, 0, 2])
            limit = chance.choice([1, 3, 10])
            return f"{sql} LIMIT {limit}" + (f" OFFSET {offset}" if offset else ""), num_sorted, limit
        return sql, num_sorted, -1
    return sql, None, -1


def merge_tree(plan: QueryPlan, shards: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Combine the results of shards as the nodes of a tree do; return those of each piece."""
    level = [[*unpack(pack(results))] for results in shards]
    while len(level) > FANOUT:
        level = [
            [
                combine(piece, [results[place] for results in level[at : at + FANOUT]])
                for place, piece in enumerate(plan.pieces)
            ]
            for at in range(0, len(level), FANOUT)
        ]
    return [[results[place] for results in level] for place in range(len(plan.pieces))]


def rows_of(table: Any) -> list[tuple[object, ...]]:
    """The rows; the last digits of numbers depend on the order in which they are added up."""
    rows = table.rename_columns([str(place) for place in range(table.num_columns)]).to_pylist()
    return [tuple(f"{one:.9g}" if isinstance(one, float) else one for one in row.values()) for row in rows]


@pytest.mark.slow  # hundreds of questions, each planned for up to 16 hosts
def test_split_questions_have_the_rows_of_one_host(planner: Planner) -> None:
    chance = random.Random(NUM_QUERIES)
    rules: dict[str, int] = {}
    for _ in range(NUM_QUERIES):
        tables = [make_rows(chance, host, chance.choice([0, 0, 3, 20])) for host in range(chance.randrange(1, 17))]
        sql, num_sorted, limit = make_query(chance)
        try:
            taken = planner.plan(sql)
            plan, pulled = taken.split, taken.pulled
        except ValueError as error:
            if "ORDER BY" in str(error):  # it does not sort by some expressions of aggregates
                continue
            raise
        rules[plan.rule] = rules.get(plan.rule, 0) + 1
        everything = {"handled": pa.concat_tables(tables)}
        expected = finish(QueryPlan("pull", [], sql), [], RowSet(everything), [])
        for one in {plan.rule: plan, "pull": pulled}.values():
            shards = [results_in_parts(chance, one, table) for table in tables]
            answer = finish(one, merge_tree(one, shards), RowSet(), [])
            assert answer.column_names == expected.column_names, sql
            compare(rows_of(answer), rows_of(expected), num_sorted, limit, (sql, one))
            if limit >= 0 and num_sorted is not None:
                whole, _, _ = sql.partition(" LIMIT ")
                every = {*rows_of(finish(QueryPlan("pull", [], whole), [], RowSet(everything), []))}
                assert every.issuperset(rows_of(answer)), (sql, one)
    assert min(rules.get(rule, 0) for rule in ("partial", "home", "rows", "pull")) >= NUM_QUERIES // 40, rules


def results_in_parts(chance: random.Random, plan: QueryPlan, rows: Any) -> list[Any]:
    """The results of one host, made of those of two parts of its rows where that is possible."""
    (piece,) = plan.pieces
    if not piece.is_divisible:
        return results_of(plan.pieces, RowSet({"handled": rows}), [])
    at = chance.randrange(len(rows) + 1)
    parts = [results_of(plan.pieces, RowSet({"handled": some}), []) for some in (rows.slice(0, at), rows.slice(at))]
    return [combine(piece, [result for (result,) in parts])]


def sort_and_limit(chance: random.Random, sql: str, num: int) -> tuple[str, int | None, int]:
    """A query that is maybe sorted by the first of its *num* columns, and limited; their number; and the limit."""
    if chance.random() < 0.5:
        return sql, None, -1
    num_sorted = chance.randrange(1, num + 1)
    sql += f" ORDER BY {', '.join(str(place + 1) for place in range(num_sorted))}"
    return (f"{sql} LIMIT 5", num_sorted, 5) if chance.random() < 0.5 else (sql, num_sorted, -1)


def compare(
    rows: list[tuple[object, ...]],
    expected: list[tuple[object, ...]],
    num_sorted: int | None,
    limit: int,
    about: object,
) -> None:
    """Ties may be in any order, and where they are at the limit, any of them may be there."""
    if num_sorted is not None:
        assert [row[:num_sorted] for row in rows] == [row[:num_sorted] for row in expected], about
    if limit < 0:
        assert sorted(map(repr, rows)) == sorted(map(repr, expected)), about
    assert len(rows) == len(expected), about


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("SELECT endpoint, count(*), avg(ran_us) FROM handled GROUP BY endpoint", "partial"),
        ("SELECT host, median(ran_us) FROM handled GROUP BY host", "home"),
        ("SELECT host, count(DISTINCT rank) FROM handled GROUP BY host", "home"),
        ("SELECT endpoint, count(DISTINCT rank) FROM handled GROUP BY endpoint", "pull"),
        ("SELECT extract(epoch FROM max(t) - min(t)) FROM handled", "partial"),
        *((question(name), "partial") for name in ("endpoint-p99", "link-errors", "link-speed", "slow-rank")),
        *((question(name), "home") for name in ("gpu-throttle", "memory-growth", "straggler-host")),
        ("SELECT t, error FROM handled WHERE status = 'failed' ORDER BY t DESC LIMIT 20", "rows"),
        ("SELECT endpoint, median(ran_us) FROM handled GROUP BY endpoint", "pull"),
        ("SELECT count(*) FROM handled WHERE t > now() - INTERVAL '5 seconds'", "pull"),
        ("SELECT a.call FROM handled a JOIN handled b ON a.call = b.call", "pull"),
        ("SELECT * FROM handled", "pull"),
        ("SELECT rank, sum(bytes) OVER (ORDER BY t) FROM handled", "pull"),
        ("SELECT random(), count(*) FROM handled", "pull"),
    ],
)
def test_what_is_not_understood_is_pulled(planner: Planner, sql: str, rule: str) -> None:
    assert planner.plan(sql).split.rule == rule


def test_what_is_pulled_is_what_the_question_needs(planner: Planner) -> None:
    sql = "SELECT a.endpoint FROM handled a JOIN handled b ON a.call = b.call WHERE a.status = 'failed' AND b.rank > 3"
    (piece,) = planner.plan(sql).pulled.pieces
    assert piece.host.startswith("SELECT rank, endpoint, call, status FROM handled WHERE ")
    plain = piece.host.replace('"', "")
    assert "handled.status = 'failed'" in plain and " OR " in plain and "handled.rank > 3" in plain
    sql = "SELECT count(*) FROM handled WHERE rank > (SELECT max(rank) FROM handled WHERE pid = 3)"
    (piece,) = planner.plan(sql).pulled.pieces
    assert piece.host.startswith(("SELECT rank, pid FROM handled ORDER BY t DESC LIMIT", "SELECT * "))


def test_hosts_make_the_columns_that_their_texts_name(planner: Planner) -> None:
    def needed(sql: str) -> set[str]:
        (columns,) = columns_needed(planner.plan(sql).split.pieces).values()
        return columns

    keys = {"run", "mesh", "rank", "host", "pid", "t", "record"}
    assert needed("SELECT endpoint, count(*), avg(ran_us) FROM handled GROUP BY 1") == keys | {"endpoint", "ran_us"}
    assert needed("SELECT call FROM handled WHERE bytes > 3 AND error LIKE 'a%'") == keys | {"call", "bytes", "error"}
    everything = {column.name for column in sql_tables()["handled"].columns}
    assert needed("SELECT bytes * 2 FROM handled") == everything
    assert len(needed("SELECT host FROM host_samples")) == len(sql_tables()["host_samples"].columns)


@pytest.mark.parametrize("mean", [2.0, 7.0, 12.0])
def test_how_long_endpoints_take_is_counted_with_a_small_error(planner: Planner, mean: float) -> None:
    chance, plan = random.Random(mean), planner.plan(question("endpoint-p99")).split
    shards, took = [], []
    for host in range(3):
        rows = make_rows(chance, host, 400)
        ran = [chance.lognormvariate(mean, 1.0) for _ in range(len(rows))]
        same = {"actor": ["a"], "endpoint": ["step"], "status": ["ok"]}
        for name, values in {**{name: one * len(rows) for name, one in same.items()}, "ran_us": ran}.items():
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
        took += ran
        shards.append(results_in_parts(chance, plan, rows))
    (row,) = finish(plan, merge_tree(plan, shards), RowSet(), []).to_pylist()
    took.sort()
    assert row["calls"] == len(took) and row["longest_ms"] == pytest.approx(took[-1] / 1e3, abs=1e-3)
    for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99)):
        exact = took[int(part * len(took)) - 1] / 1e3
        assert row[name] == pytest.approx(exact, rel=0.04, abs=1e-3)
