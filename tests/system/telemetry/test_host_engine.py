"""The engine of a host: its rows, also of the dead, and what becomes of a question when it is killed or stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from monarch_hpc.core.clock import monotonic, monotonic_ns
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import HISTORY
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.engine import HostEngine
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.scribe import AskEngine, BeginLeaf, ProcOver, ProcRuns
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.pieces import HostQuestion, QueryPiece, parse_part
from monarch_hpc.wire.tables.procs import RunProcess

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")
results = pytest.importorskip("monarch_hpc.telemetry.sql.results")

_PATIENCE_S = 120.0
CORRECTION = Correction(5 * 10**9, 12.34)


class Host:
    """A host with one live proc and one that has died, and its engine."""

    def __init__(self) -> None:
        self.fds = [make_memory("proc") for _ in range(2)]
        self.recorders = [Recorder(os.dup(fd), 0xA0 + place) for place, fd in enumerate(self.fds)]
        for recorder in self.recorders:
            mark = recorder.actor(7, "trainer", 3).mark
            step = recorder.names.endpoint("trainer", "step")
            peer = recorder.names.proc(0xF, "n2")
            slot = recorder.handling(mark)
            for number in range(1, 11):
                slot.begin(step, peer, number | (CAST if number % 3 == 0 else 0), 10, monotonic_ns())
                slot.end(40)
            slot.begin(step, peer, 11, 10, monotonic_ns())
            for number in (1, 2, 3):
                recorder.sent(number, mark, step, peer, 100, 5)
            recorder.answered(2)
            recorder.sent(0, mark, step, peer, 1, 1)
            recorder.wait(1, 1)
            recorder.metric(mark, recorder.names.metric("loss"), 0, 10, 0.5)
            recorder.rings.span(mark, recorder.names.span("load"), 0, 0).end(failed=False)
            recorder.rings.span(mark, recorder.names.span("open"), 0, 0)
            recorder.moved("cma", peer, 30, 5_000, write=True, failed=False)
        self.engine = HostEngine(lambda: BeginLeaf("n1", 4, "", 16), self.procs)

    def procs(self) -> Iterator[tuple[Message, int]]:
        for rank, fd in enumerate(self.fds):
            yield ProcRuns("run", 1, rank, 70 + rank), fd
        yield ProcOver("run", 1, 1, 71, "killed", True), -1

    def ask(self, sql: str, table: str, timeout_s: float = _PATIENCE_S) -> Rows:
        question = self.begin(sql, table, timeout_s)
        wait_until("an answer", lambda: self.has(question), timeout_s=timeout_s + _PATIENCE_S)
        return question[0]

    def begin(self, sql: str, table: str, timeout_s: float = _PATIENCE_S) -> list[Rows]:
        pieces = HostQuestion([QueryPiece([table], sql)]).render()
        asked = AskEngine(
            ticket=9,
            table=table,
            where={},
            timeout_s=timeout_s,
            source="host n1",
            max_bytes=1 << 20,
            rows={},
            dropped=0,
            offset_ns=CORRECTION.offset_ns,
            error_us=CORRECTION.error_us,
            pieces=pieces,
        )
        answers: list[Rows] = []

        def take(answer: Message) -> None:
            assert isinstance(answer, Rows)
            answers.append(answer)

        self.engine.ask(asked, take)
        return answers

    def has(self, answers: list[Rows]) -> bool:
        """Whether a question is answered, after the engine's work."""
        self.engine.work()
        return bool(answers)

    @property
    def pid(self) -> int:
        process = self.engine._process
        assert process is not None
        return process.pid

    def close(self) -> None:
        self.engine.close()
        for recorder, fd in zip(self.recorders, self.fds, strict=True):
            recorder.close()
            os.close(fd)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def children_of(pid: int) -> list[int]:
    """The processes that the single thread of a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def rows_of(answer: Rows) -> list[dict[str, object]]:
    (portion,) = answer.portions
    part = parse_part(portion.rows)
    assert part.ranks == [[4, 5]] and not part.cut and part.dropped == 0
    (result,) = results.unpack(part.results)
    found: list[dict[str, object]] = result.to_pylist()
    return found


@pytest.mark.slow  # starts an engine
def test_a_host_has_the_rows_of_its_procs_and_of_the_dead(host: Host) -> None:
    for table in ("handled", "sends", "metrics", "spans", "transfers"):
        rows = rows_of(host.ask(f"SELECT * FROM {table}", table))
        expected = []
        for rank, fd in enumerate(host.fds):
            process = RunProcess("run", 1, rank, "n1", 70 + rank, "ready", "")
            names = [column.name for column in TABLES[table].columns]
            for row in HISTORY[table](memory_of(fd), process, CORRECTION):
                expected.append({name: getattr(row, name) for name in names})
        assert len(rows) == len(expected) > 0, table
        passing = {"t", "took_us", "ran_us"}  # that of what goes on; and floats against microseconds
        plain = [
            sorted(repr({k: v for k, v in row.items() if k not in passing}) for row in some)
            for some in (rows, expected)
        ]
        assert plain[0] == plain[1], table


@pytest.mark.slow  # starts an engine three times
def test_questions_outlive_an_engine_that_dies_and_not_one_that_hangs(host: Host) -> None:
    count = "SELECT count(*) AS num FROM handled"
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]
    os.kill(host.pid, signal.SIGSTOP)
    started_s = monotonic()
    assert host.ask(count, "handled", 0.3) == Rows(9, [], [], [])
    assert monotonic() - started_s < _PATIENCE_S
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]
    first, second = host.begin(count, "handled"), host.begin(count, "handled")
    os.kill(host.pid, signal.SIGKILL)
    wait_until("answers", lambda: host.has(first) and host.has(second), timeout_s=_PATIENCE_S)
    for answers in (first, second):
        assert [rows_of(answer) for answer in answers] == [[{"num": 22}]]
    assert host.ask("SELECT nonsense FROM handled", "handled") == Rows(9, [], [], [])


@pytest.mark.slow  # starts an engine, and kills what it forks
def test_the_process_of_one_question_ends_alone(host: Host) -> None:
    many = "generate_series(1, 100000)"
    endless = f"SELECT sum(a.value + b.value) FROM {many} a, {many} b, handled WHERE a.value <> b.value"
    count = "SELECT count(*) AS num FROM handled"
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]
    threads = {path.read_text().strip() for path in Path(f"/proc/{host.pid}/task").glob("*/comm")}
    assert not any(name.startswith("tokio") for name in threads), threads  # the engine would hang in forks
    assert "/pandas/" not in Path(f"/proc/{host.pid}/maps").read_text()
    late = host.begin(endless, "handled", 5.0)
    killed = host.begin(endless, "handled")

    def runs() -> list[int]:
        host.engine.work()
        return children_of(host.pid)

    pids = wait_until("the processes of two questions", runs, accept=lambda found: len(found) == 2)
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]  # beside the two
    os.kill(max(pids), signal.SIGKILL)
    for answers in (killed, late):
        wait_until("no rows", partial(host.has, answers), timeout_s=_PATIENCE_S)
        assert answers == [Rows(9, [], [], [])]
    engine = host.pid
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}] and host.pid == engine
    wait_until("the end of all but one", runs, accept=lambda found: len(found) == 1)


@pytest.mark.slow  # starts an engine
def test_a_worker_answers_one_question_after_the_other(host: Host) -> None:
    count = "SELECT count(*) AS num FROM handled"
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]
    (worker,) = children_of(host.pid)
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]
    assert children_of(host.pid) == [worker]
    os.kill(worker, signal.SIGKILL)
    assert rows_of(host.ask(count, "handled")) == [{"num": 22}]  # by another one, if it was asked before its end
    (other,) = children_of(host.pid)
    place = ProcOver("run", 1, 0, 70, "ended", False)
    host.engine.tell(place)
    assert rows_of(host.ask(count, "handled")) == [{"num": 11}]  # not by one that knows the proc
    assert worker not in (found := children_of(host.pid)) and other not in found


def test_what_does_not_fit_is_cut() -> None:
    import pyarrow as pa

    table = pa.table({"t": [*range(10_000)], "x": [os.urandom(8).hex() for _ in range(10_000)]})
    text, places = results.fit([table.slice(0, 1), table], 20_000, 1_000_000)
    _, left = results.unpack(text)
    assert places[-1] == 1 and len(text) <= 20_000 and 0 < len(left) < 10_000
    assert left.column("t").to_pylist() == [*range(len(left))]
    assert results.fit([table.slice(0, 7), table], 1 << 30, 7)[1] == [1]
    assert results.fit([table], 1 << 30, 10_000)[1] == []
    with pytest.raises(Exception, match="cannot be read"):
        results.unpack("\x00")


@pytest.mark.parametrize(("sql", "loads"), [("SELECT count(*) FROM procs", False), ("SELECT pid FROM metrics", True)])
def test_a_first_question_waits_only_for_the_libraries_that_it_needs(host: Host, sql: str, loads: bool) -> None:
    answers: list[Message] = []
    host.engine.ask(AskSql(1, sql, "", "json", _PATIENCE_S, 1 << 20), answers.append)

    def is_answered() -> bool:
        host.engine.work()
        return bool(answers)

    def has_loaded() -> bool:
        return "_compute." in Path(f"/proc/{host.pid}/maps").read_text()

    wait_until("an answer", is_answered, timeout_s=_PATIENCE_S)
    (answer,) = answers
    assert isinstance(answer, SqlAnswer) and answer.body
    assert has_loaded() or not loads
    wait_until("the others to be loaded, as there is time", has_loaded, timeout_s=_PATIENCE_S)
    answers.clear()
    host.engine.ask(AskSql(2, sql + " ", "", "json", _PATIENCE_S, 1 << 20), answers.append)
    wait_until("another answer", is_answered, timeout_s=_PATIENCE_S)
