"""Messages that carry the output of procs, and switch its streaming."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcReport

__all__ = ["FlushLogs", "LogsSet", "Output", "SetLogs"]


@dataclass(frozen=True, slots=True)
class Output(ProcReport):
    """Agent to controller: output lines of a proc. *stream* is ``out`` or ``err``; *dropped* counts omitted lines."""

    stream: str
    lines: list[str]
    dropped: int


@dataclass(frozen=True, slots=True)
class SetLogs(Message):
    """Controller to head to agents: start or stop sending the procs' output to the program.

    Args:
        hosts: ranks of the hosts that have procs of the mesh.
        ranks: ranks of the procs in their mesh; empty for all.
        stream: whether lines are sent; the files get them in any case.
        number: number of this request, repeated in the answers.
    """

    run: str
    mesh: int
    hosts: list[int]
    ranks: list[int]
    stream: bool
    number: int


@dataclass(frozen=True, slots=True)
class FlushLogs(Message):
    """Controller to head to agents: send what the procs of a mesh have written so far, then answer with `LogsSet`.

    Args:
        hosts: ranks of the hosts that have procs of the mesh.
        number: number of this request, repeated in the answers.
    """

    run: str
    mesh: int
    hosts: list[int]
    number: int


@dataclass(frozen=True, slots=True)
class LogsSet(Message):
    """Agent to controller: done on this host."""

    run: str
    mesh: int
    host: int
    number: int
