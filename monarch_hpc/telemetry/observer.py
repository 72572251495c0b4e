"""Reads a program's records from another process on its machine, so that even a stopped program can be inspected."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Callable, Iterator
from functools import partial

from monarch_hpc.core.machine.place import read_place
from monarch_hpc.core.machine.procfs import read_cpu_s, read_resident_bytes, read_stat
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.clock import uncompared
from monarch_hpc.telemetry.history import HISTORY, ReadHistory, read_recorder
from monarch_hpc.telemetry.reading import memory_of, read_header
from monarch_hpc.telemetry.views.scene import read_memory_use, read_scene
from monarch_hpc.wire.control.runs import Recording
from monarch_hpc.wire.tables.answer import Sources
from monarch_hpc.wire.tables.calls import CALLS, PROGRAM_MESH, ProcCalls
from monarch_hpc.wire.tables.history import RECORDERS, HistoryRow, RecorderState
from monarch_hpc.wire.tables.memory import MEMORY, ProcMemory
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

__all__ = ["RecordObserver", "is_stopped", "open_observer"]

_STOPPED = frozenset("Tt")
"""State letters: stopped by a signal, or by a debugger."""


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    found = read_stat(pid)
    return found is not None and found.state in _STOPPED


class RecordObserver:
    """Reads the records of one program.

    Args:
        memory, pidfd: descriptors of the memory and of the process, closed by `close`.

    Attributes:
        on_close: called by `close`, before it closes them.
    """

    def __init__(self, recording: Recording, memory: int, pidfd: int) -> None:
        self._recording = recording
        self._fds = [memory, pidfd]
        self.on_close: Callable[[], None] | None = None

    @property
    def memory_fd(self) -> int:
        """The descriptor of the memory; it is open until `close`."""
        return self._fds[0]

    @property
    def sources(self) -> Sources:
        """The tables that have a row of the program; none once it has ended."""
        return {
            CALLS.name: self._calls,
            MEMORY.name: self._memory,
            PROCS.name: self._procs,
            RECORDERS.name: self._recorders,
            **{name: partial(self._history, read) for name, read in HISTORY.items()},
        }

    def _recorders(self) -> Iterator[RecorderState]:
        for row in self._procs():
            yield read_recorder(memory_of(self._fds[0]), row)

    def _history(self, read: ReadHistory) -> Iterator[HistoryRow]:
        for row in self._procs():
            yield from read(memory_of(self._fds[0]), row, uncompared())

    def _calls(self) -> Iterator[ProcCalls]:
        for row in self._procs():
            scene = read_scene(memory_of(self._fds[0]))
            yield ProcCalls(*row.first_columns, scene, row.rss_bytes, row.cpu_s)

    def _memory(self) -> Iterator[ProcMemory]:
        for row in self._procs():
            use = read_memory_use(memory_of(self._fds[0]))
            yield ProcMemory(*row.first_columns, use)

    def _procs(self) -> Iterator[ProcRow]:
        if not self._fds or _has_ended(self._fds[1]):
            return
        recording = self._recording
        state = "stopped" if is_stopped(recording.pid) else "ready"
        pid, run, host = recording.pid, recording.run, recording.host
        yield ProcRow(run, PROGRAM_MESH, 0, host, pid, state, "", read_resident_bytes(pid), read_cpu_s(pid))

    def close(self) -> None:
        """Close the descriptors."""
        if self.on_close is not None:
            self.on_close()
            self.on_close = None
        while self._fds:
            os.close(self._fds.pop())


def open_observer(recording: Recording) -> RecordObserver | None:
    """Open the records that a program has announced; None if it is on another machine or they do not match."""
    if not recording.place or recording.place != read_place():
        return None
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        # The pidfd first: while the process lives, its pid and its descriptors are not reused.
        pidfd = os.pidfd_open(recording.pid)
        opened.callback(os.close, pidfd)
        path = f"/proc/{recording.pid}/fd/{recording.fd}"
        memory = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        opened.callback(os.close, memory)
        found = os.fstat(memory)
        if (
            stat.S_ISREG(found.st_mode)
            and found.st_size == layout.TOTAL_BYTES
            and read_header(memory_of(memory)) == ("", recording.incarnation)
            and not _has_ended(pidfd)
        ):
            opened.pop_all()
            return RecordObserver(recording, memory, pidfd)
    return None


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
