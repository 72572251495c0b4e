"""What the procs of a host have recorded, also of those that died, and what the agent records of them itself."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from monarch_hpc.agent.procs.proc import Proc, ProcState
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.observer import is_stopped
from monarch_hpc.telemetry.reading import memory_of, read_scene, report_scene
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.wire.calls import ProcCalls

__all__ = ["HostRecords"]


@dataclass(frozen=True, slots=True)
class _EndedProc:
    proc: Proc
    cause: str


class HostRecords:
    """The records of a host. All methods are for the driver of the engine.

    Args:
        keep_dead: how many of the procs that died unasked are kept, the latest ones.
    """

    def __init__(self, keep_dead: int) -> None:
        self._recorder = Recorder()
        self._graves: deque[_EndedProc] = deque()
        self._keep_dead = keep_dead

    def starts(self, proc: Proc) -> None:
        """It was ordered."""
        self._change(proc, RecordKind.PROC_STARTING)

    def ready(self, proc: Proc, incarnation: int) -> None:
        """It has said hello."""
        peer = self._recorder.names.proc(incarnation, proc.start.host_name)
        self._change(proc, RecordKind.PROC_READY, peer=peer)

    def ended(self, proc: Proc, cause: str) -> None:
        """It is gone; what it has recorded is kept for a while if nobody asked for its end."""
        self._change(proc, RecordKind.PROC_ENDED, name=self._recorder.names.text(cause))
        if proc.record_fd < 0:
            return
        if proc.asked or not self._keep_dead:
            _close(proc)
            return
        self._graves.append(_EndedProc(proc, cause))
        if len(self._graves) > self._keep_dead:
            _close(self._graves.popleft().proc)

    def report(self, procs: Iterable[Proc]) -> list[ProcCalls]:
        """What *procs* do, and what those did that have died."""
        live = sorted(procs, key=lambda proc: (proc.start.run, proc.start.mesh, proc.start.rank))
        return [_look(proc, _state(proc), "") for proc in live] + [
            _look(grave.proc, "ended", grave.cause) for grave in self._graves
        ]

    def close(self) -> None:
        """Forget the dead."""
        while self._graves:
            _close(self._graves.popleft().proc)

    def _change(self, proc: Proc, kind: RecordKind, *, name: int = 0, peer: int = 0) -> None:
        self._recorder.change(kind, name=name, peer=peer, msg=proc.start.mesh, value=proc.start.rank)


def _look(proc: Proc, state: str, cause: str) -> ProcCalls:
    start = proc.start
    scene = read_scene(memory_of(proc.record_fd))
    return report_scene(
        scene,
        run=start.run,
        mesh=start.mesh,
        rank=start.rank,
        host=start.host_name,
        pid=proc.pid,
        state=state,
        cause=cause,
    )


def _state(proc: Proc) -> str:
    if proc.pid and is_stopped(proc.pid):
        return "stopped"
    if proc.stopping:
        return "stopping"
    return "ready" if proc.state is ProcState.READY else "starting"


def _close(proc: Proc) -> None:
    os.close(proc.record_fd)
    proc.record_fd = -1
