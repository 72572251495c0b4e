"""The work of a host's helper: takes the agent's messages, samples when it is time, and answers questions."""

from __future__ import annotations

import os

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.machine.cgroup import num_oom_kills
from monarch_hpc.telemetry.clock import Correction, uncompared
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.keeper import RecordKeeper
from monarch_hpc.telemetry.scribe.procs import ProcPlace
from monarch_hpc.telemetry.scribe.samples import Samples
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Rows
from monarch_hpc.wire.control.scribe import (
    AskHelper,
    BeginSampling,
    ClockIs,
    KeepRecords,
    ProcOver,
    ProcRuns,
    Ship,
    Shipped,
)
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.keeping import KEEPING, HostKeeping

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
        self._host = ""
        self._keeper: RecordKeeper | None = None

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        sample_s = _IDLE_S if self._samples is None else self._samples.due_s()
        return sample_s if self._keeper is None else min(sample_s, self._keeper.due_s())

    def work(self) -> None:
        """Do what is due."""
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
                self._host = message.host
                self._samples = Samples(
                    message.host, message.gpus, message.sample_s, num_oom_kills, lambda: self._time_s()
                )
            case KeepRecords():
                self._keeper = RecordKeeper(message, self._host, self._messages.take_fd(), lambda: self._correction)
            case ProcRuns():
                self._add(ProcPlace(message.run, message.mesh, message.rank, message.pid), self._messages.take_fd())
            case ProcOver():
                place = ProcPlace(message.run, message.mesh, message.rank, message.pid)
                if self._keeper is not None:
                    self._keeper.end(place, message.cause, failed=message.failed)
                self._forget(place)
            case ClockIs():
                self._correction = Correction(message.offset_ns, message.error_us)
            case AskHelper():
                self._answer(message)
            case Ship():
                if self._keeper is not None:
                    if message.with_open:
                        self._keeper.add_open()
                    self._keeper.finish()
                self._messages.send(Shipped(message.ticket))

    def _answer(self, question: AskHelper) -> None:
        samples = self._samples
        assert samples is not None, "the agent begins with `BeginSampling`"
        if question.table != KEEPING.name and samples.is_stale:
            self._sample()
        sources = {**samples.sources, KEEPING.name: self._keeping}
        portion = answer(question, question.source, sources, question.max_bytes)
        self._messages.send(Rows(question.ticket, [portion], [], []))

    def _keeping(self) -> list[HostKeeping]:
        if self._keeper is None:
            return [HostKeeping(self._host, False, 0, 0, 0, 0, 0, 0, "")]
        return [self._keeper.row()]

    def _add(self, place: ProcPlace, fd: int) -> None:
        self._forget(place)
        self._procs[place] = fd
        if self._keeper is not None:
            self._keeper.add(place, fd)

    def _time_s(self) -> float:
        return (monotonic_ns() + self._correction.offset_ns) * 1e-9

    def _forget(self, place: ProcPlace) -> None:
        fd = self._procs.pop(place, -1)
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """Let go of everything."""
        if self._keeper is not None:
            self._keeper.close()
        for place in list(self._procs):
            self._forget(place)
        self._messages.close()
