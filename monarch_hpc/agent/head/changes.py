"""The head's events as changes that people look up: what has become of hosts, runs and procs, when, and why."""

from __future__ import annotations

import time
from collections.abc import Callable

from monarch_hpc.agent.head.events import (
    Event,
    HostDrained,
    HostFreed,
    HostJoined,
    HostLifeChanged,
    HostLossExplained,
    HostReturnChanged,
    ProcGone,
    ProcStopped,
    RunAttached,
    RunStopping,
    ShutdownBegan,
)
from monarch_hpc.allocation.changes import HeadChange, render_change
from monarch_hpc.core.death import DeathKind
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["HeadChanges"]

_TITLE_CHARS = 200


class HeadChanges:
    """Writes down the changes that events are. It does no I/O.

    Args:
        append: appends bytes to the file.
        now_s: the time of day, in seconds since the epoch.
    """

    def __init__(self, append: Callable[[bytes], None], now_s: Callable[[], float] = time.time) -> None:
        self._append = append
        self._now_s = now_s
        self._names: dict[int, str] = {}  # of hosts by rank, also of those that have left
        self._owners: dict[str, int] = {}  # of runs, which an owner may open again with what it knows by then

    def add(self, event: Event) -> None:
        """Write down an event, if people would look it up."""
        for what, subject, kind, cause in self._read(event):
            self._append(render_change(HeadChange(self._now_s(), what, subject, kind, cause)))

    def _read(self, event: Event) -> list[tuple[str, str, str, str]]:
        match event:
            case HostJoined():
                what = "returned" if event.entry.rank in self._names else "joined"
                self._names[event.entry.rank] = event.entry.name
                return [(what, event.entry.name, "", event.problem)]
            case HostLifeChanged() if event.life is not Liveness.DEAD:  # its loss follows
                back = event.life is Liveness.ALIVE
                cause = "it answers again" if back else "it does not answer"
                return [("back" if back else "suspect", self._host(event.rank), "", cause)]
            case HostLossExplained():
                return [("lost", event.name, event.kind.value, event.cause)]
            case HostReturnChanged() if event.cause:
                what = event.what or "its agent is not started again"
                return [("agent", self._host(event.rank), "", f"{what}: {event.cause}")]
            case HostDrained():
                return [("drained" if event.reason else "undrained", self._host(event.rank), "", event.reason)]
            case HostFreed():
                return [("freed", self._host(event.rank), "", "")]
            case RunAttached() if event.opened.owner and event.peer != self._owners.get(event.opened.run):
                self._owners[event.opened.run] = event.peer
                what = "run taken over" if event.opened.takes else "run opened"
                return [(what, event.opened.run, "", event.opened.title[:_TITLE_CHARS])]
            case RunStopping():
                self._owners.pop(event.run, None)
                return [("run ends", event.run, "", "")]
            case ProcStopped():
                return [("proc stopped" if event.stopped else "proc goes on", self._proc(event.proc), "", "")]
            case ProcGone() if not event.expected:
                return [("proc died", self._proc(event.proc), event.kind.value, event.cause)]
            case ShutdownBegan():
                cause = event.cause or ("its release was requested" if event.kind is DeathKind.STOPPED else "")
                return [("ends", "", event.kind.value, cause)]
            case _:
                return []

    def _host(self, rank: int) -> str:
        return self._names.get(rank, f"host {rank}")

    def _proc(self, proc: ProcKey) -> str:
        return f"rank {proc.rank} of mesh {proc.mesh} of run {proc.run} on {self._host(proc.host)}"
