"""A program's own rows in answers to questions; procs are reported by their agents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.machine.procfs import read_cpu_s, read_resident_bytes
from monarch_hpc.telemetry.clock import uncompared
from monarch_hpc.telemetry.history import HISTORY, read_recorder
from monarch_hpc.telemetry.views.scene import read_memory_use, read_scene
from monarch_hpc.wire.tables.answer import Sources
from monarch_hpc.wire.tables.calls import CALLS, PROGRAM_MESH, ProcCalls
from monarch_hpc.wire.tables.history import RECORDERS, HistoryRow, RecorderState
from monarch_hpc.wire.tables.memory import MEMORY, ProcMemory
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

__all__ = ["own_tables"]


def own_tables(runtime: Runtime, run: str) -> Sources:
    """The tables that have a row of this process."""
    host, pid = runtime.info.host, os.getpid()

    def calls() -> Iterator[ProcCalls]:
        memory = runtime.recorder.memory
        scene = read_scene(lambda at, size: memory[at : at + size])
        used = read_resident_bytes(pid), read_cpu_s(pid)
        yield ProcCalls(run, PROGRAM_MESH, 0, host, pid, "ready", "", scene, *used)

    def memory() -> Iterator[ProcMemory]:
        records = runtime.recorder.memory
        use = read_memory_use(lambda at, size: records[at : at + size])
        yield ProcMemory(run, PROGRAM_MESH, 0, host, pid, "ready", "", use)

    def procs() -> Iterator[ProcRow]:
        yield ProcRow(run, PROGRAM_MESH, 0, host, pid, "ready", "", read_resident_bytes(pid), read_cpu_s(pid))

    def read(at: int, size: int) -> bytes:
        return runtime.recorder.memory[at : at + size]

    def recorders() -> Iterator[RecorderState]:
        for row in procs():
            yield read_recorder(read, row)

    def history(table: str) -> Iterator[HistoryRow]:
        for row in procs():
            yield from HISTORY[table](read, row, uncompared())

    return {
        CALLS.name: calls,
        MEMORY.name: memory,
        PROCS.name: procs,
        RECORDERS.name: recorders,
        **{name: partial(history, name) for name in HISTORY},
    }
