"""Records of a host's procs, including dead ones, and the agent's own records of their life cycle."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from monarch_hpc.agent.procs.proc import Proc, ProcState
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.observer import is_stopped
from monarch_hpc.telemetry.reading import memory_of, read_scene
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.wire.control.calls import ProcCalls

__all__ = ["HostRecords"]


@dataclass(frozen=True, slots=True)
class _EndedProc:
    proc: Proc
    cause: str


class HostRecords:
    """The records of a host. All methods must be called on the engine's driver.

    Args:
        keep_dead: number of procs that died without a request whose records are kept, the latest ones.
    """

    def __init__(self, keep_dead: int) -> None:
        self._recorder = Recorder()
        self._ended_procs: deque[_EndedProc] = deque()
        self._keep_dead = keep_dead

    def starts(self, proc: Proc) -> None:
        """Record the order of a proc."""
        self._change(proc, RecordKind.PROC_STARTING)

    def ready(self, proc: Proc, incarnation: int) -> None:
        """Record that a proc is ready."""
        peer = self._recorder.names.proc(incarnation, proc.start.host_name)
        self._change(proc, RecordKind.PROC_READY, peer=peer)

    def ended(self, proc: Proc, cause: str) -> None:
        """Record the end of a proc; unless its stop was requested, its own records are kept for a while."""
        self._change(proc, RecordKind.PROC_ENDED, name=self._recorder.names.text(cause))
        if proc.record_fd < 0:
            return
        if proc.stop_requested or not self._keep_dead:
            _close(proc)
            return
        self._ended_procs.append(_EndedProc(proc, cause))
        if len(self._ended_procs) > self._keep_dead:
            _close(self._ended_procs.popleft().proc)

    def report(self, procs: Iterable[Proc]) -> list[ProcCalls]:
        """The calls of *procs*, and of the dead procs whose records are kept."""
        live = sorted(procs, key=lambda proc: (proc.start.run, proc.start.mesh, proc.start.rank))
        return [_proc_calls(proc, _state(proc), "") for proc in live] + [
            _proc_calls(ended.proc, "ended", ended.cause) for ended in self._ended_procs
        ]

    def close(self) -> None:
        """Free the records of dead procs."""
        while self._ended_procs:
            _close(self._ended_procs.popleft().proc)

    def _change(self, proc: Proc, kind: RecordKind, *, name: int = 0, peer: int = 0) -> None:
        self._recorder.change(kind, name=name, peer=peer, msg=proc.start.mesh, value=proc.start.rank)


def _proc_calls(proc: Proc, state: str, cause: str) -> ProcCalls:
    start = proc.start
    scene = read_scene(memory_of(proc.record_fd))
    return ProcCalls(start.run, start.mesh, start.rank, start.host_name, proc.pid, state, cause, scene)


def _state(proc: Proc) -> str:
    if proc.pid and is_stopped(proc.pid):
        return "stopped"
    if proc.stopping:
        return "stopping"
    return "ready" if proc.state is ProcState.READY else "starting"


def _close(proc: Proc) -> None:
    os.close(proc.record_fd)
    proc.record_fd = -1
