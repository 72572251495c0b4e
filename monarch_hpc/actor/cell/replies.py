"""Sends the answers to calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_hpc.actor.cell.exit import exit_process
from monarch_hpc.actor.cell.response_port import Answered
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import pack_result
from monarch_hpc.actor.messages.sent_failures import pack_fault, send_failure
from monarch_hpc.actor.running_loop import is_cancellation
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ActorDied, ForkedError, FrameError, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.description import summary_of, trace_of
from monarch_hpc.telemetry.names import Names
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Buffer, Frame, Kind, size_of

__all__ = ["STOPPED", "ActorReplies", "Ending", "Replier", "death_of", "is_deadly"]

STOPPED = "it was stopped"
"""Begins the cause of an actor that was asked to end."""

_log = Logger(__name__)


def death_of(cause: str) -> Death:
    """Return the death of an actor whose process lives: it was asked to end, or its own code raised."""
    return Death(DeathKind.STOPPED if cause.startswith(STOPPED) else DeathKind.RAISED, cause)


class Ending(Protocol):
    """Records the end of a call, before the caller can see it."""

    def end(self, num_bytes: int, /) -> None:
        """Record an answer of *num_bytes* bytes; 0 if the call wants none."""
        ...

    def fail(self, error: int, /) -> None:
        """Record an exception, by the number of its name. No-op for a call that has ended."""
        ...


class AnswerKeeper(Protocol):
    """Keeps answers, see `actor.kept.keeper`."""

    def keep(self, channel: MessageLink, frame: Frame, /) -> MessageLink:
        """Keep *frame*, and return the link on which to send it."""
        ...


class Replier:
    """Answers the calls that this process handles; for any thread.

    Args:
        host: name of this process's host.
        names: for the records of calls that raise.

    Attributes:
        keeper: keeps what is sent to programs until they have read it; None if that is not wanted.
        leaves_deaths: whether the process ends, because a signal told it to. Only its agent knows why, so that callers
            get the cause from there and not from an actor, which could only say that it was stopped.
        drops_orphans: whether calls whose callers are gone are dropped before they begin: the procs are kept, and
            nobody takes over what a dead program has asked of them.
    """

    __slots__ = ("_engine", "drops_orphans", "host", "keeper", "leaves_deaths", "names")

    def __init__(self, engine: Engine, host: str, names: Names) -> None:
        self.host = host
        self.names = names
        self.keeper: AnswerKeeper | None = None
        self.leaves_deaths = False
        self.drops_orphans = False
        self._engine = engine

    def report(self, channel: MessageLink, owner: int, actor: int, failure: MeshFailure) -> None:
        """Report the failure of *actor* to the process that spawned it."""
        body, buffers = pack_fault(actor, failure)
        self.answer(channel, Frame(Kind.FAILURE, 0, owner, body, buffers))

    def reply(
        self,
        channel: MessageLink,
        slot: int,
        value: object,
        where: str = "",
        method: str = "",
        ending: Ending | None = None,
    ) -> None:
        """Answer a call.

        Args:
            where, method: the actor in words and its endpoint, for the error if the result cannot be sent.
            ending: records the end of the call; None if it is not recorded.
        """
        try:
            body, buffers = pack_result(value)
            if ending is not None:
                ending.end(size_of(body, buffers) if buffers else len(body))
            self.answer(channel, Frame(Kind.RESULT, slot, 0, body, buffers))
        except Exception as error:  # noqa: BLE001 not picklable, too large, or memory is short: the caller gets that error
            self.reply_failure(channel, slot, f"{where or self.host}, endpoint {method}", error, ending, raised=True)

    def reply_failure(
        self,
        channel: MessageLink,
        slot: int,
        where: str,
        error: BaseException,
        ending: Ending | None = None,
        *,
        raised: bool = False,
    ) -> None:
        """Answer a call with an exception, or with as much of it as can be sent; otherwise like `reply`.

        Args:
            raised: whether user code raised it, see `actor.messages.payload.send_failure`.
        """
        if self._engine.forked_from:
            print_error(trace_of(error))
            exit_process(SystemExit(1))
        if self.leaves_deaths and isinstance(error, ActorDied):
            return

        def send(body: Buffer, buffers: Sequence[Buffer]) -> None:
            if ending is not None:
                with contextlib.suppress(Exception):  # the answer is not lost with its record
                    ending.fail(self.names.error(error))
            self.answer(channel, Frame(Kind.FAILURE, slot, 0, body, buffers))

        send_failure(where, error, send, raised=raised)

    def answer(self, channel: MessageLink, frame: Frame) -> None:
        """Send *frame*; drop it if the caller's channel is gone.

        Raises:
            FrameError: the frame is over a limit; the caller still waits.
        """
        if self._engine.forked_from:
            print_error(f"{ForkedError(self._engine.forked_from)}; an endpoint must not continue in a forked child")
            exit_process(SystemExit(1))
        if self.keeper is not None:
            channel = self.keeper.keep(channel, frame)
        try:
            channel.send(frame)
        except FrameError:
            raise
        except TransportError as error:
            # The caller's side of the channel reports the loss.
            _log.info("could not deliver an answer: %s", error)


class ActorReplies:
    """Answers the calls of one actor that end apart from its thread, see `actor.cell.invocation`.

    Args:
        where: the actor in words.
        on_failure: called with a description and the exception when a broadcast fails, which has no caller to answer,
            and when an endpoint raises what ends the actor.

    Attributes:
        cause: why the actor ends, and with it its coroutines; empty while it lives.
        unanswered: calls that a response port may still answer; for any thread.
    """

    def __init__(
        self, engine: Engine, replier: Replier, where: str, on_failure: Callable[[str, BaseException], None]
    ) -> None:
        self.engine = engine
        self.where = where
        self.cause = ""
        self.unanswered: set[Answered] = set()
        self._replier = replier
        self._on_failure = on_failure

    def succeed(self, channel: MessageLink, slot: int, method: str, value: object, ending: Ending) -> None:
        """Answer a call with its result."""
        self._replier.reply(channel, slot, value, self.where, method, ending)

    def fail(
        self,
        channel: MessageLink,
        slot: int,
        method: str,
        error: BaseException,
        ending: Ending,
        *,
        raised: bool = True,
    ) -> None:
        """Answer a call with an exception; the exception of a broadcast makes the actor fail.

        Args:
            raised: whether the endpoint raised it; False for what this process says of the call.
        """
        if slot:
            where = f"{self.where}, endpoint {method}"
            self._replier.reply_failure(channel, slot, where, error, ending, raised=raised)
            return
        ending.fail(self._replier.names.error(error))
        self._on_failure(f"endpoint {method} raised {summary_of(error)}", error)

    def die(self, channel: MessageLink, slot: int, method: str, error: BaseException, ending: Ending) -> None:
        """Answer a call with the death of the actor, which *error* has ended."""
        if issubclass(type(error), SystemExit) and self.engine.forked_from:
            exit_process(error)
        cause = f"endpoint {method} raised {summary_of(error)}"
        ending.fail(self._replier.names.error(error))
        if slot:
            died = ActorDied(self.where, Death(DeathKind.RAISED, f"{cause}\n{trace_of(error)}".rstrip()))
            self._replier.reply_failure(channel, slot, self.where, died)
        self._on_failure(cause, error)


def is_deadly(error: BaseException) -> bool:
    """Whether an actor dies of *error*: SystemExit, KeyboardInterrupt, panics of extensions.

    Code that catches Exception lets these pass, so that what it was doing is left half done.
    """
    return not (issubclass(type(error), Exception) or is_cancellation(error))
