"""The parts of a process that its actors use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monarch_hpc.actor.cell.event_loop import EventLoop
from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["CellProcess"]


@dataclass(frozen=True, slots=True)
class CellProcess:
    """The parts of a process that each `Cell` is given.

    Attributes:
        loop: runs the coroutines of all actors.
        drives: whether idle actors drive the engine; False in a program, whose main thread drives it.
        stop_owned: stops everything that an actor has spawned, given by number.
        forget: drops an actor that has ended; takes its number, the actor in words, and the cause for late callers.
    """

    engine: Engine
    recorder: Recorder
    loop: EventLoop
    replier: Replier
    drives: bool
    stop_owned: Callable[[int], None]
    forget: Callable[[int, str, str], None]
