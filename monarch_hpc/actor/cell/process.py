"""The parts of a process that its actors use."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.execution.threads import ActorThreads
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["CellProcess"]


@dataclass(frozen=True, slots=True)
class CellProcess:
    """The parts of a process that each `Cell` is given.

    Attributes:
        stop_s: time that a stopped actor has for its queued messages, see `procs.stop_s`.
        stop_owned: stops everything that an actor has spawned, given by number; calls back when that is gone.
        forget: drops an actor that has ended; takes its number, the actor in words, and the cause for late callers.
    """

    engine: Engine
    recorder: Recorder
    threads: ActorThreads
    replier: Replier
    stop_s: float
    stop_owned: Callable[[int, Callable[[], None]], None]
    forget: Callable[[int, str, str], None]
