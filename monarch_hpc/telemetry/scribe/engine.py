"""The process that answers questions in SQL about a host, as its helper starts and watches it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.sql.engine import launch_engine
from monarch_hpc.telemetry.sql.unanswered import EngineQuestion, late, unanswered
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Rows, SqlAnswer

__all__ = ["HostEngine"]

_NEEDED = ("datafusion", "pyarrow", "numpy", "sqlglot")

_GRACE_S = 1.0
"""An engine ends late questions itself. One that has not done so by then hangs as a whole."""

_START_S = 60.0
"""Time that it may take to load its libraries: half a second, or long where they come from afar."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: EngineQuestion
    until_s: float
    done: Callable[[Message], None]
    is_retried: bool = False


class HostEngine:
    """The engine of one host, which runs from the first question on, until it has had nothing to do for a while.

    Args:
        begin: returns what it must know first, of the host.
        procs: yields messages about the procs of the host, each with the descriptor of its records, or -1.
    """

    def __init__(self, begin: Callable[[], Message], procs: Callable[[], Iterator[tuple[Message, int]]]) -> None:
        self._begin = begin
        self._procs = procs
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: MessageSocket | None = None
        self._starting_until_s = 0.0  # 0 once it has answered
        self._waiting: deque[_Waiting] = deque()
        self._tickets = itertools.count(1)

    @functools.cached_property
    def absent(self) -> str:
        """What an engine needs and this host has not, in words; empty if nothing is missing."""
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        return f"{', '.join(missing)}, of monarch-hpc[telemetry], which is not installed" if missing else ""

    @property
    def messages(self) -> MessageSocket | None:
        """The way to it, for a poll; None while it does not run."""
        return self._messages

    def tell(self, message: Message, fd: int = -1) -> None:
        """Tell it of a proc, if it runs."""
        if self._messages is not None:
            with contextlib.suppress(OSError):  # out of descriptors: the records of one proc are missing
                self._messages.send(message, fd)

    def ask(self, question: EngineQuestion, done: Callable[[Message], None]) -> None:
        """Have a question answered; *done* gets an answer without rows if it is not in time, or cannot be.

        Answers have the number of the question.
        """
        own = replace(question, ticket=next(self._tickets))
        until_s = monotonic() + question.timeout_s + _GRACE_S

        def answered(answer: Message) -> None:
            assert isinstance(answer, Rows | SqlAnswer), "engines answer with nothing else"
            done(replace(answer, ticket=question.ticket))

        self._waiting.append(_Waiting(own, until_s, answered))
        if self._messages is None:
            self._start()
        else:
            self.tell(own)

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        return min((one.until_s for one in self._waiting), default=float("inf")) - monotonic()

    def work(self) -> None:
        """Take answers, and end an engine that hangs."""
        messages = self._messages
        if messages is not None:
            messages.flush()
            try:
                for message in messages.receive():
                    self._starting_until_s = 0.0
                    self._take(message)
            except FrameError:
                messages.close()
            if messages.ended:
                self._end()
                for one in list(self._waiting):  # questions change nothing, and may be asked again
                    if one.is_retried:
                        self._drop(one, "the query is not answered: its engine has ended twice; ask again")
                    one.is_retried = True
        now_s = monotonic()
        overdue = [one for one in self._waiting if one.until_s <= now_s]
        if overdue and self._starting_until_s <= now_s:
            self._end()
        for one in overdue:
            self._drop(one, late(one.question))
        if self._waiting and self._messages is None:
            self._start()

    def _take(self, answer: Message) -> None:
        if isinstance(answer, Rows | SqlAnswer):
            for one in [one for one in self._waiting if one.question.ticket == answer.ticket]:
                self._waiting.remove(one)
                one.done(answer)

    def _drop(self, one: _Waiting, problem: str) -> None:
        self._waiting.remove(one)
        one.done(unanswered(one.question, problem))

    def _start(self) -> None:
        try:
            self._process, self._messages = launch_engine()
        except OSError as error:
            for one in list(self._waiting):
                self._drop(one, f"the engine of queries cannot be started: {error}")
            return
        self._starting_until_s = monotonic() + _START_S
        self.tell(self._begin())
        for message, fd in self._procs():
            self.tell(message, fd)
        for one in self._waiting:
            self.tell(one.question)

    def _end(self) -> None:
        if self._messages is not None:
            self._messages.close()
            self._messages = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it."""
        self._end()
