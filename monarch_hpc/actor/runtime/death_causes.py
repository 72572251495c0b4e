"""Finds out why a proc died, for other procs: by asking the program, which gets the cause from the agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_hpc.actor.messages.causes import OnCause, report_unknown
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.payload import call_head, pack_call
from monarch_hpc.actor.messages.pending import Pending, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.death import Death
from monarch_hpc.core.errors import HostLost, MonarchError, ProcDied, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Buffer, Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["REQUESTS_ACTOR", "STOPPED", "CauseLookup", "error_of", "program_of"]

REQUESTS_ACTOR = 2
"""Number of the program's actor that serves its procs, see `mesh.program.requests`. Fixed; all others are random."""

_WAY_S = 1.0
"""Additional time that other procs wait for the program, which itself waits `procs.cause_s` for the agent."""

_KEEP = 1024
"""Number of causes that are cached; for earlier deaths the program is asked again."""

STOPPED = "the proc was stopped"
"""The reason with which a stopped proc closes its channels."""


def error_of(where: str, death: Death) -> ProcDied:
    """Return what callers of the callee at *where* get when its proc has died."""
    return (HostLost if death.host_lost else ProcDied)(where, death)


class CauseLookup:
    """Asks the program for the cause, once for each lost proc.

    Args:
        call: sends one call; see `Runtime.call`.
        wait_s: config key `procs.cause_s`.
    """

    def __init__(
        self,
        connections: Connections,
        call: Callable[[ProcRef, int, bytes, Sequence[Buffer], Pending], int],
        wait_s: float,
    ) -> None:
        self._connections = connections
        self._call = call
        self._wait_s = wait_s
        self._known: Recent[int, Death] = Recent(_KEEP)
        self._waiting: dict[int, list[tuple[str, TransportError, OnCause]]] = {}

    def explain(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        """See `Causes.explain`."""
        self._connections.engine.call_soon(lambda: self._ask(incarnation, where, error, on_cause))

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: OnCause) -> None:
        """See `Causes.report_death`."""
        on_cause(ProcDied(where, cause))

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """See `Causes.was_stopped`."""
        known = self._known.get(incarnation)
        return STOPPED in cause or (known is not None and known.expected)

    def _ask(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        known = self._known.get(incarnation)
        if known is not None:
            on_cause(error_of(where, known))
            return
        program = program_of(self._connections.node)
        if program is None or program.incarnation == incarnation:
            report_unknown(where, error, on_cause)
            return
        waiting = self._waiting.setdefault(incarnation, [])
        waiting.append((where, error, on_cause))
        if len(waiting) > 1:
            return
        self._connections.engine.call_later(self._wait_s + _WAY_S, lambda: self._close(incarnation))
        body, buffers = pack_call(call_head("why", Region(Extent((), ()), program.rank, ())), (incarnation,), {})
        asked = Slot(program.incarnation, "the program", lambda answer: self._on_answer(incarnation, answer))
        self._call(program, REQUESTS_ACTOR, body, buffers, asked)

    def _on_answer(self, incarnation: int, answer: Frame | MonarchError) -> None:
        if isinstance(answer, Frame) and answer.kind is Kind.RESULT:
            reported = loads(answer.body, answer.buffers)
            if isinstance(reported, Death):
                self._known[incarnation] = reported
        self._close(incarnation)

    def _close(self, incarnation: int) -> None:
        known = self._known.get(incarnation)
        if known is not None:
            self._connections.node.bar(incarnation, known.cause)
        for where, error, on_cause in self._waiting.pop(incarnation, ()):
            if known is None:
                report_unknown(where, error, on_cause)
            else:
                on_cause(error_of(where, known))


def program_of(node: Node) -> ProcRef | None:
    """The program that this proc belongs to; None without a connection to it."""
    for channel in list(node.channels.values()):
        peer = channel.peer
        if peer.role is Role.CONTROLLER and channel.error is None:
            return ProcRef(0, 0, peer.host, -1, 0, peer.incarnation, ())
    return None
