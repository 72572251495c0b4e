"""What a program says of itself when `monarch-hpc status --calls` asks; of procs their agents say it."""

from __future__ import annotations

import os

from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.telemetry.reading import read_scene
from monarch_hpc.wire.calls import ProcCalls

__all__ = ["testify"]


def testify(runtime: Runtime, run: str) -> ProcCalls:
    """What this process does."""
    memory = runtime.recorder.memory
    scene = read_scene(lambda at, size: memory[at : at + size])
    return ProcCalls(
        run=run,
        mesh=-1,
        rank=0,
        host=runtime.info.host,
        pid=os.getpid(),
        incarnation=scene.incarnation,
        state="ready",
        cause="",
        problem=scene.problem,
        actors=scene.actors,
        running=scene.running,
        waits=scene.waits,
        sent=scene.sent,
        num_sent=scene.num_sent,
        endpoints=scene.endpoints,
    )
