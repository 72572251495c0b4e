"""The process that answers questions in SQL about a host, as its helper starts and watches it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Rows
from monarch_hpc.wire.control.scribe import AskEngine, BeginLeaf, MergeParts

__all__ = ["HostEngine"]

_NEEDED = ("datafusion", "pyarrow", "numpy", "sqlglot")


@dataclass(frozen=True, slots=True)
class _Waiting:
    question: AskEngine | MergeParts
    until_s: float
    done: Callable[[Rows], None]


class HostEngine:
    """The engine of one host, which runs from the first question on, until it has had nothing to do for a while.

    Args:
        begin: what it must know of the host.
        procs: yields messages about the procs of the host, each with the descriptor of its records, or -1.
    """

    def __init__(self, begin: Callable[[], BeginLeaf], procs: Callable[[], Iterator[tuple[Message, int]]]) -> None:
        self._begin = begin
        self._procs = procs
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: MessageSocket | None = None
        self._waiting: deque[_Waiting] = deque()
        self._tickets = itertools.count(1)

    @property
    def is_installed(self) -> bool:
        """Whether this host has what an engine needs."""
        return all(importlib.util.find_spec(name) is not None for name in _NEEDED)

    @property
    def messages(self) -> MessageSocket | None:
        """The way to it, for a poll; None while it does not run."""
        return self._messages

    def tell(self, message: Message, fd: int = -1) -> None:
        """Tell it of a proc, if it runs."""
        if self._messages is not None:
            with contextlib.suppress(OSError):  # out of descriptors: the records of one proc are missing
                self._messages.send(message, fd)

    def ask(self, question: AskEngine | MergeParts, timeout_s: float, done: Callable[[Rows], None]) -> None:
        """Have a question answered; *done* gets an answer without parts if it is not in time, or cannot be.

        Answers have the number of the question.
        """
        ticket = question.ticket
        own = replace(question, ticket=next(self._tickets))
        self._waiting.append(_Waiting(own, monotonic() + timeout_s, lambda rows: done(replace(rows, ticket=ticket))))
        if self._messages is None:
            self._start()
        else:
            self.tell(own)

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        return min((one.until_s for one in self._waiting), default=float("inf")) - monotonic()

    def work(self) -> None:
        """Take answers, and end an engine that is late."""
        messages = self._messages
        if messages is not None:
            messages.flush()
            try:
                for message in messages.receive():
                    if isinstance(message, Rows):
                        self._take(message)
            except FrameError:
                self._end()
            if messages.ended:
                self._end()
                if self._waiting:  # one of them was its end
                    self._drop(self._waiting[0])
                    self._restart()
        now_s = monotonic()
        if self._waiting and self._waiting[0].until_s <= now_s:
            # The others wait for this one.
            self._end()
            self._drop(self._waiting[0])
            self._restart()
        for one in [one for one in self._waiting if one.until_s <= now_s]:
            self._drop(one)

    def _take(self, rows: Rows) -> None:
        for one in list(self._waiting):
            if one.question.ticket == rows.ticket:
                self._waiting.remove(one)
                one.done(rows)

    def _drop(self, one: _Waiting) -> None:
        self._waiting.remove(one)
        one.done(Rows(one.question.ticket, [], [], []))

    def _restart(self) -> None:
        if self._waiting:
            self._start()

    def _start(self) -> None:
        own, other = socket.socketpair()
        try:
            self._process = launch(
                [sys.executable, "-P", "-m", "monarch_hpc.telemetry.sql.leaf", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
            )
        except OSError:
            own.close()
            for one in list(self._waiting):
                self._drop(one)
            return
        finally:
            other.close()
        self._messages = MessageSocket(own)
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
