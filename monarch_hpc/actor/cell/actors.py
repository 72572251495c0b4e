"""The actors and ports of a process: delivers messages to them, and answers for those that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from monarch_hpc.actor.cell.cancellation import limit_of
from monarch_hpc.actor.cell.cell import Cell
from monarch_hpc.actor.cell.end import CLEANUP_S
from monarch_hpc.actor.cell.replies import Replier, death_of
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import ActorDied, CallTimeout, DeliveryUnknown
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Actors"]

_CALL = Kind.CALL  # on the path of every frame: an enum member costs ten times a global

_KEEP_ENDED = 1024
"""Number of ended actors whose cause is kept, about a kilobyte each. A call to an actor that ended before these fails
with "no such actor"; messages that were queued at its end have been answered."""

_EARLY_S = 5.0
"""Longest wait for an actor whose messages have come before it: whoever got a reference may be nearer than its spawner.
Calls to actors that ended long ago, or were never here, fail so much later."""

_MAX_CAUSE_CHARS = 4096
"""Upper bound on a kept cause with its traceback; the last lines are the most useful."""


class Actors:
    """Actors and ports by number.

    Args:
        start: starts the actor that a SPAWN frame describes.
        lines: returns all links of the process, to drop what they keep for an actor that has ended.

    Attributes:
        cells: actors by number.
        ports: receivers of messages to ports by number of the port; called on any thread.
    """

    def __init__(
        self,
        engine: Engine,
        replier: Replier,
        start: Callable[[MessageLink, Frame], Cell],
        lines: Callable[[], Iterable[MessageLink]],
    ) -> None:
        self.cells: dict[int, Cell] = {}
        self.ports: dict[int, Callable[[MessageLink, Frame], None]] = {}
        self._engine = engine
        self._replier = replier
        self._start = start
        self._lines = lines
        self._ended: Recent[int, tuple[str, str]] = Recent(_KEEP_ENDED)  # actors that have ended -> where, cause
        self._closed: Recent[int, None] = Recent(_KEEP_ENDED)  # ports
        self._early: dict[int, list[tuple[MessageLink, Frame]]] = {}

    def dispatch(self, channel: MessageLink, frame: Frame) -> None:
        """Deliver a message to its actor or port."""
        kind, cell = frame.kind, self.cells.get(frame.dest)
        if kind is _CALL:
            port = self.ports.get(frame.dest)
            if cell is not None:
                cell.put(channel, frame)
            elif port is not None:
                port(channel, frame)
            elif frame.dest in self._ended or frame.dest in self._closed:
                self._refuse(channel, frame)
            else:
                self._keep(channel, frame)
        elif kind is Kind.SPAWN:
            cell = self._start(channel, frame)
            if not cell.ended:  # it could not get a thread
                self.cells[frame.dest] = cell
            for early in self._early.pop(frame.dest, ()):
                self.dispatch(*early)
        elif kind is Kind.STOP:
            if cell is not None:
                cell.stop(channel, frame)
            elif frame.reply:
                self._replier.reply(channel, frame.reply, None)
        elif kind is Kind.CANCEL:
            if cell is not None:
                cell.cancel(channel, frame.reply)
            else:
                self._withdraw(channel, frame)

    def close_port(self, number: int) -> None:
        """Forget a port: messages to it are dropped from now on."""
        if self.ports.pop(number, None) is not None:
            self._closed[number] = None

    def _keep(self, channel: MessageLink, frame: Frame) -> None:
        """Keep a message to an actor that may be on its way here."""
        kept = self._early.get(frame.dest)
        if kept is None:
            kept = self._early[frame.dest] = []
            self._engine.call_later(_EARLY_S, partial(self._give_up, frame.dest, kept))
        kept.append((channel, frame))

    def _withdraw(self, channel: MessageLink, frame: Frame) -> None:
        """Answer a cancelled call to an actor that may be on its way here: it does not begin."""
        kept = self._early.get(frame.dest, [])
        for early in list(kept):
            if early[0] is channel and early[1].reply == frame.reply:
                kept.remove(early)
                channel.consumed(frame.dest, cost_of(early[1]))
                where = f"actor {frame.dest:x} on {self._replier.host}"
                self._replier.reply_failure(channel, frame.reply, where, CallTimeout(where, (), limit_of(early[1])))

    def _give_up(self, actor: int, kept: list[tuple[MessageLink, Frame]]) -> None:
        if self._early.get(actor) is kept:
            del self._early[actor]
            for early in kept:
                self._refuse(*early)

    def _refuse(self, channel: MessageLink, frame: Frame) -> None:
        """Answer a call to an actor that has ended or is unknown here."""
        channel.consumed(frame.dest, cost_of(frame))
        channel.retire(frame.dest)
        ended = self._ended.get(frame.dest)
        if not frame.reply:
            return
        if ended is not None:
            self._replier.reply_failure(channel, frame.reply, ended[0], ActorDied(ended[0], death_of(ended[1])))
            return
        gone = DeliveryUnknown(
            f"actor {frame.dest:x}", "this proc has no such actor: it ended long ago, or was never here"
        )
        self._replier.reply_failure(channel, frame.reply, self._replier.host, gone)

    def forget(self, actor: int, where: str, cause: str) -> None:
        """Drop an actor that has ended, except for the cause that late callers get; on its thread."""
        if len(cause) > _MAX_CAUSE_CHARS:
            first, _, rest = cause.partition("\n")
            cause = f"{first[:_MAX_CAUSE_CHARS]}\n...\n{rest[-_MAX_CAUSE_CHARS:]}"
        self._ended[actor] = where, cause
        self.cells.pop(actor, None)
        for line in self._lines():
            line.retire(actor)

    def end_all(self) -> None:
        """End all actors at once; return after their clean-up, or after `CLEANUP_S`."""
        cells = list(self.cells.values())
        for cell in cells:
            cell.end()
        if cells:
            self._engine.wait(lambda: all(cell.ended or cell.abandonable for cell in cells), CLEANUP_S)
