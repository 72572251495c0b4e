"""Detects that shared memory no longer delivers messages to this process, after a process that wrote there has died.

All processes of a host write into one queue per receiver (UCX's mm transports). One that is killed between reserving a
slot and filling it leaves a hole, at which UCX waits for ever: messages that others send later are never read. One of
170 kills amid floods of messages does that. The sockets are not affected, and calls would wait for ever.

So a process that loses a peer asks the others to send on the lane, and then on the socket. If answers arrive on
sockets and nothing arrives on any lane, shared memory is given up: its lanes end with an error, and new channels use
another fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["STUCK", "Probe", "ProbedLane"]

_GATHER_S = 0.1
"""Deaths within this time share one probe."""

_PATIENCE_S = 2.0
"""Wait after an answer on a socket: the lane message before it takes microseconds, plus our own scheduling delay."""

STUCK = "shared memory of this process no longer delivers: another process was killed while writing to it"

_log = Logger(__name__)


class ProbedLane(Protocol):
    """A lane through shared memory.

    Attributes:
        received_s: when a message last arrived on it, on the engine's clock.
    """

    received_s: float

    def ask(self, asked_us: int) -> None:
        """Ask the peer to send on the lane, then echo *asked_us* on the socket."""
        ...


class Probe:
    """The probe of a process; all methods are for the driver.

    Args:
        lanes: returns the current lanes through shared memory.
        stuck: called once, when shared memory no longer delivers.
    """

    def __init__(self, engine: Engine, lanes: Callable[[], Iterable[ProbedLane]], stuck: Callable[[], None]) -> None:
        self._engine = engine
        self._lanes = lanes
        self._stuck = stuck
        self._due = False
        self._over = False

    def suspect(self) -> None:
        """Schedule a probe: a peer that may have been writing has died."""
        if not (self._due or self._over):
            self._due = True
            self._engine.call_later(_GATHER_S, self._ask)

    def _ask(self) -> None:
        self._due = False
        # The probe's number is its time: a late answer must not vouch for later probes.
        asked_us = int(self._engine.clock() * 1e6)
        for lane in list(self._lanes()):
            lane.ask(asked_us)

    def answered(self, asked_us: int, lane: ProbedLane) -> None:
        """Handle an answer on a socket: its peer has sent on *lane* before."""
        self._engine.call_later(_PATIENCE_S, partial(self._judge, asked_us * 1e-6, lane))

    def _judge(self, asked_s: float, answered: ProbedLane) -> None:
        lanes = list(self._lanes())
        # If the answering lane has ended meanwhile, its message was dropped with it.
        if self._over or answered not in lanes or any(lane.received_s >= asked_s for lane in lanes):
            return
        self._over = True
        _log.warning("%s; its channels reconnect without it", STUCK)
        self._stuck()
