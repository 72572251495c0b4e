"""What a program says of itself when `monarch-hpc status --calls` asks; of procs their agents say it."""

from __future__ import annotations

import os

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.telemetry.reading import read_scene, report_scene
from monarch_hpc.wire.calls import PROGRAM_MESH, ProcCalls

__all__ = ["testify"]


def testify(runtime: Runtime, run: str) -> ProcCalls:
    """What this process does."""
    memory = runtime.recorder.memory
    scene = read_scene(lambda at, size: memory[at : at + size])
    host, pid = runtime.info.host, os.getpid()
    return report_scene(scene, run=run, mesh=PROGRAM_MESH, rank=0, host=host, pid=pid, state="ready")
