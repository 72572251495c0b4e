"""The programs of the head's host: clients start, feed, signal and read them; each owns a run."""

from __future__ import annotations

import base64
import binascii
import signal
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.programs.program import HostSettings, Program
from monarch_hpc.agent.programs.reads import OutputReads, Send
from monarch_hpc.agent.programs.request_checks import problem_of
from monarch_hpc.agent.programs.submissions import Submissions
from monarch_hpc.allocation.programs import ProgramExit
from monarch_hpc.config.program import DIRECTORY_VARIABLE, ON_LOSS_VARIABLE, RUN_VARIABLE
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.programs import (
    AT_END,
    MAX_INPUT_BYTES,
    RUN_EXISTS,
    InputTaken,
    JobSubmitted,
    ProgramEnded,
    ProgramStarted,
    ReadOutput,
    ResizeTerminal,
    ServeJobs,
    SignalProgram,
    SignalSent,
    StartProgram,
    SubmitJob,
    WriteInput,
)
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused, refuse
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunClosed
from monarch_hpc.wire.start import RUN_COOKIE

__all__ = ["OwnRun", "Programs", "Request"]

_KEEP = 64
"""Number of programs of which it is remembered what clients have shown, and how they ended."""

_TAKEN_S = 15.0
"""Time that a program whose run was taken over has to end by itself: more than `actor.fault` gives its main thread."""

OwnRun = Callable[[Callable[[Message], None]], tuple[Send, Callable[[], None]]]
"""Given a callback for the head's messages to a new peer: returns what sends the head messages, and what ends it."""

Request = StartProgram | WriteInput | SignalProgram | ResizeTerminal | ReadOutput | ServeJobs | SubmitJob | JobSubmitted
"""The requests of clients; `Programs.handle` takes nothing else."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A program that runs, or whose run still has procs."""

    order: StartProgram
    starter: Send
    to_head: Send = lambda _message: None
    leave_head: Callable[[], None] = lambda: None
    readers: dict[Send, ReadOutput] = field(default_factory=dict)
    refusal: str = ""
    program: Program | None = None
    drained: bool = False
    run_over: bool = False
    taken: bool = False
    feeder: Send | None = None


class Programs:
    """The programs of this host. All methods must be called on the engine's driver.

    Args:
        own_run: see `OwnRun`.
    """

    def __init__(
        self,
        engine: Engine,
        reaper: Reaper,
        settings: HostSettings,
        own_run: OwnRun,
    ) -> None:
        self._engine = engine
        self._reaper = reaper
        self._settings = settings
        self._own_run = own_run
        self._reads = OutputReads(engine, settings.directory)
        self._entries: dict[str, _Entry] = {}
        self._ended: Recent[str, ProgramExit] = Recent(_KEEP)
        self._shown: Recent[str, int] = Recent(_KEEP)
        self._submissions = Submissions()
        self._leaving = False

    @property
    def running(self) -> bool:
        """Whether a program runs."""
        return any(one.program is not None and one.program.end is None for one in self._entries.values())

    @property
    def drained(self) -> bool:
        """Whether no program runs, and all their output and their ends are in the files."""
        return all(entry.drained for entry in self._entries.values())

    def handle(self, message: Request, send: Send) -> None:
        """Carry out a client's request; *send*, which is equal for all its requests, answers it."""
        match message:
            case StartProgram():
                self._start(message, send)
            case ReadOutput():
                self._read(message, send)
            case WriteInput():
                self._write(message, send)
            case ServeJobs() | SubmitJob() | JobSubmitted():
                self._submissions.handle(message, send)
            case SignalProgram() | ResizeTerminal():
                entry = self._entries.get(message.run)
                if problem := problem_of(message):
                    send(refuse(message, problem))
                elif entry is None or entry.program is None or entry.program.end is not None:
                    send(refuse(message, "no such program runs here"))
                elif isinstance(message, SignalProgram):
                    entry.program.signal(message.signal, message.group, message.grace_s)
                    send(SignalSent(message.run))
                else:
                    entry.program.resize(message.rows, message.columns)

    def forget(self, send: Send) -> None:
        """A client is gone: its programs go on, and its requests need no answer."""
        self._submissions.forget(send)
        for entry in self._entries.values():
            entry.readers.pop(send, None)
            if entry.feeder == send and entry.program is not None and entry.program.feed is not None:
                entry.program.feed.forget()
                entry.feeder = None

    def leave(self, grace_s: float) -> None:
        """End all programs: SIGTERM, and SIGKILL after *grace_s*."""
        self._leaving = True
        for entry in self._entries.values():
            if entry.program is not None:
                entry.program.signal(signal.SIGTERM, False, grace_s)

    def close(self) -> None:
        """End the thread that reads files."""
        self._reads.close()

    # ---- the start ----

    def _start(self, order: StartProgram, send: Send) -> None:
        problem = problem_of(order)
        if self._leaving:
            problem = "the allocation is being released"
        elif order.run in self._entries:
            problem = RUN_EXISTS.format(run=order.run)
        if problem:
            send(refuse(order, problem))
            return
        entry = _Entry(order, send)
        entry.to_head, entry.leave_head = self._own_run(partial(self._on_head, entry))
        entry.to_head(self._opening(order, 0))
        if entry.refusal:
            entry.leave_head()
            send(refuse(order, entry.refusal))
            return
        self._entries[order.run] = entry
        environment = {
            **self._settings.environment,
            **order.environment,
            **self._settings.marks,
            RUN_COOKIE: order.run,
            DIRECTORY_VARIABLE: str(self._settings.directory),
            RUN_VARIABLE: order.run,
            ON_LOSS_VARIABLE: order.on_loss,
        }
        try:
            entry.program = Program(
                self._engine,
                self._reaper,
                self._settings,
                order,
                environment,
                wrote=partial(self._serve, entry),
                started=partial(self._on_started, entry),
                exited=partial(self._on_exited, entry),
                drained=partial(self._on_drained, entry),
            )
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            send(refuse(order, f"it cannot be started: {problem}"))
            entry.drained = True
            entry.to_head(CloseRun(order.run, -1))
            return
        # Not before: now its process is known.
        entry.to_head(self._opening(order, entry.program.pid))

    def _opening(self, order: StartProgram, pid: int) -> OpenRun:
        host, on_loss, hold_s = self._settings.host, order.on_loss, order.hold_s
        return OpenRun(order.run, order.title, host, pid, owner=True, on_loss=on_loss, hold_s=hold_s)

    def _on_started(self, entry: _Entry) -> None:
        if entry.program is not None:
            entry.starter(ProgramStarted(entry.order.run, entry.program.pid))

    def _on_head(self, entry: _Entry, message: Message) -> None:
        """Handle a message of the head to the owner of the run."""
        match message:
            case Refused():
                entry.refusal = message.problem
            case Ask():
                # The head reads the program's records by itself.
                entry.to_head(Rows(message.ticket, [], [], []))
            case RunClosed():
                entry.run_over = True
                if not message.run and entry.program is not None:  # another program has taken it over
                    entry.taken = True
                    entry.program.kill_in(_TAKEN_S)
                self._settle(entry)

    # ---- input and output ----

    def _write(self, message: WriteInput, send: Send) -> None:
        entry = self._entries.get(message.run)
        feed = entry.program.feed if entry is not None and entry.program is not None else None
        if entry is None or feed is None:
            send(InputTaken(message.run, closed=True))
            return
        try:
            data = base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            send(refuse(message, "its data are not base64"))
            return
        if len(data) > MAX_INPUT_BYTES or feed.busy:
            send(refuse(message, f"at most {MAX_INPUT_BYTES} bytes of input can wait, from one client"))
            return
        entry.feeder = send
        feed.write(data, message.end, lambda closed: send(InputTaken(message.run, closed)))

    def _read(self, message: ReadOutput, send: Send) -> None:
        if problem := problem_of(message):
            send(refuse(message, problem))
            return
        entry = self._entries.get(message.run)
        message = self._note_shown(message)
        if entry is None:
            self._reads.read(send, message, self._ended.get(message.run))
        else:
            entry.readers[send] = message
            self._serve(entry)

    def _note_shown(self, message: ReadOutput) -> ReadOutput:
        """Note what clients have shown, for the next one that goes on there; return *message* with its offset."""
        shown = self._shown.get(message.run) or 0
        if message.offset < 0:
            return replace(message, offset=shown)
        if shown < message.offset < AT_END:
            self._shown[message.run] = message.offset
        return message

    def _serve(self, entry: _Entry) -> None:
        """Answer the reads that need not wait."""
        written = entry.program.written if entry.program is not None else 0
        for send, request in list(entry.readers.items()):
            if request.offset < written:
                del entry.readers[send]
                self._reads.read(send, request, written)
            elif entry.drained and entry.run_over:
                del entry.readers[send]
                end = entry.program.end if entry.program is not None else None
                if end is not None:
                    send(ProgramEnded(request.run, end.exit_code, end.cause))
                else:
                    send(refuse(request, "it was not started"))

    # ---- the end ----

    def _on_exited(self, entry: _Entry, end: ProgramExit) -> None:
        lost = entry.program is not None and entry.program.was_killed and entry.order.on_loss != "stop"
        if lost and not self._leaving:
            entry.leave_head()  # the head holds the run, which has no owner then
            entry.run_over = True
            self._settle(entry)
        else:
            entry.to_head(CloseRun(entry.order.run, end.exit_code))

    def _on_drained(self, entry: _Entry) -> None:
        entry.drained = True
        self._settle(entry)

    def _settle(self, entry: _Entry) -> None:
        runs = entry.program is not None and entry.program.end is None
        if entry.run_over and not entry.drained and not entry.taken and runs and entry.program is not None:
            # The head has closed the run, or another owner has: procs do not outlive it, nor does the program.
            entry.program.signal(signal.SIGTERM, True, 0.0)
        if entry.drained and entry.run_over:
            self._serve(entry)
            self._entries.pop(entry.order.run, None)
            if entry.program is not None and entry.program.end is not None:
                self._ended[entry.order.run] = entry.program.end
            entry.leave_head()
