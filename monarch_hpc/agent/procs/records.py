"""Records of a host's procs, including dead ones, and the agent's own records of their life cycle."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from monarch_hpc.agent.procs.proc import Proc, ProcState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_cpu_s, read_resident_bytes
from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.telemetry.history import HISTORY, latest_first, read_recorder
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.observer import is_stopped
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.views.scene import read_memory_use, read_scene
from monarch_hpc.wire.tables.calls import ProcCalls
from monarch_hpc.wire.tables.history import HistoryRow, RecorderState
from monarch_hpc.wire.tables.memory import ProcMemory
from monarch_hpc.wire.tables.procs import ProcRow

__all__ = ["HostRecords"]

_MAX_RUNNING = 64
"""Calls of a proc that the report of its death names; a program looks for those that were alone."""


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

    def running(self, proc: Proc) -> list[list[str]]:
        """The calls that a proc is handling, or was when it ended: incarnation of the caller, and its number."""
        if proc.record_fd < 0:
            return []
        calls = read_scene(memory_of(proc.record_fd)).running[:_MAX_RUNNING]
        return [[call.caller, str(call.call)] for call in calls]

    def calls(self, procs: Iterable[Proc]) -> Iterator[ProcCalls]:
        """The calls of *procs*, and of the dead procs whose records are kept."""
        for proc, row in self._rows(procs):
            scene, used = read_scene(memory_of(proc.record_fd)), _used(row)
            yield ProcCalls(*row.first_columns, scene, *used)

    def memory(self, procs: Iterable[Proc]) -> Iterator[ProcMemory]:
        """The memory that *procs* lend and move, and that the dead procs did whose records are kept."""
        for proc, row in self._rows(procs):
            use = read_memory_use(memory_of(proc.record_fd))
            yield ProcMemory(*row.first_columns, use)

    def history(self, procs: Iterable[Proc], table: str, clock: ClockComparison) -> Iterator[HistoryRow]:
        """The rows of a table of records, of *procs* and of the dead procs whose records are kept."""
        read, correction = HISTORY[table], clock.correction()
        return latest_first(read(memory_of(proc.record_fd), row, correction) for proc, row in self._rows(procs))

    def recorders(self, procs: Iterable[Proc]) -> Iterator[RecorderState]:
        """The recorders of *procs*, and of the dead procs whose records are kept."""
        for proc, row in self._rows(procs):
            yield read_recorder(memory_of(proc.record_fd), row)

    def procs(self, procs: Iterable[Proc]) -> Iterator[ProcRow]:
        """The rows of *procs*, and of the dead procs whose records are kept."""
        for _, row in self._rows(procs):
            rss_bytes, cpu_s = _used(row)
            yield replace(row, rss_bytes=rss_bytes, cpu_s=cpu_s)

    def _rows(self, procs: Iterable[Proc]) -> Iterator[tuple[Proc, ProcRow]]:
        for proc in sorted(procs, key=lambda proc: (proc.start.run, proc.start.mesh, proc.start.rank)):
            yield proc, _row(proc, _state(proc), "")
        for ended in self._ended_procs:
            yield ended.proc, _row(ended.proc, "ended", ended.cause)

    def close(self) -> None:
        """Free the records of dead procs."""
        while self._ended_procs:
            _close(self._ended_procs.popleft().proc)

    def _change(self, proc: Proc, kind: RecordKind, *, name: int = 0, peer: int = 0) -> None:
        self._recorder.change(kind, name=name, peer=peer, msg=proc.start.mesh, value=proc.start.rank)


def _row(proc: Proc, state: str, cause: str) -> ProcRow:
    start = proc.start
    return ProcRow(start.run, start.mesh, start.rank, start.host_name, proc.pid, state, cause, 0, 0.0)


def _used(row: ProcRow) -> tuple[int, float]:
    """Memory and CPU time of a process."""
    if row.state == "ended" or not row.pid:  # its pid may be another process's by now
        return 0, 0.0
    return read_resident_bytes(row.pid), read_cpu_s(row.pid)


def _state(proc: Proc) -> str:
    if proc.pid and is_stopped(proc.pid):
        return "stopped"
    if proc.stopping:
        return "stopping"
    return "ready" if proc.state is ProcState.READY else "starting"


def _close(proc: Proc) -> None:
    os.close(proc.record_fd)
    proc.record_fd = -1
