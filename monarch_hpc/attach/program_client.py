"""A client's connection to the head's agent about one program."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.attach.attach import attach
from monarch_hpc.core.errors import ChannelClosed, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message, make, parse
from monarch_hpc.wire.control.programs import (
    InputTaken,
    ProgramEnded,
    ProgramOutput,
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
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.frames import Frame

__all__ = ["ProgramClient"]

_ANSWERS: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (InputTaken, ProgramEnded, ProgramOutput, ProgramStarted, Refused, SignalSent, SubmitJob)
}
"""Messages of the head to a client. The others are not loaded: a program's first line waits for that."""


class ProgramClient:
    """A channel to the head of the allocation in *directory*. It has no part in the run's life.

    Args:
        on_output: called on another thread with each `ProgramOutput`; the next read is the caller's.
        changed: called on another thread when one of the attributes below has changed.

    Attributes:
        lost: why the head is gone; empty while it is connected.
        refusal: why the head has refused a request; empty if it has not.
        started: whether the program was started.
        end: the end of the program; None before.
        input_taken: whether the last input was taken, and the next can be sent.
        input_closed: whether the program takes no more input.

    Raises:
        AllocationError, VersionMismatch, TransportError: as `attach`.
    """

    def __init__(
        self, directory: Path, run: str, on_output: Callable[[ProgramOutput], None], changed: Callable[[], None]
    ) -> None:
        self.lost = ""
        self.refusal = ""
        self.started = False
        self.end: ProgramEnded | None = None
        self.input_taken = True
        self.input_closed = False
        self._signalled: str | None = None
        self._run = run
        self._on_output = on_output
        self._changed = changed
        self._engine = Engine()
        self._engine.start()
        try:
            self._attachment = attach(directory, Role.TOOL, self, self._engine)
            config = self._attachment.config
            self._submit_s = config.slurm.command_timeout_s
            self._submits = not config.login.submit_from_compute and shutil.which("sbatch") is not None
            if self._submits:
                self._send(ServeJobs())
        except BaseException:
            self._engine.close()
            raise

    def start(self, order: StartProgram) -> None:
        """Start the program; `started` or `refusal` follows."""
        self._send(order)

    def read(self, offset: int) -> None:
        """Ask for output from *offset* on: see `ReadOutput`."""
        self._send(ReadOutput(self._run, offset))

    def write(self, data: bytes, *, end: bool) -> None:
        """Send input; only if `input_taken`."""
        self.input_taken = False
        self._send(WriteInput(self._run, base64.b64encode(data).decode(), end))

    def wait(self, timeout_s: float) -> None:
        """Wait for the program's end, a refusal, or the loss of the head; at most *timeout_s* seconds."""
        self._engine.wait(lambda: bool(self.end or self.refusal or self.lost), timeout_s)

    def wait_for_signal(self, timeout_s: float) -> str:
        """Wait until `signal` is answered; return why that was not possible, empty if it was."""
        answered = self._engine.wait(lambda: self._signalled is not None or bool(self.lost), timeout_s)
        return self._signalled or self.lost if answered else "its head does not answer"

    def wait_for_input(self) -> bool:
        """Wait until the last input was taken; return whether there can be more."""
        self._engine.wait(lambda: self.input_taken or self.input_closed or bool(self.lost) or bool(self.end), None)
        return self.input_taken and not self.input_closed

    def signal(self, number: int, *, group: bool, grace_s: float) -> None:
        """Send the program a signal: see `SignalProgram`."""
        self._send(SignalProgram(self._run, number, group, grace_s))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the program's terminal."""
        self._send(ResizeTerminal(self._run, rows, columns))

    def close(self) -> None:
        """Leave; the program goes on."""
        self._attachment.node.close("the command has ended")
        self._engine.close()

    def _submit(self, order: SubmitJob) -> None:
        """Submit a job for a process on a host, which may not."""
        from monarch_hpc.slurm.commands.through_client import submit_for  # rarely needed

        self._send(submit_for(order, self._submit_s))

    def _send(self, message: Message) -> None:
        try:
            self._attachment.send(message)
        except TransportError as error:
            self.lost = self.lost or str(error)
            self._changed()

    def on_channel(self, channel: FrameChannel) -> None:
        """Never called: no process dials a command."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a message from the head."""
        name, document = parse(frame.body)
        if name not in _ANSWERS:
            return
        match make(_ANSWERS[name], document):
            case ProgramOutput() as output:
                self._on_output(output)
                return
            case SubmitJob() as order if self._submits:
                Thread(lambda: self._submit(order))
                return
            case ProgramStarted():
                self.started = True
            case ProgramEnded() as end:
                self.end = end
            case InputTaken(closed=closed):
                self.input_taken, self.input_closed = True, closed
            case Refused(problem=problem, request=StartProgram.__name__ | ReadOutput.__name__ | ""):
                self.refusal = problem
            case SignalSent():
                self._signalled = ""
            case Refused(problem=problem, request=SignalProgram.__name__):
                self._signalled = problem
            case Refused(request=WriteInput.__name__):
                self.input_closed = True
            case _:
                return  # the terminal has another size, after the end
        self._engine.wake_waiters()
        self._changed()

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Record that the head is gone, unless this side closed the channel."""
        if isinstance(error, ChannelClosed):
            return
        self.lost = str(error)
        self._engine.wake_waiters()
        self._changed()
