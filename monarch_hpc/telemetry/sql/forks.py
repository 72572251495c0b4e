"""Runs each question in a process of its own, because it may run for ever, or out of memory.

They are forked from one that has loaded all libraries, and has started none of their threads: a fork takes 5 ms, where
loading them takes half a second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import field

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.sql.unanswered import EngineQuestion, late, unanswered
from monarch_hpc.wire.control.message import Message, encode

__all__ = ["QuestionForks"]

_PR_SET_PDEATHSIG = 1
_LENGTH_BYTES = 8
_PIECE_BYTES = 1 << 20

_MAX_RUNNING = 4
"""Questions that run at a time: one without end takes a place until its deadline, and holds up nobody."""


@dataclass(slots=True, eq=False)
class _Waiting:
    question: EngineQuestion
    run: Callable[[], Message]
    until_s: float


@dataclass(slots=True, eq=False)
class _Running:
    question: EngineQuestion
    until_s: float
    pid: int
    pipe: int
    body: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class QuestionForks:
    """The questions of an engine.

    Args:
        messages: where their answers go.
        answered: called with each question and the body of its answer.
    """

    def __init__(self, messages: MessageSocket, answered: Callable[[EngineQuestion, bytes], None]) -> None:
        self._messages = messages
        self._answered = answered
        self._waiting: deque[_Waiting] = deque()
        self._running: list[_Running] = []
        self._libc = ctypes.CDLL(None)

    @property
    def pipes(self) -> Iterable[int]:
        """The descriptors for a poll: `work` takes what can be read."""
        return [one.pipe for one in self._running]

    def due_s(self) -> float:
        """The time until a deadline, in seconds."""
        every = [*(one.until_s for one in self._running), *(one.until_s for one in self._waiting)]
        return min(every, default=float("inf")) - monotonic()

    def begin(self, question: EngineQuestion, run: Callable[[], Message]) -> None:
        """Have a question answered by what *run* returns, in a process of its own."""
        self._waiting.append(_Waiting(question, run, monotonic() + question.timeout_s))
        self._start_next()

    def work(self) -> None:
        """Pass on answers, and end what is late."""
        for one in list(self._running):
            self._read(one)
        now_s = monotonic()
        for one in [one for one in self._running if one.until_s <= now_s]:
            os.kill(one.pid, signal.SIGKILL)
            self._end(one)
            if not one.is_answered:
                self._messages.send(unanswered(one.question, late(one.question)))
        for waiting in [waiting for waiting in self._waiting if waiting.until_s <= now_s]:
            self._waiting.remove(waiting)
            self._messages.send(unanswered(waiting.question, late(waiting.question)))
        self._start_next()

    def close(self) -> None:
        """End all of them."""
        for one in list(self._running):
            os.kill(one.pid, signal.SIGKILL)
            self._end(one)

    def _start_next(self) -> None:
        while self._waiting and len(self._running) < _MAX_RUNNING:
            one = self._waiting.popleft()
            try:
                self._running.append(self._fork(one))
            except OSError as error:
                problem = f"the query cannot be run: {error}"
                self._messages.send(unanswered(one.question, problem))

    def _fork(self, one: _Waiting) -> _Running:
        pipe, other = os.pipe()
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(pipe)
            os.close(other)
            raise
        if pid == 0:
            self._run(one, parent, other)
        os.close(other)
        os.set_blocking(pipe, False)
        return _Running(one.question, one.until_s, pid, pipe)

    def _run(self, one: _Waiting, parent: int, pipe: int) -> None:
        """Answer in the process that was forked, and end it."""
        code = 1
        try:
            self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            self._messages.close()  # its end is that of the engine, not of this process
            for running in self._running:
                os.close(running.pipe)
            self._be_first_to_go()
            try:
                message = one.run()
            except Exception as error:  # noqa: BLE001 the engine's errors have no class of their own
                print(f"a question was not answered: {error}", file=sys.stderr, flush=True)
                message = unanswered(one.question, f"the query cannot be answered: {error}")
            body = encode(message)
            left = memoryview(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
            while left:
                left = left[os.write(pipe, left) :]
            code = 0
        finally:
            os._exit(code)

    @staticmethod
    def _be_first_to_go() -> None:
        """Have the kernel end this process, if memory is short, before those of the job."""
        try:
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
        except OSError:
            pass  # a container may forbid it

    def _read(self, one: _Running) -> None:
        while True:
            try:
                piece = os.read(one.pipe, _PIECE_BYTES)
            except BlockingIOError:
                return
            if piece:
                one.body += piece
                size = int.from_bytes(one.body[:_LENGTH_BYTES], "little")
                if len(one.body) >= _LENGTH_BYTES and len(one.body) == _LENGTH_BYTES + size:
                    one.is_answered = True
                    body = bytes(one.body[_LENGTH_BYTES:])
                    self._messages.send_encoded(body)
                    self._answered(one.question, body)
                continue
            status = self._end(one)
            if not one.is_answered:
                how = f"the query ended its process (status {status}): it takes too much memory"
                self._messages.send(unanswered(one.question, how))
            return

    def _end(self, one: _Running) -> int:
        self._running.remove(one)
        os.close(one.pipe)
        _, status = os.waitpid(one.pid, 0)
        return os.waitstatus_to_exitcode(status)
