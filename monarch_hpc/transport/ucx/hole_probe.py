"""Whether shared memory still carries messages to this process, after one that wrote there has died.

All processes of a host write into one queue of each receiver (UCX's mm transports). One that is killed between taking a
place in it and filling that place leaves a hole, at which UCX waits for ever: what others send later is never read. One
of 170 kills amid floods of messages does that. The sockets are as they were, and calls would wait for ever.

So a process that loses a peer asks the others to say something on the lane, and then on the socket. Where that comes on
sockets, and nothing comes on any lane, shared memory is given up: its lanes end with an error, and new channels use
another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["STUCK", "Probe", "ProbedLane"]

_GATHER_S = 0.1
"""Deaths of the same moment are one reason to ask."""

_PATIENCE_S = 2.0
"""After an answer on a socket: what was said on the lane before it takes microseconds, or until we find the time."""

STUCK = "shared memory of this process carries nothing more: one that wrote there was killed in the middle of it"

_log = Logger(__name__)


class ProbedLane(Protocol):
    """A lane through shared memory.

    Attributes:
        heard_s: when something last came on it, on the engine's clock.
    """

    heard_s: float

    def ask(self, asked_us: int) -> None:
        """Have the peer speak, and say *word* on its socket."""
        ...


class Probe:
    """That of a process; on the driver.

    Args:
        lanes: those through shared memory that there are now.
        stuck: called once, when nothing arrives any more.
    """

    def __init__(self, engine: Engine, lanes: Callable[[], Iterable[ProbedLane]], stuck: Callable[[], None]) -> None:
        self._engine = engine
        self._lanes = lanes
        self._stuck = stuck
        self._due = False
        self._over = False

    def suspect(self) -> None:
        """A peer has died that may have been writing."""
        if not (self._due or self._over):
            self._due = True
            self._engine.call_later(_GATHER_S, self._ask)

    def _ask(self) -> None:
        self._due = False
        # The word is when it was asked: a late answer says nothing of what was asked after it.
        asked_us = int(self._engine.clock() * 1e6)
        for lane in list(self._lanes()):
            lane.ask(asked_us)

    def answered(self, asked_us: int, lane: ProbedLane) -> None:
        """A peer says on its socket that it has spoken on *lane*."""
        self._engine.call_later(_PATIENCE_S, partial(self._judge, asked_us * 1e-6, lane))

    def _judge(self, asked_s: float, answered: ProbedLane) -> None:
        lanes = list(self._lanes())
        # A lane that has ended meanwhile took along what was said on it.
        if self._over or answered not in lanes or any(lane.heard_s >= asked_s for lane in lanes):
            return
        self._over = True
        _log.warning("%s; its channels begin anew, without it", STUCK)
        self._stuck()
