"""Answers of a process that keeps something of its host between questions: those of one that has kept nothing."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("datafusion")

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import HISTORY
from monarch_hpc.telemetry.kept import decoded, reading
from monarch_hpc.telemetry.kept.arrow import table_of_rows
from monarch_hpc.telemetry.kept.compact import compact
from monarch_hpc.telemetry.kept.parts import list_parts
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.keeper import RecordKeeper
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.sql import live
from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, results_of
from monarch_hpc.telemetry.sql.host_part import HostPart
from monarch_hpc.telemetry.sql.planning import Planner
from monarch_hpc.wire.control.scribe import BeginLeaf, KeepRecords
from monarch_hpc.wire.tables.pieces import HostQuestion, sql_tables
from monarch_hpc.wire.tables.procs import RunProcess

_CORRECTION = Correction(5 * 10**9, 12.34)
_QUESTIONS = (
    "SELECT endpoint, count(*), min(t), max(bytes) FROM handled GROUP BY endpoint",
    "SELECT rank, pid, status, count(*), sum(bytes) FROM handled GROUP BY 1, 2, 3",
    "SELECT count(*), max(record) FROM handled WHERE status <> 'running'",
    "SELECT rank, record, call, status FROM sends",
    "SELECT through_tree, status, count(*), sum(num_receivers) FROM sends GROUP BY 1, 2",
    "SELECT name, rank, avg(value), count(*) FROM metrics GROUP BY 1, 2",
    "SELECT name, status, count(*) FROM spans GROUP BY 1, 2",
    "SELECT path, count(DISTINCT bytes) FROM transfers GROUP BY host, path",
    "SELECT h.rank, count(*) FROM handled h JOIN metrics m ON h.host = m.host AND h.rank = m.rank GROUP BY 1",
)


class _Proc:
    """A process that records calls, and what it waits for."""

    def __init__(self, rank: int) -> None:
        self.place = ProcPlace("run", 1, rank, 70 + rank)
        self.fd = make_memory("proc")
        self._recorder = Recorder(os.dup(self.fd), 0xA0 + rank)
        self._mark = self._recorder.actor(7, "trainer", rank).mark
        self._names = [self._recorder.names.endpoint("trainer", name) for name in ("step", "save")]
        self._peer = self._recorder.names.proc(0xF, "n2")
        self._last = {0: 0, layout.CAST: layout.CAST}
        self._open: list[int] = []
        self._spans: list[Any] = []
        self._slots: list[Any] = []

    def work(self, chance: random.Random, num: int) -> None:
        recorder = self._recorder
        slot = recorder.handling(self._mark)
        for number in range(num):
            slot.begin(chance.choice(self._names), self._peer, number + 1, chance.randrange(100), monotonic_ns())
            slot.end(40)
            bit = layout.CAST if chance.random() < 0.1 else 0
            self._last[bit] += 1
            recorder.sent(self._last[bit], self._mark, self._names[0], 3 if bit else self._peer, 10, 7)
            self._open.append(self._last[bit])
            while len(self._open) > 20 or (self._open and chance.random() < 0.8):
                recorder.answered(self._open.pop(chance.randrange(len(self._open))))
        recorder.release(slot)
        for number in range(num // 10):
            recorder.sent(0, self._mark, self._names[1], self._peer, 1, 1)
            recorder.metric(self._mark, recorder.names.metric("loss"), 0, number, number / 4)
            recorder.moved("cma", self._peer, number, 5_000, write=True, failed=False)
            self._spans.append(recorder.rings.span(self._mark, recorder.names.span("load"), 0, 0))
            if chance.random() < 0.7:
                self._spans.pop(chance.randrange(len(self._spans))).end(failed=False)
        if chance.random() < 0.5:
            self._slots.append(recorder.handling(self._mark))
            self._slots[-1].begin(self._names[0], self._peer, 99, 1, monotonic_ns())
        elif self._slots:
            self._slots.pop().end(1)

    def close(self) -> None:
        self._recorder.close()
        os.close(self.fd)


class _Host:
    """A host with processes, their keeper, and the directory of its allocation."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.begin = BeginLeaf("n1", 4, str(directory), 16)
        self._order = KeepRecords(str(directory), 4, 60.0, max_bytes, 1_000_000, 600.0)
        self._spool = os.memfd_create("spool", os.MFD_ALLOW_SEALING)
        self.keeper = RecordKeeper(self._order, "n1", self._spool, lambda: _CORRECTION)
        self.procs: list[_Proc] = []
        self._ended: list[_Proc] = []
        self.start()

    def start(self) -> None:
        self.procs.append(_Proc(len(self.procs) + len(self._ended)))
        self.keeper.add(self.procs[-1].place, self.procs[-1].fd)

    def kill(self, proc: _Proc) -> None:
        self.procs.remove(proc)
        self.keeper.end(proc.place, "killed", failed=True)
        self._ended.append(proc)

    def fds(self) -> list[tuple[ProcPlace, int]]:
        return [(proc.place, proc.fd) for proc in [*self.procs, *self._ended[-2:]]]

    def close(self) -> None:
        self.keeper.close()
        for proc in (*self.procs, *self._ended):
            proc.close()


@pytest.fixture(scope="module")
def questions() -> list[HostQuestion]:
    planner = Planner()
    return [HostQuestion(planner.plan(sql).split.pieces) for sql in _QUESTIONS]


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[_Host]:
    with contextlib.closing(_Host(tmp_path, getattr(request, "param", 1 << 30))) as host:
        yield host


def _ask(host: _Host, part: HostPart, question: HostQuestion) -> tuple[list[list[str]], int]:
    results, num_lost = part.answer(question, {}, host.fds(), host.begin, _CORRECTION)
    return [sorted(map(repr, _rounded(result))) for result in results], num_lost


def _rounded(result: Any) -> Iterator[list[object]]:
    for row in zip(*(column.to_pylist() for column in result.columns), strict=True):
        yield [round(value, 6) if isinstance(value, float) else value for value in row]


def _whole(host: _Host, question: HostQuestion) -> list[list[str]]:
    """The results over all rows, as single records make them, and those of files that are not among them."""
    rows: dict[str, Any] = {}
    for name in question.tables:
        found = []
        for place, fd in host.fds():
            process = RunProcess(place.run, place.mesh, place.rank, "n1", place.pid, "ready", "")
            for row in HISTORY[name](memory_of(fd), process, _CORRECTION):
                found.append([getattr(row, column.name) for column in sql_tables()[name].columns])
        rows[name] = table_of_rows(sql_tables()[name], found)
    kept = KeptRows(host.directory, ranks=[4], hosts={4: "n1"})
    results = results_of(question.pieces, RowSet(rows, [kept], question.since_s), [])
    return [sorted(map(repr, _rounded(result))) for result in results]


@pytest.mark.slow  # some thousand calls, and nine questions after each step
@pytest.mark.parametrize("host", [1 << 30, 40_000], indirect=True, ids=["all parts", "the latest parts"])
@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_a_process_that_has_kept_nothing(
    host: _Host, questions: list[HostQuestion], seed: int
) -> None:
    chance, part = random.Random(seed), HostPart()
    for _ in range(12):
        match chance.choice(("work", "work", "work", "write", "write", "start", "kill", "compact")):
            case "work":
                for proc in host.procs:
                    proc.work(chance, chance.choice((1, 30, 300)))
            case "write":
                host.keeper.finish()
            case "start":
                host.start()
                part = HostPart()  # as workers are renewed
            case "kill" if len(host.procs) > 1:
                host.kill(chance.choice(host.procs))
                part = HostPart()
            case "compact":
                compact(host.directory, 0)
        for question in chance.sample(questions, 4):
            assert _ask(host, part, question) == _ask(host, HostPart(), question)


def test_rows_are_those_of_single_records_and_files(host: _Host, questions: list[HostQuestion]) -> None:
    part, chance = HostPart(), random.Random(1)
    for step in range(5):
        host.procs[0].work(chance, 200)
        if step % 2:
            host.keeper.finish()
        if step == 2:
            compact(host.directory, 0)
        # Spans and calls that are written while they run are so in files for ever.
        for question in questions[:6]:
            assert _ask(host, part, question)[0] == _whole(host, question), question


@pytest.mark.slow  # fills a ring
def test_records_that_others_have_overwritten_are_gone(host: _Host, questions: list[HostQuestion]) -> None:
    part, chance = HostPart(), random.Random(2)
    host.procs[0].work(chance, 100)
    _ask(host, part, questions[0])
    for num in (layout.EVENTS.num * 2 // 3, layout.EVENTS.num // 2, 10):
        host.procs[0].work(chance, num)
        for question in (questions[0], questions[3], questions[5]):
            assert _ask(host, part, question) == _ask(host, HostPart(), question)
    host.keeper.finish()  # of which some are in the part
    assert _ask(host, part, questions[0]) == _ask(host, HostPart(), questions[0])


def test_only_what_is_new_is_read_and_decoded(
    host: _Host, questions: list[HostQuestion], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, chance, sizes, parts = HostPart(), random.Random(3), list[int](), list[int]()
    for _ in range(3):
        host.procs[0].work(chance, 100)
        host.keeper.finish()
    decode_rows = reading.decode_rows

    def decode(file: Any, *others: Any) -> Any:
        parts.append(file.number)
        return decode_rows(file, *others)

    def memory(fd: int) -> Any:
        read = memory_of(fd)

        def counting(at: int, size: int) -> bytes:
            sizes.append(size if layout.EVENTS.at <= at < layout.EVENTS.at + layout.EVENTS.num * 64 else 0)
            return read(at, size)

        return counting

    monkeypatch.setattr(decoded, "decode_rows", decode)
    monkeypatch.setattr(live, "memory_of", memory)
    first = _ask(host, part, questions[0])
    assert sorted(parts) == [1, 2, 3] and sum(sizes) > 0
    parts.clear()
    sizes.clear()
    assert _ask(host, part, questions[0]) == first
    assert (parts, sum(sizes)) == ([], 0)
    host.procs[0].work(chance, 10)
    host.keeper.finish()
    sizes.clear()
    assert _ask(host, part, questions[0]) == _ask(host, HostPart(), questions[0])
    assert parts[0] == 4 and len(list_parts(host.directory)) == 4


def test_a_part_that_is_removed_gives_its_records_back_to_memory(host: _Host, questions: list[HostQuestion]) -> None:
    part, chance = HostPart(), random.Random(4)
    host.procs[0].work(chance, 100)
    host.keeper.finish()
    expected = _ask(host, part, questions[0])
    (file,) = list_parts(host.directory)
    file.path.unlink()
    assert _ask(host, part, questions[0]) == expected
