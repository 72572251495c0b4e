"""Finds out why a proc died, for other procs: by asking the program, which gets the cause from the agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_hpc.actor.messages.payload import call_head, pack_call
from monarch_hpc.actor.messages.pending import Pending, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import ActorDied, ActorError, DeliveryUnknown, MonarchError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Buffer, Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["CAUSE_WAIT_S", "REQUESTS_ACTOR", "CauseLookup", "CauseReporter", "OnCause", "program_of"]

REQUESTS_ACTOR = 2
"""Number of the program's actor that serves its procs, see `mesh.program.requests`. Fixed; all others are random."""

CAUSE_WAIT_S = 3.0
"""Time that the calls of a lost proc wait for the cause from its agent; agents send it within milliseconds."""

_WAY_S = 1.0
"""Additional time that other procs wait for the program, which itself waits `CAUSE_WAIT_S` for the agent."""

_KEEP = 1024
"""Number of causes that are cached; for earlier deaths the program is asked again."""

OnCause = Callable[[ActorError], None]


class Asker(Protocol):
    """The process interface that a `CauseLookup` needs."""

    engine: Engine

    @property
    def node(self) -> Node:
        """The node, which holds the channels."""
        ...

    def call(self, proc: ProcRef, actor: int, body: bytes, buffers: Sequence[Buffer], pending: Pending | None) -> int:
        """Send one call."""
        ...

    def report_unknown(self, where: str, error: TransportError, on_cause: OnCause) -> None:
        """Report that the outcome is unknown."""
        ...


class CauseReporter:
    """Builds the error of a call that gets no answer."""

    def report_unknown(self, where: str, error: TransportError, on_cause: Callable[[ActorError], None]) -> None:
        """Report that the outcome of a call is unknown."""
        unknown = DeliveryUnknown(where, str(error))
        unknown.__cause__ = error
        on_cause(unknown)

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: Callable[[ActorError], None]) -> None:
        """Report that the callee is dead; called once that is known."""
        on_cause(ActorDied(where, cause))


class CauseLookup:
    """Asks the program for the cause, once for each lost proc."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._causes: Recent[int, str] = Recent(_KEEP)
        self._expected: Recent[int, bool] = Recent(_KEEP)
        self._waiting: dict[int, list[tuple[str, TransportError, OnCause]]] = {}

    def ask(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        """Ask why the callee at *where* was lost; report `ActorDied` with the cause, or `DeliveryUnknown` without one.

        May be called on any thread; *on_cause* is called on the driver.
        """
        self._asker.engine.call_soon(lambda: self._ask(incarnation, where, error, on_cause))

    def _ask(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        cause = self._causes.get(incarnation)
        if cause is not None:
            on_cause(ActorDied(where, cause))
            return
        program = program_of(self._asker.node)
        if program is None or program.incarnation == incarnation:
            self._asker.report_unknown(where, error, on_cause)
            return
        waiting = self._waiting.setdefault(incarnation, [])
        waiting.append((where, error, on_cause))
        if len(waiting) > 1:
            return
        self._asker.engine.call_later(CAUSE_WAIT_S + _WAY_S, lambda: self._close(incarnation))
        body, buffers = pack_call(call_head("why", Region(Extent((), ()), program.rank, ())), (incarnation,), {})
        asked = Slot(program.incarnation, "the program", lambda answer: self._on_answer(incarnation, answer))
        self._asker.call(program, REQUESTS_ACTOR, body, buffers, asked)

    def was_expected(self, incarnation: int) -> bool:
        """Whether the program has reported the end of the proc as requested."""
        return incarnation in self._expected

    def _on_answer(self, incarnation: int, answer: Frame | MonarchError) -> None:
        if isinstance(answer, Frame) and answer.kind is Kind.RESULT:
            said = loads(answer.body, answer.buffers)
            if isinstance(said, tuple):
                cause, expected = said
                self._causes[incarnation] = cause
                if expected:
                    self._expected[incarnation] = True
        self._close(incarnation)

    def _close(self, incarnation: int) -> None:
        cause = self._causes.get(incarnation)
        if cause is not None:
            self._asker.node.bar(incarnation, cause)
        for where, error, on_cause in self._waiting.pop(incarnation, ()):
            if cause is None:
                self._asker.report_unknown(where, error, on_cause)
            else:
                on_cause(ActorDied(where, cause))


def program_of(node: Node) -> ProcRef | None:
    """The program that this proc belongs to; None without a connection to it."""
    for channel in list(node.channels.values()):
        peer = channel.peer
        if peer.role is Role.CONTROLLER and channel.error is None:
            return ProcRef(0, 0, peer.host, -1, 0, peer.incarnation, ())
    return None
