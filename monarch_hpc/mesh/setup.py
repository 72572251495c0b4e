"""What a program runs in fresh procs before anything else does: `spawn_procs(bootstrap=...)`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping

from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.payload import pack_spawn
from monarch_hpc.actor.reference import ProcRef
from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.core.description import summary_of
from monarch_hpc.core.errors import ActorDied, SpawnError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.deputy import block

__all__ = ["Bootstrap", "run_bootstrap"]

Bootstrap = Callable[[], None] | Callable[[], Awaitable[None]]


class _Bootstrap(Actor):
    """Runs it."""

    @endpoint
    async def run(self, function: Bootstrap) -> None:
        """Call *function*, and wait for it if it is a coroutine."""
        going = function()
        if inspect.isawaitable(going):
            await going


def run_bootstrap(runtime: Runtime, name: str, procs: Mapping[int, ProcRef], function: Bootstrap) -> None:
    """Call *function* in each of *procs*; return when it has returned in all.

    Raises:
        SpawnError: it failed in one, which is named with what it raised.
        TypeError: *function* cannot be pickled.
    """
    region = Region.whole(Extent(("procs",), (len(procs),)))
    actor = new_incarnation()
    body, buffers = pack_spawn("bootstrap", region, _Bootstrap, (), {})
    # Nobody owns it: its call reports all that can go wrong with it.
    runtime.spawn("bootstrap", actor, 0, procs, body, buffers)
    mesh = ActorMesh("bootstrap", actor, _Bootstrap, region, procs)
    answers = block(runtime, mesh.run.options(on_error="collect").call(function))
    for point, error in answers.failures().items():
        proc = procs[point.rank]
        lines = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        what = error.cause if isinstance(error, ActorDied) else summary_of(error)
        raise SpawnError(proc.host, f"the bootstrap of {name or 'its mesh'} failed on rank {point.rank}: {what}", lines)
    mesh.stop()
