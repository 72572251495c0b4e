"""Follows a program of the head's agent from a terminal: signals, lost connections, detaching, and its exit code."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path

from monarch_hpc.allocation.programs import read_exit
from monarch_hpc.allocation.ready import check_allocation
from monarch_hpc.attach.program_client import ProgramClient
from monarch_hpc.cli.output import Console
from monarch_hpc.cli.runs.files import show_files
from monarch_hpc.cli.runs.loss import JOB_END_S, why_lost
from monarch_hpc.cli.runs.mirror import InputThread, Mirror
from monarch_hpc.cli.runs.place import OnInterrupt
from monarch_hpc.cli.runs.terminal import Terminal
from monarch_hpc.config.schema import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, MonarchError, TransportError
from monarch_hpc.wire.control.programs import StartProgram

__all__ = ["Outcome", "Session", "detached_text", "tell_detached"]

_WAKE = signal.SIGUSR1
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGCONT, _WAKE}
_LONG_S = 3600.0
_FINISH_S = 5.0
"""Time for a slow terminal to take the last output when this command detaches."""
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a session.

    Attributes:
        exit_code: the program's; of this command if it has detached.
        stopped: whether this command was asked to end the program.
        detached: whether the program goes on.
    """

    exit_code: int
    stopped: bool = False
    detached: bool = False


class Session:
    """One command that shows one program. Use it in the main thread, before others have started: it blocks signals.

    Args:
        name: the allocation, for messages; its *directory* counts.
        first: offset of the first output to show; -1 for where earlier clients left off.
        terminal: whether the program has a terminal, and this command's own passes keys on.
        reads: whether standard input is passed on.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        run: str,
        config: Config,
        output: Console,
        on_interrupt: OnInterrupt,
        *,
        first: int,
        terminal: bool,
        reads: bool,
    ) -> None:
        self._name = name
        self._directory = directory
        self._run = run
        self._config = config
        self._output = output
        self._on_interrupt = on_interrupt
        self._reads = reads
        self._has_terminal = terminal
        self._terminal = Terminal()
        self._stopped = False
        self._interrupted: Deadline | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._mirror = Mirror(first, _wake)
        self._client: ProgramClient | None = None

    def start(self, order: StartProgram) -> None:
        """Connect, and start the program.

        Raises:
            AllocationError: the head refuses it.
            MonarchError: it cannot be reached.
        """
        client = self._client = self._connect()
        client.start(order)

    def wait_until_started(self) -> None:
        """Wait until the program runs.

        Raises:
            AllocationError: it does not, or the head has not answered in time.
        """
        client, deadline = self._client, Deadline(self._config.transport.relay_s)
        assert client is not None, "start() comes first"
        while not (client.started or client.end):
            problem = client.refusal or client.lost or ("its head does not answer" if deadline.passed() else "")
            if problem:
                raise AllocationError(self._name, problem)
            signal.sigtimedwait({_WAKE}, deadline.left_s())

    def leave(self) -> None:
        """Close the connection; the program goes on."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def follow(self) -> Outcome:
        """Show the program's output until it ends, or this command detaches.

        Raises:
            AllocationError, JobFailed: the head refuses, or it and the program's exit code are lost.
        """
        try:
            with self._terminal.forwarding() if self._has_terminal else contextlib.nullcontext():
                self._attach()
                if self._reads:
                    InputThread(lambda: self._client, terminal=self._has_terminal)
                outcome = self._follow()
            return self._detach() if self._interrupted is not None else outcome
        finally:
            self.leave()

    def _connect(self) -> ProgramClient:
        return ProgramClient(self._directory, self._run, lambda output: self._mirror.put(output), _wake)

    def _attach(self) -> None:
        client = self._client = self._client or self._connect()
        self._mirror.follow(client)
        if self._has_terminal:
            client.resize(*self._terminal.size())

    def _follow(self) -> Outcome:
        while True:
            client = self._client
            assert client is not None
            if client.end is not None:
                self._mirror.finish(None)
                return Outcome(client.end.exit_code, self._stopped)
            if client.refusal:
                raise AllocationError(self._name, f"run {self._run}: {client.refusal}")
            if client.lost and (outcome := self._reconnect(client)) is not None:
                return outcome
            if self._mirror.broken:
                return self._leave_shown(client, 128 + signal.SIGPIPE)
            info = signal.sigtimedwait(_SIGNALS, _LONG_S)
            if info is not None and (outcome := self._on_signal(info.si_signo)) is not None:
                return outcome

    # ---- signals ----

    def _on_signal(self, number: int) -> Outcome | None:
        client = self._client
        assert client is not None
        match number:
            case signal.SIGWINCH | signal.SIGCONT:
                if self._has_terminal:
                    self._terminal.forward()
                    client.resize(*self._terminal.size())
            case signal.SIGHUP:
                return self._leave_shown(client, 128 + number)
            case signal.SIGINT | signal.SIGTERM if self._on_interrupt is OnInterrupt.CANCEL:
                self._cancel(client, number)
            case signal.SIGINT:
                outcome = self._leave_shown(client, 0)
                self._interrupted = Deadline(self._config.run.cancel_s)
                return outcome
            case signal.SIGTERM:
                return self._leave_shown(client, 128 + number)
        return None

    def _leave_shown(self, client: ProgramClient, exit_code: int) -> Outcome:
        """Detach: show what has come, and report the position to the head, from which the next client goes on."""
        self._mirror.finish(_FINISH_S)
        if self._mirror.next >= 0:
            client.read(self._mirror.next)
        return Outcome(exit_code, detached=True)

    def _cancel(self, client: ProgramClient, number: int) -> None:
        if self._stopped:
            client.signal(signal.SIGKILL, group=True, grace_s=-1.0)
        else:
            client.signal(number, group=number == signal.SIGINT, grace_s=self._config.run.stop_grace_s)
        self._stopped = True

    def _detach(self) -> Outcome:
        """After the first Ctrl-C: name the next commands, and cancel the run at a second one."""
        assert self._interrupted is not None
        self._output.progress(f"{detached_text(self._run)}; Ctrl-C within {self._interrupted.timeout_s:.0f} s ends it")
        if signal.sigtimedwait({signal.SIGINT}, self._interrupted.left_s()) is None:
            return Outcome(0, detached=True)
        self._output.progress(f"ending run {self._run}")
        self._on_interrupt = OnInterrupt.CANCEL
        self._mirror = Mirror(self._mirror.next, _wake)
        self._attach()
        assert self._client is not None
        self._cancel(self._client, signal.SIGINT)
        return self._follow()

    # ---- lost connections ----

    def _reconnect(self, client: ProgramClient) -> Outcome | None:
        """After the loss of the head: connect again, or learn the end from the run's files.

        Raises:
            AllocationError, JobFailed: neither is possible.
        """
        why = client.lost
        self.leave()
        deadline = Deadline(self._config.transport.cut_s)
        while True:
            late = deadline.passed()
            end = read_exit(self._directory, self._run)
            if end is not None:
                return Outcome(show_files(self._directory, self._run, self._mirror, end), self._stopped)
            try:
                check_allocation(self._directory)
                self._client = self._connect()
                self._attach()
                return None
            except TransportError as error:
                why = str(error)
            except MonarchError as error:
                # Its files may follow a moment later.
                why, late = str(error), late or deadline.elapsed_s() > _FINISH_S
            if late:
                problem = f"contact with its head was lost while run {self._run} was shown: {why}"
                raise why_lost(self._config, self._name, problem, JOB_END_S)
            if signal.sigtimedwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP}, _RETRY_S) is not None:
                return Outcome(130, detached=True)


def detached_text(run: str) -> str:
    """Say that a run goes on, and name the two next commands."""
    return f"run {run} goes on: 'monarch-hpc attach {run}' shows it again, 'monarch-hpc cancel {run}' ends it"


def tell_detached(outcome: Outcome, run: str, output: Console) -> None:
    """Name the next commands after a command has detached without a word, if it has a terminal left."""
    if outcome.detached and outcome.exit_code:
        with contextlib.suppress(OSError):
            output.progress(detached_text(run))


def _wake() -> None:
    """Make the main thread's wait return; from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)
