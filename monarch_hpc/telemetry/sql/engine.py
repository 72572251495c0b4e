"""`python -m monarch_hpc.telemetry.sql.engine FD`: answers questions in SQL, in processes that it forks.

The helper of a host starts it at the first question, and hands it the records of procs over the socket pair FD; and a
tool does, for allocations that have ended. It ends when the other end is closed, and after
ten minutes without a question.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from dataclasses import replace

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.process.dumps import forbid_core_dumps
from monarch_hpc.core.process.parent import continue_at_parents_death
from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.recent import Recent
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.sql.plan import is_lasting, tables_of
from monarch_hpc.telemetry.sql.unanswered import EngineQuestion, unanswered
from monarch_hpc.telemetry.sql.workers import QuestionWorkers
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskSql, Portion, Rows, SqlAnswer
from monarch_hpc.wire.control.scribe import AskEngine, BeginLeaf, MergeParts, ProcOver, ProcRuns
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.tables.pieces import ON_HOSTS, AnswerPart

__all__ = ["EngineProcess", "launch_engine", "main"]

_IDLE_S = 600.0

_LOAD_AFTER_S = 0.5
"""Time without a question after which the rest is loaded that one may need: later than the two requests of a first
question follow each other, which does not wait for what it does not need."""

_MAX_MEMORY_BYTES = 8 << 30
"""Limit on the address space of a process, for what the engine does not count; libraries reserve some of it."""

_KEEP_PLANS = 256
"""Plans that are kept: of a few kB each."""

_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "2",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
}
"""One thread for a question: hosts have their cores for procs. By themselves, libraries start one for each core, which
also reserves more address space on a large host than the limit."""


def launch_engine() -> tuple[subprocess.Popen[bytes], MessageSocket]:
    """Start an engine, and return the way to it; the caller waits for the process.

    Raises:
        OSError: it cannot be started.
    """
    own, other = socket.socketpair()
    try:
        process = launch(
            [sys.executable, "-P", "-m", "monarch_hpc.telemetry.sql.engine", str(other.fileno())],
            {**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            pass_fds=(other.fileno(),),
            new_session=True,
        )
    except OSError:
        own.close()
        raise
    finally:
        other.close()
    return process, MessageSocket(own)


class EngineProcess:
    """The records of one host, and answers to questions.

    Args:
        absent: why it cannot answer questions; empty if it can.
    """

    def __init__(self, messages: MessageSocket, absent: str) -> None:
        self._messages = messages
        self._absent = absent
        self._begin: BeginLeaf | None = None
        self._procs: dict[ProcPlace, int] = {}
        self._dead: deque[tuple[ProcPlace, int]] = deque()
        self._plans: Recent[str, SqlAnswer] = Recent(_KEEP_PLANS)
        self.workers = QuestionWorkers(messages, self._answer, self._keep_plan)
        self._plans_questions = False
        self._lacking = {} if absent else {"rows": _load_rows, "splitter": _load_splitter}
        if not absent:
            from monarch_hpc.telemetry.sql.planning import Planner

            self._planner = Planner()

    @property
    def lacking(self) -> list[str]:
        """What is not loaded that the next question may need: a host that plans none needs no splitter."""
        return [name for name in self._lacking if name != "splitter" or self._plans_questions]

    def load(self, *names: str) -> None:
        """Load what some questions need, for later workers."""
        lacking = [self._lacking.pop(name) for name in names if name in self._lacking]
        for one in lacking:
            one()
        if lacking:
            gc.freeze()
            self.workers.renew()

    def handle(self, message: Message) -> None:
        """Handle one message."""
        match message:
            case BeginLeaf():
                self._begin = message
            case ProcRuns():
                place = ProcPlace(message.run, message.mesh, message.rank, message.pid)
                self._procs[place] = self._messages.take_fd()
                self.workers.renew()
            case ProcOver():
                self._end(ProcPlace(message.run, message.mesh, message.rank, message.pid), failed=message.failed)
                self.workers.renew()
            case AskSql() if self._absent:
                self._messages.send(SqlAnswer(message.ticket, absent=self._absent))
            case AskEngine() | MergeParts() if self._absent:
                self._messages.send(unanswered(message, self._absent))
            case AskSql() if not message.given and (known := self._plans.get(message.sql)) is not None:
                self._messages.send(replace(known, ticket=message.ticket))
            case AskEngine() | MergeParts() | AskSql():
                self._plans_questions |= isinstance(message, AskSql)
                if isinstance(message, AskEngine | MergeParts):
                    self.load("rows")
                elif not message.given and not ON_HOSTS.isdisjoint(tables_of(message.sql)):
                    self.load("rows", "splitter")
                self.workers.begin(message)

    def _keep_plan(self, question: EngineQuestion, body: bytes) -> None:
        """Keep the plan of a question, which dashboards and scripts ask again."""
        if isinstance(question, AskSql) and not question.given and is_lasting(question.sql):
            answer = decode(body)
            if isinstance(answer, SqlAnswer) and answer.body:
                self._plans[question.sql] = answer

    def _end(self, place: ProcPlace, *, failed: bool) -> None:
        fd = self._procs.pop(place, -1)
        if fd < 0:
            return
        if not failed or self._begin is None or not self._begin.keep_dead:
            os.close(fd)
            return
        self._dead.append((place, fd))
        if len(self._dead) > self._begin.keep_dead:
            os.close(self._dead.popleft()[1])

    def _answer(self, question: EngineQuestion) -> Message:
        """The answer, which is made in the process of a worker."""
        from monarch_hpc.telemetry.sql.replies import answer_part, answer_question, merge_parts

        match question:
            case AskSql():
                return answer_question(question, self._planner)
            case AskEngine():
                assert self._begin is not None, "the helper begins with `BeginLeaf`"
                part = answer_part(question, self._begin, [*self._procs.items(), *self._dead])
            case MergeParts():
                part = merge_parts(question)
        return _portion(question, part)


def _portion(question: AskEngine | MergeParts, part: AnswerPart) -> Rows:
    return Rows(question.ticket, [Portion(question.source, part.render(), cut=bool(part.cut))], [], [])


class _WithoutPandas:
    """Has imports of pandas find nothing: pyarrow looks for it, and would load it for each engine."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Say so."""
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not loaded in engines", name=name)


def _load() -> str:
    """Load what questions need; return why that cannot be, or an empty text.

    Without pandas, where that is installed, it takes 0.3 s of CPU time instead of 0.5, and 45 MB less.
    """
    sys.meta_path.insert(0, _WithoutPandas)
    try:
        import monarch_hpc.telemetry.sql.replies  # noqa: F401 for its libraries
    except ModuleNotFoundError as error:
        return f"questions in SQL need {error.name}, which is not installed: pip install 'monarch-hpc[telemetry]'"
    return ""


def _load_rows() -> None:
    """Load what makes rows of records."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401 for later workers


def _load_splitter() -> None:
    from monarch_hpc.telemetry.sql.planning import Planner

    Planner.load_splitter()


def main(arguments: list[str]) -> int:
    """Serve until the other end of the socket is closed."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    forbid_core_dumps()
    continue_at_parents_death()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.umask(0o077)
    messages = MessageSocket(socket.socket(fileno=int(arguments[0])))
    engine = EngineProcess(messages, _load())
    gc.freeze()  # what is loaded is shared with the processes that are forked
    poller, idle_since_s = select.poll(), monotonic()
    while not messages.ended:
        sockets = [*engine.workers.sockets]
        poller.register(messages, select.POLLIN | (select.POLLOUT if messages.num_waiting else 0))
        for one in sockets:
            poller.register(one, select.POLLIN | (select.POLLOUT if one.num_waiting else 0))
        can_load = bool(engine.lacking) and not engine.workers.num_running
        until_s = idle_since_s + (_LOAD_AFTER_S if can_load else _IDLE_S)
        poller.poll(max(min(engine.workers.due_s(), until_s - monotonic()), 0.0) * 1000)
        for one in sockets:
            poller.unregister(one)
        messages.flush()
        for message in messages.receive():
            idle_since_s = monotonic()
            engine.handle(message)
        engine.workers.work()
        if monotonic() - idle_since_s >= _LOAD_AFTER_S and not engine.workers.num_running:
            engine.load(*engine.lacking)
        if monotonic() - idle_since_s >= _IDLE_S and not engine.workers.num_running:
            break
    with contextlib.suppress(ProcessLookupError):
        engine.workers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
