"""Runs questions in processes of their own, because one may run for ever, or out of memory.

They are forked from one that has loaded all libraries, and has started none of their threads. One that has answered
waits for the next question, for which its threads run, and its cache is filled, already: what a fork has to do first
takes 50 ms of CPU time.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_anonymous_bytes
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.sql.unanswered import EngineQuestion, late, unanswered
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.questions import AskSql
from monarch_hpc.wire.control.scribe import AskEngine, MergeParts

__all__ = ["QuestionWorkers"]

_PR_SET_PDEATHSIG = 1

_MAX_RUNNING = 4
"""Questions that run at a time: one without end takes a place until its deadline, and holds up nobody."""

_REST_S = 60.0
"""Time that a worker waits for another question. By then nobody waits for the answers, and it has a hundred MB."""

_MAX_GROWTH_BYTES = 112 << 20
"""Memory that a worker may have taken and still wait for another question: its rows of earlier ones, and libraries."""


_MUCH_BYTES = 16 << 20
"""Growth after which memory that is free is returned: what one question after the other takes is less."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: EngineQuestion
    until_s: float


@dataclass(slots=True, eq=False)
class _Worker:
    pid: int
    messages: MessageSocket
    asked: _Waiting | None
    """What it works on; None if it waits."""
    is_used: bool = False
    """Whether it has answered a question."""
    is_outdated: bool = False


class QuestionWorkers:
    """The questions of an engine.

    Args:
        messages: where their answers go.
        answer: answers a question, in the process of a worker.
        answered: called with each question and the body of its answer.
    """

    def __init__(
        self,
        messages: MessageSocket,
        answer: Callable[[EngineQuestion], Message],
        answered: Callable[[EngineQuestion, bytes], None],
    ) -> None:
        self._messages = messages
        self._answer = answer
        self._answered = answered
        self._waiting: deque[_Waiting] = deque()
        self._workers: list[_Worker] = []
        self._libc = ctypes.CDLL(None)

    @property
    def sockets(self) -> Iterable[MessageSocket]:
        """The ways to workers for a poll: `work` takes what can be read."""
        return [one.messages for one in self._workers]

    @property
    def num_running(self) -> int:
        """The number of workers that work."""
        return sum(one.asked is not None for one in self._workers)

    def due_s(self) -> float:
        """The time until a deadline, in seconds."""
        asked = [*(one.asked for one in self._workers if one.asked is not None), *self._waiting]
        return min((one.until_s for one in asked), default=float("inf")) - monotonic()

    def begin(self, question: EngineQuestion) -> None:
        """Have a question answered in a process of its own."""
        self._waiting.append(_Waiting(question, monotonic() + question.timeout_s))
        self._start_next()

    def renew(self) -> None:
        """Have later questions answered by workers that know what the engine knows now."""
        for one in list(self._workers):
            one.is_outdated = True
            if one.asked is None:
                self._end(one)

    def work(self) -> None:
        """Pass on answers, and end what is late."""
        for one in list(self._workers):
            self._take(one)
        now_s = monotonic()
        for one in list(self._workers):
            if one.asked is not None and one.asked.until_s <= now_s:
                self._end(one)
                self._messages.send(unanswered(one.asked.question, late(one.asked.question)))
        for waiting in [waiting for waiting in self._waiting if waiting.until_s <= now_s]:
            self._waiting.remove(waiting)
            self._messages.send(unanswered(waiting.question, late(waiting.question)))
        self._start_next()

    def close(self) -> None:
        """End all of them."""
        for one in list(self._workers):
            self._end(one)

    def _start_next(self) -> None:
        while self._waiting and self.num_running < _MAX_RUNNING:
            waiting = self._waiting.popleft()
            idle = next((one for one in self._workers if one.asked is None), None)
            if idle is not None:
                idle.asked = waiting
                idle.messages.send(waiting.question)
                continue
            try:
                self._workers.append(self._fork(waiting))
            except OSError as error:
                self._messages.send(unanswered(waiting.question, f"the query cannot be run: {error}"))

    def _take(self, one: _Worker) -> None:
        """Take the answer of a worker, or its end."""
        one.messages.flush()
        for body in one.messages.receive_encoded():
            if one.asked is not None:
                self._messages.send_encoded(body)
                self._answered(one.asked.question, body)
            one.asked, one.is_used = None, True
        if one.messages.ended:
            status = self._end(one)
            if one.asked is not None and one.is_used:
                self._waiting.appendleft(one.asked)  # it may not have had the memory that a new one has
            elif one.asked is not None:
                problem = f"the query ended its process (status {status}): it takes too much memory"
                self._messages.send(unanswered(one.asked.question, problem))
        elif one.asked is None and (one.is_outdated or self._has_another_idle(one)):
            self._end(one)

    def _has_another_idle(self, one: _Worker) -> bool:
        return any(other.asked is None for other in self._workers if other is not one)

    def _end(self, one: _Worker) -> int:
        self._workers.remove(one)
        one.messages.close()
        os.kill(one.pid, signal.SIGKILL)
        _, status = os.waitpid(one.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _fork(self, waiting: _Waiting) -> _Worker:
        own, other = socket.socketpair()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            own.close()
            other.close()
            raise
        if pid == 0:
            own.close()
            self._serve(waiting.question, parent, MessageSocket(other))
        other.close()
        return _Worker(pid, MessageSocket(own), waiting)

    # ---- in the process of a worker ----

    def _serve(self, question: EngineQuestion, parent: int, messages: MessageSocket) -> NoReturn:
        """Answer this question and those that come, and end the process."""
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            self._messages.close()  # its end is that of the engine, not of this process
            for one in self._workers:
                one.messages.close()
            self._be_first_to_go()
            first_bytes = last_bytes = read_anonymous_bytes(os.getpid())
            asked: EngineQuestion | None = question
            while asked is not None:
                body = self._answer_to(asked)
                last_bytes = self._return_memory(last_bytes)
                messages.send_encoded(body)
                while messages.num_waiting and not messages.ended:
                    select.select([], [messages], [])
                    messages.flush()
                if last_bytes > first_bytes + _MAX_GROWTH_BYTES:
                    break
                asked = self._next_question(messages)
        finally:
            os._exit(1)

    @staticmethod
    def _next_question(messages: MessageSocket) -> EngineQuestion | None:
        """Wait for the next question, of which there is one at a time; None if none comes for a while."""
        while not messages.ended and select.select([messages], [], [], _REST_S)[0]:
            for message in messages.receive():
                if isinstance(message, AskSql | AskEngine | MergeParts):
                    return message
        return None

    def _answer_to(self, question: EngineQuestion) -> bytes:
        try:
            message = self._answer(question)
        except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
            print(f"a question was not answered: {error}", file=sys.stderr, flush=True)
            message = unanswered(question, f"the query cannot be answered: {error}")
        return encode(message)

    def _return_memory(self, last_bytes: int) -> int:
        """Return what is free, if this process has much more memory than the last time; return what it has."""
        now_bytes = read_anonymous_bytes(os.getpid())
        if now_bytes < last_bytes + _MUCH_BYTES or not hasattr(self._libc, "malloc_trim"):
            return min(now_bytes, last_bytes)
        self._libc.malloc_trim(0)
        return read_anonymous_bytes(os.getpid())

    @staticmethod
    def _be_first_to_go() -> None:
        """Have the kernel end this process, if memory is short, before those of the job."""
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
        except OSError:
            pass  # a container may forbid it
