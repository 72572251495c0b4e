"""An agent's state of one proc, from the order to the end."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from monarch_hpc.agent.output.proc_output import ProcOutput
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.start import ProcStart

__all__ = ["Proc", "ProcState"]


class ProcState(enum.Enum):
    """The stages of a proc's start."""

    STARTING = enum.auto()
    READY = enum.auto()


@dataclass(slots=True, eq=False)
class Proc:
    """One proc from its order to its end.

    Attributes:
        record_fd: memory that the proc records into, see `telemetry.recorder`; -1 once closed.
        hello_fd: pipe on which the proc reports ready; -1 once closed.
        pid: 0 until the zygote has reported it.
        stop_requested: whether its stop was requested.
        cause: why the agent killed it without a request.
        own_gpus: the GPUs that are its own, of those that it sees.
        in_step: whether it is a task of a step, see `agent.procs.mpi_step`.
    """

    start: ProcStart
    output: ProcOutput
    hello_fd: int
    record_fd: int
    in_step: bool = False
    own_gpus: Sequence[str] = ()
    deadline: Timer | None = None
    state: ProcState = ProcState.STARTING
    pid: int = 0
    hello: bytes = b""
    stopping: bool = False
    stop_requested: bool = False
    cause: str = ""
    killer: Timer | None = None
