"""Runs the function of `spawn_procs(bootstrap=...)` in fresh procs, before any actor."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping

from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.arguments import check_callable, shown
from monarch_hpc.core.errors import ActorDied, SpawnError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.door import block
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps

__all__ = ["Bootstrap", "check_bootstrap", "run_bootstrap"]

Bootstrap = Callable[[], None] | Callable[[], Awaitable[None]]


class _Bootstrap(Actor):
    """Runs the bootstrap function in its proc."""

    @endpoint
    async def run(self, function: Bootstrap) -> None:
        """Call *function*, and await the result if it is awaitable."""
        result = function()
        if inspect.isawaitable(result):
            await result


def check_bootstrap(function: Bootstrap) -> None:
    """Refuse a function that could not run in the procs, before any proc is started.

    Raises:
        TypeError: *function* cannot be called, takes arguments, or cannot be pickled.
    """
    check_callable("bootstrap", function)
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have none
        signature = inspect.Signature()
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(f"bootstrap is called without arguments, and {shown(function)}, takes {signature}") from error
    try:
        dumps(function)
    except Exception as error:  # pickling runs user code
        raise refusal({"bootstrap": function}, error) from error


def run_bootstrap(runtime: Runtime, name: str, procs: Mapping[int, ProcRef], function: Bootstrap) -> None:
    """Call *function* in each of *procs*; return when all calls have returned.

    Raises:
        SpawnError: a call failed; the error names the rank and the exception.
        TypeError: *function* cannot be pickled.
    """
    region = Region.whole(Extent(("procs",), (len(procs),)))
    actor = new_incarnation()
    body, buffers = pack_spawn("bootstrap", region, _Bootstrap, (), {})
    # Without an owner: the call below reports every failure of this actor.
    runtime.spawn("bootstrap", actor, 0, procs, body, buffers)
    mesh = ActorMesh("bootstrap", actor, _Bootstrap, region, procs)
    answers = block(runtime, mesh.run.options(on_error="collect").call(function))
    for point, error in answers.failures().items():
        proc = procs[point.rank]
        lines = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        what = error.cause if isinstance(error, ActorDied) else summary_of(error)
        raise SpawnError(proc.host, f"the bootstrap of {name or 'its mesh'} failed on rank {point.rank}: {what}", lines)
    mesh.stop()
