"""Records in files: the rows of live processes, each once, whatever is killed, and however full a disk is."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import monarch_hpc
from monarch_hpc import Actor, endpoint, telemetry
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import HISTORY
from monarch_hpc.telemetry.kept.compact import compact, drop_old
from monarch_hpc.telemetry.kept.reading import find_kept
from monarch_hpc.telemetry.layout import CAST, NO_STEP
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.keeper import RecordKeeper
from monarch_hpc.telemetry.scribe.rate import halvings
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.scribe import KeepRecords
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.pieces import sql_tables
from monarch_hpc.wire.tables.procs import RunProcess
from tests.system.support.controlling import controlled, settle

pq = pytest.importorskip("pyarrow.parquet")

F_SEAL_GROW = 0x4
CORRECTION = Correction(5 * 10**9, 12.34)
PLACE = ProcPlace("run", 1, 2, 77)
PROC = RunProcess("run", 1, 2, "n1", 77, "ready", "")


class Written:
    """A process that records, and its host's keeper."""

    def __init__(self, directory: Path, rank: int = 0, max_per_s: int = 1_000_000, max_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.order = KeepRecords(str(directory), rank, 60.0, max_bytes, max_per_s, 600.0)
        self.fd = make_memory("proc")
        self.recorder = Recorder(os.dup(self.fd), 0xABC)
        self.spool = os.memfd_create("spool", os.MFD_ALLOW_SEALING)
        self.keeper = self.start()
        self.mark = self.recorder.actor(7, "trainer", 3).mark
        self.step = self.recorder.names.endpoint("trainer", "step")
        self.peer = self.recorder.names.proc(0xF, "n2")
        self.number = 0

    def start(self) -> RecordKeeper:
        """Start a keeper, as a helper does that is the first or the next one."""
        keeper = RecordKeeper(self.order, "n1", os.dup(self.spool), lambda: CORRECTION)
        keeper.add(PLACE, self.fd)
        return keeper

    def handle(self, num: int) -> None:
        slot = self.recorder.handling(self.mark)
        for _ in range(num):
            self.number += 1
            slot.begin(self.step, self.peer, self.number | (CAST if self.number % 3 == 0 else 0), 10, monotonic_ns())
            slot.end(40)
        self.recorder.release(slot)

    def kill(self) -> None:
        """Let another keeper take over, as if the helper had been killed."""
        os.close(self.keeper._spool_fd)
        self.keeper = self.start()

    def close(self) -> None:
        self.keeper.close()
        os.close(self.fd)
        os.close(self.spool)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Written]]:
    with contextlib.ExitStack() as stack:

        def make(folder: str = "", **limits: int) -> Written:
            return stack.enter_context(contextlib.closing(Written(tmp_path / folder, **limits)))

        yield make


@pytest.fixture
def written(make: Callable[..., Written]) -> Written:
    return make()


def live(written: Written, table: str) -> list[dict[str, Any]]:
    """The rows that the process would answer with, with the time in microseconds."""
    rows = HISTORY[table](memory_of(written.fd), PROC, CORRECTION)
    names = [column.name for column in TABLES[table].columns]
    return [{name: getattr(row, name) for name in names} for row in rows]


def kept(directory: Path, table: str, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows that are in files, or some of their columns."""
    found = find_kept(directory)
    assert found.unreadable == []
    some = {} if columns is None else {table: columns}
    tables = [*found.rows([table], columns=some).values()]
    tables += [pq.read_table(path, columns=columns) for path in found.files.get(table, {})]
    return [row for one in tables for row in one.to_pylist()]


def comparable(rows: list[dict[str, Any]]) -> tuple[list[str], list[float], list[float]]:
    """Rows to compare: what does not depend on rounding, as text; their times, and their durations."""
    found = []
    for row in rows:
        t = row["t"]
        moment = t if isinstance(t, datetime) else datetime.fromtimestamp(t, UTC)
        took = [row[name] for name in ("ran_us", "took_us") if name in row]
        plain = {name: value for name, value in row.items() if name not in ("t", "ran_us", "took_us")}
        found.append((repr(plain), moment.timestamp(), float(took[0]) if took else 0.0))
    found.sort()
    return [row for row, _, _ in found], [t for _, t, _ in found], [took for _, _, took in found]


TABLE_NAMES = ["handled", "sends", "metrics", "spans", "transfers"]


def record_everything(written: Written) -> None:
    recorder, names, rings = written.recorder, written.recorder.names, written.recorder.rings
    written.handle(20)
    try:
        raise KeyError("secret")
    except KeyError as error:
        failure = names.error(error)
    failing = recorder.handling(written.mark)
    failing.begin(written.step, written.peer, CAST | 6, 200, monotonic_ns())
    failing.fail(failure)
    recorder.release(failing)
    for number in (1, 2, 3, CAST | 1, CAST | 2):
        peer = 40 if number & CAST else written.peer
        recorder.sent(number, written.mark, written.step, peer, 100 + (number & 7), 5)
    recorder.failed(2)
    recorder.answered(1)
    recorder.answered(3)
    recorder.answered(CAST | 1)
    recorder.answered(CAST | 2)
    recorder.sent(0, 0, written.step, written.peer, 1, 1)
    recorder.metric(written.mark, names.metric("loss"), names.tags({"a": 1}), 10, 0.5)
    recorder.metric(0, names.metric("loss"), 0, NO_STEP, float("inf"))
    span = rings.span(written.mark, names.span("load"), 0, 0)
    rings.span(written.mark, names.span("read"), 0, span.number).end(failed=True)
    span.end(failed=False)
    recorder.moved("cma", written.peer, 30, 5_000, write=True, failed=False)
    recorder.moved("cma", written.peer, 30, 5_000, write=False, failed=True)


@pytest.mark.parametrize("tables", [False, True], ids=["parts", "tables"])
def test_files_have_the_rows_that_the_process_has(written: Written, tables: bool) -> None:
    record_everything(written)
    written.keeper.finish()
    if tables:
        assert compact(written.directory, 0) == 1
    for name in TABLE_NAMES:
        rows, times, took = comparable(kept(written.directory, name))
        expected, moments, durations = comparable(live(written, name))
        assert rows == expected and rows, name
        assert times == pytest.approx(moments, abs=2e-6), name
        assert took == pytest.approx(durations, rel=5e-4), name  # they are kept with eleven binary digits


def calls_of(directory: Path, table: str = "handled") -> list[int]:
    return sorted(row["call"] for row in kept(directory, table, ["call"]))


def test_the_next_helper_goes_on_where_one_was_killed(written: Written) -> None:
    written.handle(100)
    written.keeper.drain()
    open_span = written.recorder.rings.span(written.mark, written.recorder.names.span("long"), 0, 0)
    for number in range(1, 50):
        written.recorder.sent(number, written.mark, written.step, written.peer, 1, 5)
        written.recorder.answered(number)
    written.handle(50)
    written.keeper.drain()
    os.pwrite(written.spool, b"\xff\x00\x00\x00{torn", os.fstat(written.spool).st_size)  # killed while it wrote
    written.kill()
    open_span.end(failed=False)
    written.handle(7)
    written.keeper.finish()
    written.handle(3)
    written.kill()  # after it had written a part
    written.keeper.drain()
    written.kill()  # before it had written the names
    written.keeper.finish()
    assert {row["endpoint"] for row in kept(written.directory, "handled")} == {"step"}
    assert calls_of(written.directory) == [*range(1, 161)]
    assert calls_of(written.directory, "sends") == [*range(1, 50)]
    assert [row["name"] for row in kept(written.directory, "spans")] == ["long"]
    assert written.keeper.row().lost == 0


def test_what_is_overwritten_before_it_is_taken_is_counted(written: Written) -> None:
    written.handle(40_000)
    written.keeper.finish()
    row = written.keeper.row()
    assert row.lost > 0 and row.records + row.lost == 40_001  # with the actor's begin
    assert calls_of(written.directory) == [*range(row.lost, 40_001)]


def test_above_the_rate_both_sides_keep_the_same_calls_and_all_that_failed(make: Callable[..., Written]) -> None:
    callee, caller = make("callee", max_per_s=1000), make("caller", max_per_s=4000)
    for one in (callee, caller):
        one.keeper._num_halvings = halvings(8000, one.order.max_per_s)
    slot = callee.recorder.handling(callee.mark)
    for number in range(1, 8001):
        caller.recorder.sent(number, caller.mark, caller.step, caller.peer, 1, 5)
        slot.begin(callee.step, callee.peer, number, 1, monotonic_ns())
        if number % 1000:
            slot.end(1)
            caller.recorder.answered(number)
        else:
            slot.fail(callee.recorder.names.text("failure"))
            caller.recorder.failed(number)
    for one in (callee, caller):
        one.keeper.finish()
    handled = {row["call"] for row in kept(callee.directory, "handled")}
    sent = {row["call"] for row in kept(caller.directory, "sends")}
    assert handled <= sent and {*range(1000, 8001, 1000)} <= handled
    assert 500 < len(handled) < 1500 and 3000 < len(sent) < 5000
    row = callee.keeper.row()
    assert (row.records, row.left_out, row.lost) == (len(handled), 8000 - len(handled), 0)


def test_without_room_records_are_counted_and_the_keeper_goes_on(written: Written) -> None:
    written.handle(10)
    (written.directory / "telemetry").write_text("in the way")
    written.keeper.finish()
    assert "telemetry" in written.keeper.row().problem and written.keeper.row().parts == 0
    fcntl.fcntl(written.spool, fcntl.F_ADD_SEALS, F_SEAL_GROW)  # the host's disk is full
    written.handle(10)
    written.keeper.drain()
    assert (written.keeper.row().records, written.keeper.row().lost) == (10, 10)
    (written.directory / "telemetry").unlink()
    written.keeper.finish()
    assert written.keeper.row().problem == "" and calls_of(written.directory) == [*range(1, 11)]


def test_the_oldest_files_are_removed_when_there_are_too_many(make: Callable[..., Written], tmp_path: Path) -> None:
    written = make(max_bytes=6000)
    for _ in range(12):
        written.handle(100)
        written.keeper.finish()
    parts = find_kept(tmp_path).parts
    assert 0 < sum(part.num_bytes for part in parts) <= 8000 and parts[-1].number == 12
    assert compact(tmp_path, 0) == len(parts)
    written.handle(100)
    written.keeper.finish()
    compact(tmp_path, 0)
    assert len(find_kept(tmp_path).files["handled"]) == 2
    drop_old(tmp_path, 0, 1)
    assert len(find_kept(tmp_path).files["handled"]) == 1 and calls_of(tmp_path)[-1] == 1300


class Trainer(Actor):
    """Logs."""

    @endpoint
    def step(self, number: int) -> None:
        monarch_hpc.log_metric("loss", 1 / (number + 1), step=number)


def test_questions_join_kept_and_live_rows_each_once() -> None:
    loaded = load().config
    telemetry_section = replace(loaded.telemetry, keep="always", ship_s=0.2)
    with (
        controlled(replace(loaded, telemetry=telemetry_section), 2) as hosts,
        hosts.spawn_procs(per_host={"gpus": 2}) as procs,
    ):
        settle(procs)
        trainers = procs.spawn("trainer", Trainer)
        directory = Path(os.environ[DIRECTORY_VARIABLE])
        for number in range(10):
            trainers.step.call(number).get(60)
            monarch_hpc.log_metric("mean", 0.5, step=number)
        wait_until(
            "rows of the procs and of the program in files",
            lambda: (len(kept(directory, "handled")), len(kept(directory, "metrics"))),
            60.0,
            accept=lambda found: found == (40, 50),
        )
        trainers.step.call(10).get(60)
        sql = (
            "SELECT name, count(*), count(DISTINCT CAST(pid AS VARCHAR) || step) FROM metrics GROUP BY name UNION ALL "
            "SELECT endpoint, count(*), count(DISTINCT CAST(pid AS VARCHAR) || record) FROM handled GROUP BY endpoint"
        )
        found = telemetry.query(sql, timeout_s=60).rows
        assert sorted(found) == [("loss", 44, 44), ("mean", 10, 10), ("step", 44, 44)]
        answer = telemetry.query("SELECT keeps, lost, problem FROM keeping", timeout_s=60)
        assert answer.rows == [(True, 0, ""), (True, 0, "")] and answer.missing_hosts == answer.unreadable == []


@pytest.fixture(scope="module")
def planner() -> Any:
    """The engine keeps threads and descriptors of its own."""
    pytest.importorskip("sqlglot")
    planner = pytest.importorskip("monarch_hpc.telemetry.sql.planning").Planner()
    planner.plan("SELECT 1")
    return planner


def test_groups_and_rows_are_those_of_parts_and_tables_alike(written: Written, planner: Any) -> None:
    from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, finish, results_of

    everything = [column.name for column in sql_tables()["handled"].columns]
    questions = [
        "SELECT endpoint, count(*), max(call) FROM handled GROUP BY endpoint",
        "SELECT call, endpoint, status FROM handled ORDER BY call",
        f"SELECT {', '.join(everything)} FROM handled ORDER BY record",
        "SELECT endpoint, median(call) FROM handled GROUP BY endpoint",
    ]

    def ask(sql: str) -> list[dict[str, object]]:
        taken, rows, unreadable = planner.plan(sql), RowSet({}, [KeptRows(written.directory)]), list[str]()
        results = results_of(taken.split.pieces, rows, unreadable)
        found: list[dict[str, object]] = finish(
            taken.split, [[one] for one in results], RowSet(), unreadable
        ).to_pylist()
        assert unreadable == []
        return [{key: value for key, value in row.items() if key != "ran_us"} for row in found]

    written.handle(10)
    written.keeper.finish()
    written.handle(10)
    written.keeper.finish()
    in_parts = [ask(sql) for sql in questions]
    assert [row["count(*)"] for row in in_parts[0]] == [20] and len(in_parts[1]) == 20
    compact(written.directory, 0)
    assert [ask(sql) for sql in questions] == in_parts
    written.handle(5)
    written.keeper.finish()  # a part beside the table
    assert [row["count(*)"] for row in ask(questions[0])] == [25] and len(ask(questions[1])) == 25


def test_files_that_are_cut_off_or_something_else_are_left_out(written: Written) -> None:
    written.handle(10)
    written.keeper.finish()
    written.handle(10)
    written.keeper.finish()
    first, second = find_kept(written.directory).parts
    second.path.write_bytes(second.path.read_bytes()[:-20])
    (first.path.parent / "7-1").write_bytes(b"something else")
    (first.path.parent / "no part").write_bytes(b"")
    assert len(calls_of(written.directory)) >= 10
    compact(written.directory, 0)
    assert calls_of(written.directory)[:10] == [*range(1, 11)]
    (path,) = find_kept(written.directory).files["handled"]
    path.with_name("0-9.parquet").write_bytes(path.read_bytes()[:-20])
    assert find_kept(written.directory).unreadable == [path.with_name("0-9.parquet")]
