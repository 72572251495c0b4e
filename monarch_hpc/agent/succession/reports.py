"""An agent's reports about the procs of its host, kept to be told again to the head of a later term."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.recent import Recent
from monarch_hpc.wire.control.kept import ProcsKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady, ProcsStopped, SpawnFailed
from monarch_hpc.wire.control.runs import RunClosed
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["Reports"]

_KEEP = 4096
"""Ends that are reported again; a program ignores those that were already reported to it."""


class Reports:
    """The procs that are ready, and the last ends, of runs that are open."""

    def __init__(self) -> None:
        self._ready: dict[ProcKey, ProcReady] = {}
        self._ends: Recent[tuple[str, int, int], SpawnFailed | ProcEnded | ProcsStopped] = Recent(_KEEP)
        self._closed: Recent[str, bool] = Recent(_KEEP)
        self._kept: dict[tuple[str, int], ProcsKept] = {}

    def note(self, message: Message) -> None:
        """Keep a report; other messages are ignored."""
        match message:
            case ProcReady():
                self._ready[message.proc] = message
                self._ends.forget((message.run, message.mesh, message.proc.rank))  # of the life before
            case ProcEnded() | SpawnFailed():
                self._ready.pop(message.proc, None)
                self._ends[message.run, message.mesh, message.proc.rank] = message
            case ProcsKept():
                self._kept[message.run, message.mesh] = message
            case ProcsStopped():
                self._kept.pop((message.run, message.mesh), None)
                self._ends[message.run, message.mesh, -1] = message
            case RunClosed():
                self._closed[message.run] = True

    def pass_up(self, message: Message, send: Callable[[Message], None]) -> None:
        """Send a report to the head; before one that procs are kept, those that they are ready, again."""
        self.note(message)
        if isinstance(message, ProcsKept):
            for ready in list(self._ready.values()):
                if (ready.run, ready.mesh) == (message.run, message.mesh):
                    send(ready)
        send(message)

    def tell_again(self, send: Callable[[Message], None]) -> None:
        """Send all that a new head must know, in the order in which it was reported first."""
        for kept in self._kept.values():  # first: the procs of these belong to no program
            send(kept)
        for ready in list(self._ready.values()):
            send(ready)
        for key in self._ends:
            end = self._ends.get(key)
            if end is not None and (end.run not in self._closed or (end.run, end.mesh) in self._kept):
                send(end)
