"""Starts and watches the helper of this host, `monarch-scribe`; whatever becomes of it, the agent goes on.

See `telemetry.scribe` for what it does.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from monarch_hpc.agent.children.environment import without_step
from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.questions import PART_OF_WAIT
from monarch_hpc.core.death import Death
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Ask, AskHosts, AskSql, Portion, Rows, SqlAnswer
from monarch_hpc.wire.control.scribe import (
    AskHelper,
    BeginSampling,
    ClockIs,
    KeepRecords,
    MergeParts,
    ProcOver,
    ProcRuns,
    Ship,
    Shipped,
)
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, NO_RUN, RUN_COOKIE

__all__ = ["Scribe"]

_MAX_STARTS = 2
_STARTS_S = 60.0
"""A helper that has died so often in this time may not be able to work here, and is left alone for as long."""

_SHIP_S = 5.0
"""Longest wait of the end of an allocation for the last records: a file system that hangs must not hold it up."""

_MAX_WAITING = 1000
"""Messages that a helper may leave unread before it is ended."""

_SOLVE_S = 2.0
"""Beyond its own time, how long an engine may take to say that it was not enough."""

_LATE = "the helper of the head's host does not answer"

_log = Logger(__name__)


class Scribe:
    """The helper of this host. All methods must be called on the engine's driver.

    Args:
        clock: the comparison of this host's clock with the head's.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ProcSettings,
        reaper: Reaper,
        clock: ClockComparison,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._reaper = reaper
        # By these marks the sweep finds it when its agent is lost.
        marks = {COOKIE: settings.allocation, HOST_COOKIE: str(settings.rank), RUN_COOKIE: NO_RUN}
        self._environment = {**without_step(settings.environment), **marks}
        self._clock = clock
        self._procs: dict[ProcPlace, int] = {}  # the descriptor of its records
        self._dead: deque[tuple[ProcPlace, int, ProcOver]] = deque()
        self._messages: MessageSocket | None = None
        self._pid = 0
        self._starts_s: deque[float] = deque(maxlen=_MAX_STARTS)
        self._questions: dict[int, tuple[Ask, int, Callable[[Portion | None], None]]] = {}
        self._merging: set[int] = set()
        self._solving: dict[int, tuple[AskSql, Callable[[SqlAnswer], None]]] = {}
        self._tickets = itertools.count(1)
        self._shipping: dict[int, Callable[[], None]] = {}
        keep = settings.telemetry.keep
        self._keeps = keep == "always" or (keep == "auto" and settings.owns_job)
        self._spool = -1
        self._is_closed = False

    @property
    def pid(self) -> int:
        """The helper's process id; 0 while there is none."""
        return self._pid

    def add(self, place: ProcPlace, record_fd: int) -> None:
        """Tell the helper of a proc that has been forked; *record_fd* stays open until `remove`."""
        self._procs[place] = record_fd
        if self._messages is not None:
            self._tell_of(place, record_fd)
        elif self._keeps or self._settings.telemetry.otlp_url:
            self._start()

    def remove(self, place: ProcPlace, cause: str, *, failed: bool) -> None:
        """Tell the helper that a proc has ended, *failed* if nobody asked for that."""
        fd = self._procs.pop(place, -1)
        if fd < 0:
            return
        over = ProcOver(place.run, place.mesh, place.rank, place.pid, cause, failed)
        self._tell(over)
        most = self._settings.telemetry.keep_dead
        if failed and most:
            self._dead.append((place, os.dup(fd), over))
            if len(self._dead) > most:
                os.close(self._dead.popleft()[1])

    def merge(
        self, question: AskHosts, portions: Sequence[Portion], max_bytes: int, reply: Callable[[Portion | None], None]
    ) -> None:
        """Combine the parts of an answer to a question in SQL; None if that cannot be done here."""
        if self._messages is None:
            reply(None)
            return
        ticket = next(self._tickets)
        self._questions[ticket] = question, max_bytes, reply
        self._merging.add(ticket)
        timeout_s = question.timeout_s * (1 - PART_OF_WAIT)
        self._engine.call_later(timeout_s, partial(self._give_up, ticket))
        parts = [portion.rows for portion in portions]
        source = f"the hosts behind {self._settings.name}"
        self._tell(MergeParts(ticket, source, question.pieces, parts, timeout_s, max_bytes))

    def ask(self, question: Ask, max_bytes: int, reply: Callable[[Portion | None], None]) -> None:
        """Pass on this host's rows of a table that the helper has; None if there is no helper to be had."""
        self._start()
        if self._messages is None:
            reply(None)
            return
        ticket = next(self._tickets)
        self._questions[ticket] = question, max_bytes, reply
        self._engine.call_later(question.timeout_s, partial(self._give_up, ticket))
        self._put(ticket)

    def solve(self, question: AskSql, reply: Callable[[SqlAnswer], None]) -> None:
        """Have the engine of this host plan a question in SQL, or run its last text; *reply* is called once."""
        self._start()
        if self._messages is None:
            reply(SqlAnswer(question.ticket, absent=f"host {self._settings.name} has no helper: see its agent's log"))
            return
        ticket = next(self._tickets)
        self._solving[ticket] = question, reply
        self._engine.call_later(question.timeout_s + _SOLVE_S, partial(self._solved, SqlAnswer(ticket, absent=_LATE)))
        self._tell(replace(question, ticket=ticket))

    def _solved(self, answer: SqlAnswer) -> None:
        question, reply = self._solving.pop(answer.ticket, (None, None))
        if question is not None and reply is not None:
            reply(replace(answer, ticket=question.ticket))

    def ship(self, done: Callable[[], None], *, with_open: bool) -> None:
        """Have the helper write what it keeps; call *done* once: when it has, or when there is nothing to wait for.

        Args:
            with_open: whether that includes calls that have not ended.
        """
        if self._messages is None or not self._keeps:
            done()
            return
        ticket = next(self._tickets)
        self._shipping[ticket] = done
        self._engine.call_later(_SHIP_S, partial(self._shipped, ticket))
        self._tell(Ship(ticket, with_open))

    def _shipped(self, ticket: int) -> None:
        done = self._shipping.pop(ticket, None)
        if done is not None:
            done()

    def close(self) -> None:
        """End the helper."""
        self._is_closed = True
        self._let_go()  # which is its end
        while self._dead:
            os.close(self._dead.pop()[1])
        if self._spool >= 0:
            os.close(self._spool)
            self._spool = -1

    # ---- the process ----

    def _is_barred(self) -> bool:
        starts_s = self._starts_s
        return len(starts_s) == _MAX_STARTS and self._engine.clock() - starts_s[0] < _STARTS_S

    def _start(self) -> None:
        if self._messages is not None or self._is_closed or self._is_barred():
            return
        self._starts_s.append(self._engine.clock())
        own, other = socket.socketpair()
        fd = other.fileno()
        try:
            process = launch(
                [sys.executable, "-P", "-m", "monarch_hpc.telemetry.scribe", str(fd)],
                self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(fd,),
                new_session=True,
            )
        except OSError as error:
            own.close()
            _log.warning("the helper of this host cannot be started: %s", error)
            return
        finally:
            other.close()
        process.returncode = 0  # the reaper waits for it, not this object
        self._pid = process.pid
        self._messages = MessageSocket(own)
        self._reaper.watch(self._pid, self._on_exit)
        telemetry = self._settings.telemetry
        host, rank, gpus = self._settings.name, self._settings.rank, list(self._settings.grant.gpus)
        self._tell(BeginSampling(host, rank, gpus, telemetry.sample_s, telemetry.keep_dead, telemetry.otlp_url))
        if self._keeps:
            self._tell_to_keep()
        for place, fd, over in self._dead:
            self._tell_of(place, fd)
            self._tell(over)
        for place, record_fd in self._procs.items():
            self._tell_of(place, record_fd)

    def _tell_to_keep(self) -> None:
        import tempfile  # late, as the agent's start is that of its program

        settings, telemetry = self._settings, self._settings.telemetry
        try:
            if self._spool < 0:
                with tempfile.TemporaryFile(buffering=0) as file:
                    self._spool = os.dup(file.fileno())
        except OSError as error:
            _log.warning("records of procs are not kept: there is no temporary file: %s", error)
            return
        limits = telemetry.ship_s, telemetry.keep_bytes_per_host, telemetry.keep_per_s, telemetry.compact_s
        self._tell(KeepRecords(str(settings.directory), settings.rank, *limits), self._spool)

    def _tell_of(self, place: ProcPlace, record_fd: int) -> None:
        self._tell(ProcRuns(place.run, place.mesh, place.rank, place.pid), record_fd)

    def _put(self, ticket: int) -> None:
        question, max_bytes, _ = self._questions[ticket]
        correction = self._clock.correction()
        self._tell(ClockIs(correction.offset_ns, correction.error_us))
        source = f"host {self._settings.name}"
        where, timeout_s, pieces = question.where, question.timeout_s, question.pieces
        self._tell(AskHelper(ticket, question.table, where, timeout_s, source, max_bytes, pieces=pieces))

    def _tell(self, message: Message, fd: int = -1) -> None:
        if self._messages is None:
            return
        if self._messages.num_waiting >= _MAX_WAITING:
            _log.warning("the helper of this host does not read its messages, and is ended")
            self._kill()
            return
        try:
            self._messages.send(message, fd)
        except OSError as error:
            _log.warning("the helper of this host cannot be told of a proc: %s", error)
        self._watch()

    def _watch(self) -> None:
        if self._messages is not None and not self._messages.ended:
            self._engine.watch(self._messages.fileno(), self._on_ready, write=self._messages.num_waiting > 0)

    def _on_ready(self, _mask: int) -> None:
        messages = self._messages
        if messages is None:
            return
        messages.flush()
        try:
            for message in messages.receive():
                if isinstance(message, Shipped):
                    self._shipped(message.ticket)
                elif isinstance(message, SqlAnswer):
                    self._solved(message)
                elif isinstance(message, Rows):
                    self._merging.discard(message.ticket)
                    _, _, reply = self._questions.pop(message.ticket, (None, 0, _ignore))
                    reply(message.portions[0] if message.portions else None)
        except FrameError as error:
            _log.warning("the helper of this host has sent something else than a message: %s", error)
            self._kill()
        if messages.ended:
            self._engine.unwatch(messages.fileno())  # its exit follows
        else:
            self._watch()

    def _give_up(self, ticket: int) -> None:
        self._merging.discard(ticket)
        _, _, reply = self._questions.pop(ticket, (None, 0, _ignore))
        reply(None)

    def _kill(self) -> None:
        if self._pid in self._reaper.watched:
            os.kill(self._pid, signal.SIGKILL)  # its exit follows

    def _on_exit(self, how: Exit) -> None:
        self._let_go()
        if self._is_closed:
            return
        for ticket in list(self._shipping):
            self._shipped(ticket)
        last = f" for the second time, and is left alone for {_STARTS_S:.0f} s" if self._is_barred() else ""
        _log.warning("the helper of this host has ended%s: %s", last, Death.of_exit(how).cause)
        self._start()
        if self._messages is None and self._procs and self._keeps:
            self._engine.call_later(_STARTS_S, self._start)
        for ticket in list(self._questions):
            if self._messages is None or ticket in self._merging:
                self._give_up(ticket)
            else:
                self._put(ticket)
        for ticket, (asked, _) in list(self._solving.items()):
            if self._messages is None:
                self._solved(SqlAnswer(ticket, absent=f"the helper of host {self._settings.name} has ended"))
            else:
                self._tell(replace(asked, ticket=ticket))  # it changes nothing, and may be asked again

    def _let_go(self) -> None:
        if self._messages is not None:
            self._engine.unwatch(self._messages.fileno())
            self._messages.close()
        self._messages, self._pid = None, 0


def _ignore(_portion: Portion | None) -> None:
    """Take an answer that came too late."""
