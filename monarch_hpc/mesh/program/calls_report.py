"""A program's own entry in `monarch-hpc status --calls`; procs are reported by their agents."""

from __future__ import annotations

import os

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.telemetry.reading import read_scene
from monarch_hpc.wire.control.calls import PROGRAM_MESH, ProcCalls

__all__ = ["own_report"]


def own_report(runtime: Runtime, run: str) -> ProcCalls:
    """The calls and states of this process, read from its own records."""
    memory = runtime.recorder.memory
    scene = read_scene(lambda at, size: memory[at : at + size])
    return ProcCalls(run, PROGRAM_MESH, 0, runtime.info.host, os.getpid(), "ready", "", scene)
