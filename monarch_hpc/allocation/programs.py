"""The files of a program that the head's agent runs, in its run's directory, beside its output.

program.json  the program has started
exit.json     it has ended, and all its output is in the files
"""

from __future__ import annotations

from pathlib import Path

from monarch_hpc.allocation.document import read_document, write_document
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.storage.files import private_dir

__all__ = ["ProgramExit", "ProgramRecord", "read_exit", "read_program", "run_folder", "write_exit", "write_program"]

_PROGRAM = "program.json"
_EXIT = "exit.json"


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """The contents of ``program.json``.

    Attributes:
        title: the command line, for people.
        host: name of the host that it runs on.
        terminal: whether it has a terminal, which has one stream of output.
        reads: whether it may have input.
        at_s: when it started by the host's clock, in seconds since the epoch.
    """

    run: str
    title: str
    host: str
    pid: int
    terminal: bool
    reads: bool
    at_s: int


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The contents of ``exit.json``: the exit code as a shell's, and the end in words."""

    exit_code: int
    cause: str


def run_folder(directory: Path, run: str) -> Path:
    """The directory of a run's files."""
    return directory / "runs" / run


def write_program(directory: Path, record: ProgramRecord) -> None:
    """Record that a program has started."""
    fields: dict[str, object] = {
        "run": record.run,
        "title": record.title,
        "host": record.host,
        "pid": record.pid,
        "terminal": int(record.terminal),
        "reads": int(record.reads),
        "time_s": record.at_s,
    }
    write_document(private_dir(run_folder(directory, record.run)) / _PROGRAM, fields)


def read_program(directory: Path, run: str) -> ProgramRecord | None:
    """Read ``program.json``; None if the run has no program of the head's agent.

    Raises:
        ConfigError: the file is malformed.
    """
    try:
        document = read_document(run_folder(directory, run) / _PROGRAM)
    except FileNotFoundError:
        return None
    return ProgramRecord(
        run=document.text("run"),
        title=document.text("title"),
        host=document.text("host"),
        pid=document.whole("pid"),
        terminal=bool(document.whole("terminal")),
        reads=bool(document.whole("reads")),
        at_s=document.whole("time_s"),
    )


def write_exit(directory: Path, run: str, end: ProgramExit) -> None:
    """Record that a program has ended."""
    write_document(run_folder(directory, run) / _EXIT, {"exit_code": end.exit_code, "cause": end.cause})


def read_exit(directory: Path, run: str) -> ProgramExit | None:
    """Read ``exit.json``; None while the program runs, and where its agent died before it.

    Raises:
        ConfigError: the file is malformed.
    """
    try:
        document = read_document(run_folder(directory, run) / _EXIT)
    except FileNotFoundError:
        return None
    return ProgramExit(document.whole("exit_code"), document.text("cause"))
