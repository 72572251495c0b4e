"""Messages about programs that the head's agent runs: they start, read input, write output, get signals, and end.

And about jobs that a process on a compute node asks for, and a client on a login node submits.
"""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = [
    "AT_END",
    "MAX_INPUT_BYTES",
    "MAX_READ_BYTES",
    "RUN_EXISTS",
    "UNKNOWN",
    "InputTaken",
    "JobSubmitted",
    "OutputPart",
    "ProgramEnded",
    "ProgramOutput",
    "ProgramStarted",
    "ReadOutput",
    "ResizeTerminal",
    "ServeJobs",
    "SignalProgram",
    "SignalSent",
    "StartProgram",
    "SubmitJob",
    "WriteInput",
]

AT_END = (1 << 62) - 1
"""An offset that no output reaches: a read from there is answered at the program's end."""

MAX_READ_BYTES = 256 << 10
"""Most output in one answer: with one answer in flight, the relay's round trip of a millisecond costs little."""

MAX_INPUT_BYTES = 64 << 10
"""Most input in one message, and so in the agent's memory for each client: as much as a pipe holds."""

RUN_EXISTS = "run {run} exists already"
"""Why a second program of a run is refused: by this, a client knows that another one was first."""

UNKNOWN = 124
"""A status of sbatch that says nothing about the job, as of a command that ran out of time."""


@dataclass(frozen=True, slots=True)
class StartProgram(Message):
    """Client to head: start a program on the head's host, as the owner of a new run. It outlives the client.

    Args:
        run: name of the new run.
        environment: the client's variables, without those that describe the client's machine.
        umask: the client's; the agent's own excludes all other users.
        terminal: rows and columns of the program's terminal; empty for pipes.
        reads: whether `WriteInput` follows; otherwise the program's input is empty.
        on_loss: see config key `run.on_loss`, and *hold_s* `run.hold_s`.
        limit_s: time after which it is ended, by SIGTERM and *grace_s* later by SIGKILL; 0 for none.
    """

    run: str
    title: str
    argv: list[str]
    cwd: str
    umask: int
    environment: dict[str, str]
    terminal: list[int]
    reads: bool
    on_loss: str = "stop"
    hold_s: float = 0.0
    limit_s: float = 0.0
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramStarted(Message):
    """Head to client: the program runs as process *pid*, and its record is in the run's directory."""

    run: str
    pid: int


@dataclass(frozen=True, slots=True)
class WriteInput(Message):
    """Client to head: input of the program, in base64; *end* closes its input. The next must follow `InputTaken`."""

    run: str
    data: str
    end: bool


@dataclass(frozen=True, slots=True)
class InputTaken(Message):
    """Head to client: the program's pipe or terminal has taken the input; *closed* if it takes no more."""

    run: str
    closed: bool


@dataclass(frozen=True, slots=True)
class SignalProgram(Message):
    """Client to head: send the program a signal.

    Args:
        signal: number of the signal.
        group: whether its whole process group gets the signal, as from the keys of a terminal.
        grace_s: seconds after which SIGKILL follows; negative for never.
    """

    run: str
    signal: int
    group: bool
    grace_s: float


@dataclass(frozen=True, slots=True)
class SignalSent(Message):
    """Head to client: the answer to `SignalProgram`."""

    run: str


@dataclass(frozen=True, slots=True)
class ResizeTerminal(Message):
    """Client to head: the terminal has another size."""

    run: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class ReadOutput(Message):
    """Client to head: return output from *offset* on, as soon as there is some; or the program's end.

    Args:
        offset: the client has shown what lies before it; -1 for where the clients before this one left off.
    """

    run: str
    offset: int


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Output of one stream: its first byte's *offset* in the output of both, and *data* in base64.

    Args:
        stream: ``out`` or ``err``.
    """

    offset: int
    stream: str
    data: str


@dataclass(frozen=True, slots=True)
class ProgramOutput(Message):
    """Head to client: the answer to `ReadOutput`. What lies between two parts was discarded.

    Args:
        next: offset of the output that follows.
    """

    run: str
    parts: list[OutputPart]
    next: int


@dataclass(frozen=True, slots=True)
class ProgramEnded(Message):
    """Head to client: all output was read, the program has ended, and nothing of its run is left.

    Args:
        exit_code: as a shell's: 128 and the number of the signal, if one ended the program.
        cause: the end in words.
    """

    run: str
    exit_code: int
    cause: str


@dataclass(frozen=True, slots=True)
class ServeJobs(Message):
    """Client to head: this client submits jobs for the processes on the allocation's hosts."""


@dataclass(frozen=True, slots=True)
class SubmitJob(Message):
    """A process on a host to the head, and the head to a client: submit a job.

    Args:
        ticket: the head's number for the answer; 0 on the way to the head.
        script: the batch script, with all flags of the job, in base64; empty to learn whether a client would submit.
        folder: working directory of sbatch.
        environment: variables of the process, which the job inherits as far as its script says so.
    """

    ticket: int
    script: str
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class JobSubmitted(Message):
    """The answer to `SubmitJob`, back on the same way.

    Args:
        status: sbatch's exit status, or `UNKNOWN`: the job may or may not exist.
        output: what sbatch printed on its standard output, and *errors* on the other.
    """

    ticket: int
    status: int
    output: str
    errors: str
