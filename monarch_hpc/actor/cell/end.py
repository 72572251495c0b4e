"""The end of one actor: why it ends, who waits for that, and what its callers are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from monarch_hpc.actor.cell.cancellation import Cancellations, Mail
from monarch_hpc.actor.cell.process import CellProcess
from monarch_hpc.actor.cell.replies import STOPPED, ActorReplies, death_of
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import ActorDied
from monarch_hpc.core.text.description import trace_of
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.frames import Frame

__all__ = ["CLEANUP_S", "CellEnd", "Failure"]

CLEANUP_S = 3.0
"""Time that cancelled endpoints and `__cleanup__` may take; less than `procs.stop_s`, after which procs are killed."""

Failure = tuple[str, BaseException]
"""Cause of an actor's failure: in words, and the exception."""


class CellEnd:
    """The end of one actor, which comes once; for any thread.

    Args:
        link: the link to the process that spawned it.
        spawn: the frame that spawned it.
        where: the actor in words.
        mailbox: what is left in it is refused.
        replies: so are the calls not yet answered through their response ports.

    Attributes:
        cause: why the actor has ended; empty before.
        asked: that the actor shall end, and why, in words; empty before.
        failure: the failure that ends the actor.
    """

    def __init__(
        self,
        process: CellProcess,
        link: MessageLink,
        spawn: Frame,
        where: str,
        mailbox: deque[Mail],
        cancellations: Cancellations,
        replies: ActorReplies,
    ) -> None:
        self.cause = ""
        self.asked = ""
        self.failure: Failure | None = None
        self._process = process
        self._link = link
        self._actor = spawn.dest
        self._owner = spawn.reply
        self._where = where
        self._mailbox = mailbox
        self._cancellations = cancellations
        self._replies = replies
        self._open = [True]  # pop() is atomic
        self._stops: deque[tuple[MessageLink, int]] = deque()  # answered when all that the actor owned is gone
        self._owned_gone = False
        self._limit: Timer | None = None

    def ask(self, reason: str) -> bool:
        """Ask the actor to end; return whether it is the first time. The first reason counts."""
        first = not self.asked
        if first:
            self.asked = f"{STOPPED}: {reason}" if reason else STOPPED
        return first

    def limit(self, time_s: float, late: Callable[[], None]) -> None:
        """Call *late* on the driver unless the end is known within *time_s* seconds."""
        self._limit = self._process.engine.call_later(time_s, late)
        if self.cause:
            self._limit.cancel()

    def report(self, name: str, rank: int, failure: Failure) -> None:
        """Report the actor's failure to its owner.

        Args:
            name, rank: of the actor in its mesh.
        """
        cause, error = failure
        told = MeshFailure(name, rank, self._where, cause, trace_of(error))
        self._process.replier.report(self._link, self._owner, self._actor, told)

    def declare(self, cause: str) -> bool:
        """Make the end known: refuse all messages, stop what the actor owns. False if that was done before."""
        try:
            self._open.pop()
        except IndexError:
            return False
        self.cause = cause
        if self._limit is not None:
            self._limit.cancel()  # it holds the whole actor
        self._process.forget(self._actor, self._where, cause)
        try:
            self._process.stop_owned(self._actor, self._on_owned_gone)
        finally:
            self.refuse_all()
            died = ActorDied(self._where, death_of(cause))
            for call in list(self._replies.unanswered):
                call.refuse(died, raised=False)
            self._process.engine.wake_waiters()
        return True

    def answer_stop(self, channel: MessageLink, slot: int) -> None:
        """Answer a request to stop once everything that the actor owned is gone."""
        self._stops.append((channel, slot))
        if self._owned_gone:
            self._answer_stops()

    def _on_owned_gone(self) -> None:
        self._owned_gone = True
        self._answer_stops()

    def _answer_stops(self) -> None:
        while True:
            try:
                channel, slot = self._stops.popleft()
            except IndexError:
                return
            if slot:
                self._process.replier.reply(channel, slot, None)

    def refuse_all(self) -> None:
        """Refuse all messages in the mailbox of the ended actor."""
        while True:
            try:
                slot, channel, _, cost, _ = self._mailbox.popleft()
            except IndexError:
                return
            if cost <= 0:
                self.answer_stop(channel, slot)
                continue
            channel.consumed(self._actor, cost)
            if slot:
                self._cancellations.over(channel, slot)
                died = ActorDied(self._where, death_of(self.cause))
                self._process.replier.reply_failure(channel, slot, self._where, died)
