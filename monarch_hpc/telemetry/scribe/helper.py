"""The work of a host's helper: takes the agent's messages, samples when it is time, and answers questions."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.machine.cgroup import num_oom_kills
from monarch_hpc.telemetry.clock import Correction, uncompared
from monarch_hpc.telemetry.history import HISTORY, latest_first
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.scribe.engine import HostEngine
from monarch_hpc.telemetry.scribe.exporter import Exporter
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.keeper import RecordKeeper
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.scribe.sampling.samples import Samples
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.scribe import (
    AskEngine,
    AskHelper,
    BeginLeaf,
    BeginSampling,
    ClockIs,
    KeepRecords,
    MergeParts,
    ProcOver,
    ProcRuns,
    Ship,
    Shipped,
)
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.catalog import TABLES
from monarch_hpc.wire.tables.history import HistoryRow
from monarch_hpc.wire.tables.keeping import KEEPING, HostKeeping
from monarch_hpc.wire.tables.pieces import parse_question
from monarch_hpc.wire.tables.procs import RunProcess

__all__ = ["Helper"]

_IDLE_S = 60.0


class Helper:
    """The helper of one host.

    Args:
        messages: the way to its agent.
    """

    def __init__(self, messages: MessageSocket) -> None:
        self._messages = messages
        self._samples: Samples | None = None
        self._correction: Correction = uncompared()
        self._procs: dict[ProcPlace, int] = {}  # the descriptor of its records
        self._dead: deque[tuple[ProcRuns, ProcOver, int]] = deque()
        self._begin: BeginSampling | None = None
        self._host = ""
        self._keeps: KeepRecords | None = None
        self._keeper: RecordKeeper | None = None
        self._exporter: Exporter | None = None
        self.engine = HostEngine(self._begin_leaf, self._known_procs)

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        sample_s = _IDLE_S if self._samples is None else self._samples.due_s()
        due_s = min(sample_s, self.engine.due_s())
        due_s = due_s if self._exporter is None else min(due_s, self._exporter.due_s())
        return due_s if self._keeper is None else min(due_s, self._keeper.due_s())

    def work(self) -> None:
        """Do what is due."""
        self.engine.work()
        if self._exporter is not None:
            self._exporter.work()
        if self._samples is not None and self._samples.due_s() <= 0:
            self._sample()
        if self._keeper is not None:
            self._keeper.work()

    def _sample(self) -> None:
        assert self._samples is not None, "the agent begins with `BeginSampling`"
        rows = self._samples.take(self._procs)
        if self._keeper is not None:
            self._keeper.add_rows(rows)

    def handle(self, message: Message) -> None:
        """Handle one message of the agent."""
        match message:
            case BeginSampling():
                self._host, self._begin = message.host, message
                if message.otlp_url:
                    self._exporter = Exporter(message.otlp_url, message.host, lambda: self._correction)
                self._samples = Samples(
                    message.host, message.gpus, message.sample_s, num_oom_kills, lambda: self._time_s()
                )
            case KeepRecords():
                self._keeps = message
                self._keeper = RecordKeeper(message, self._host, self._messages.take_fd(), lambda: self._correction)
            case ProcRuns():
                self._add(ProcPlace(message.run, message.mesh, message.rank, message.pid), self._messages.take_fd())
            case ProcOver():
                place = ProcPlace(message.run, message.mesh, message.rank, message.pid)
                if self._keeper is not None:
                    self._keeper.end(place, message.cause, failed=message.failed)
                self.engine.tell(message)
                if self._exporter is not None:
                    self._exporter.end(place)
                self._end_proc(place, message)
            case ClockIs():
                self._correction = Correction(message.offset_ns, message.error_us)
            case AskHelper():
                self._answer(message)
            case MergeParts() | AskSql():
                self._ask_engine(message)
            case Ship():
                if self._keeper is not None:
                    if message.with_open:
                        self._keeper.add_open()
                    self._keeper.finish()
                self._messages.send(Shipped(message.ticket))

    def _answer(self, question: AskHelper) -> None:
        samples = self._samples
        assert samples is not None, "the agent begins with `BeginSampling`"
        tables = parse_question(question.pieces).tables if question.pieces else [question.table]
        samples.asked(tables)
        if samples.is_stale and not samples.sources.keys().isdisjoint(tables):
            self._sample()
        sources = {**samples.sources, KEEPING.name: self._keeping}
        if question.pieces and not self.engine.absent:
            sampled = {name: read for name, read in samples.sources.items() if name in tables}
            rows = {name: TABLES[name].render(read(), {}) for name, read in sampled.items()}
            state = self._keeping()[0]
            own = AskEngine(
                ticket=question.ticket,
                table=question.table,
                where=question.where,
                timeout_s=question.timeout_s,
                source=question.source,
                max_bytes=question.max_bytes,
                rows=rows,
                dropped=state.left_out + state.lost,
                offset_ns=self._correction.offset_ns,
                error_us=self._correction.error_us,
                pieces=question.pieces,
            )
            self.engine.ask(own, self._messages.send)
            return
        records = {name: partial(self._records, name) for name in HISTORY} if question.pieces else {}
        portion = answer(question, question.source, {**sources, **records}, question.max_bytes)
        self._messages.send(Rows(question.ticket, [portion], [], []))

    def _ask_engine(self, question: MergeParts | AskSql) -> None:
        if not self.engine.absent:
            self.engine.ask(question, self._messages.send)
        elif isinstance(question, AskSql):
            self._messages.send(SqlAnswer(question.ticket, absent=f"{self._host} lacks {self.engine.absent}"))
        else:
            self._messages.send(Rows(question.ticket, [], [], []))

    def _records(self, table: str) -> Iterator[HistoryRow]:
        """The rows of a table of records, the latest first."""
        parts = []
        for place, fd in [*self._procs.items(), *((_place(runs), fd) for runs, _, fd in self._dead)]:
            process = RunProcess(place.run, place.mesh, place.rank, self._host, place.pid, "ready", "")
            parts.append(HISTORY[table](memory_of(fd), process, self._correction))
        return latest_first(parts)

    def _begin_leaf(self) -> BeginLeaf:
        begin = self._begin
        assert begin is not None, "the agent begins with `BeginSampling`"
        directory = "" if self._keeps is None else self._keeps.directory
        return BeginLeaf(begin.host, begin.rank, directory, begin.keep_dead)

    def _known_procs(self) -> Iterator[tuple[Message, int]]:
        for runs, over, fd in self._dead:
            yield runs, fd
            yield over, -1
        for place, fd in self._procs.items():
            yield ProcRuns(place.run, place.mesh, place.rank, place.pid), fd

    def _keeping(self) -> list[HostKeeping]:
        none = HostKeeping(self._host, False, 0, 0, 0, 0, 0, 0, "", 0, 0, "")
        row = none if self._keeper is None else self._keeper.row()
        if self._exporter is None:
            return [row]
        sent, unsent = self._exporter.num_sent, self._exporter.num_unsent
        return [replace(row, exported=sent, unexported=unsent, export_problem=self._exporter.problem)]

    def _add(self, place: ProcPlace, fd: int) -> None:
        self._forget(place)
        self._procs[place] = fd
        self.engine.tell(ProcRuns(place.run, place.mesh, place.rank, place.pid), fd)
        if self._keeper is not None:
            self._keeper.add(place, fd)
        if self._exporter is not None:
            self._exporter.add(place, fd)

    def _end_proc(self, place: ProcPlace, over: ProcOver) -> None:
        """Keep the records of a proc that has died, as long as its agent does."""
        most = 0 if self._begin is None else self._begin.keep_dead
        fd = self._procs.pop(place, -1)
        if fd < 0:
            return
        if not over.failed or not most:
            os.close(fd)
            return
        self._dead.append((ProcRuns(place.run, place.mesh, place.rank, place.pid), over, fd))
        if len(self._dead) > most:
            os.close(self._dead.popleft()[2])

    def _time_s(self) -> float:
        return (monotonic_ns() + self._correction.offset_ns) * 1e-9

    def _forget(self, place: ProcPlace) -> None:
        fd = self._procs.pop(place, -1)
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything."""
        self.engine.close()
        if self._exporter is not None:
            self._exporter.close()
        if self._keeper is not None:
            self._keeper.close()
        for place in list(self._procs):
            self._forget(place)
        while self._dead:
            os.close(self._dead.pop()[2])
        self._messages.close()


def _place(runs: ProcRuns) -> ProcPlace:
    return ProcPlace(runs.run, runs.mesh, runs.rank, runs.pid)
