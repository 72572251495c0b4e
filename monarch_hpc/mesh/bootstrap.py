"""Runs the function of `spawn_procs(bootstrap=...)` in fresh procs, before any actor."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence

from monarch_hpc.actor.cell.replies import is_deadly
from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.messages.creator import pack_creator
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.arguments import check_callable, shown
from monarch_hpc.core.errors import ActorDied, ActorError, BootstrapFailed, SpawnError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.bootstrap_command import PointCommand, variables_of
from monarch_hpc.mesh.door import block
from monarch_hpc.mesh.plan import Started
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import try_dumps

__all__ = ["Bootstrap", "at_each_point", "bootstrap_procs", "check_bootstrap", "run_bootstrap"]

Bootstrap = Callable[[], None] | Callable[[], Awaitable[None]] | Callable[[], Awaitable[None] | None]


class _Bootstrap(Actor):
    """Runs the bootstrap function in its proc."""

    @endpoint
    def run(self, function: Bootstrap) -> Coroutine[object, object, None] | None:
        """Call *function* where no event loop runs, so that it may wait; a coroutine then runs on this actor's loop."""
        with _not_deadly():
            result = function()
        return _wait_for(result) if inspect.isawaitable(result) else None


async def _wait_for(result: Awaitable[None]) -> None:
    with _not_deadly():
        await result


@contextlib.contextmanager
def _not_deadly() -> Iterator[None]:
    """Raise what would end an actor, such as SystemExit, as an error: no one needs to react to the end of this one."""
    try:
        yield
    except BaseException as error:
        if not is_deadly(error):
            raise
        raise RuntimeError(f"it raised {summary_of(error)}") from error


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
        try_dumps(function)
    except Exception as error:  # pickling runs user code
        raise refusal({"bootstrap": function}, error) from error


def run_bootstrap(runtime: Runtime, name: str, function: Bootstrap, started: Started) -> None:
    """Call *function* in each of the *started* procs; see `bootstrap_procs`."""
    bootstrap_procs(runtime, name, function, started.procs, len(started.procs))


def bootstrap_procs(
    runtime: Runtime, name: str, function: Bootstrap, procs: Mapping[int, ProcRef], num_ranks: int
) -> None:
    """Call *function* in *procs*, adjacent ranks of a mesh of *num_ranks*; return when all calls have returned.

    Raises:
        BootstrapFailed: *function* raised; the error names the rank and the exception.
        SpawnError: a proc has died meanwhile.
        TypeError: *function* cannot be pickled.
    """
    region = Region.whole(Extent(("procs",), (num_ranks,)))
    actor = new_incarnation()
    body, buffers = pack_spawn("bootstrap", region, pack_creator(context(), runtime.own), _Bootstrap, (), {})
    # Without an owner: the call below reports every failure of this actor.
    runtime.spawn("bootstrap", actor, 0, procs, body, buffers)
    view = region.slice(procs=slice(min(procs), max(procs) + 1))
    mesh = ActorMesh("bootstrap", actor, _Bootstrap, view, procs)
    answers = block(runtime, mesh.run.options(on_error="collect").call(function))
    for point, error in answers.failures().items():
        rank = view.base_rank(point.rank)
        proc = procs[rank]
        lines = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        what = error.cause if isinstance(error, ActorDied) else summary_of(error)
        cause = f"the bootstrap of {name or 'its mesh'} failed on rank {rank}: {what}"
        if not isinstance(error, ActorError):
            raise SpawnError(proc.host, cause, lines)
        failed = BootstrapFailed(proc.host, cause, lines)
        failed.exception = error.exception
        raise failed
    mesh.stop()


class PointVariables:
    """Sets the variables of one proc, each time other ones; a bootstrap function.

    Args:
        by_rank: the variables of each proc, row by row; None removes a variable.
        following: a bootstrap function to call afterwards.
    """

    def __init__(self, by_rank: Sequence[Mapping[str, str | None]], following: Bootstrap | None) -> None:
        self._by_rank = by_rank
        self._following = following

    def __call__(self) -> Awaitable[None] | None:
        """Set the variables of this proc, then call the other function."""
        for name, value in self._by_rank[context().spawn_rank.rank].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return None if self._following is None else self._following()


def at_each_point(
    command: PointCommand, extent: Extent, env: Mapping[str, str | None], following: Bootstrap | None
) -> PointVariables:
    """Return the bootstrap function that gives each proc the variables of its command.

    Args:
        command: returns the command of a proc, given its coordinates.
        extent: the dimensions of the procs.
        env: variables that override those of the commands.
        following: the caller's bootstrap function.

    Raises:
        TypeError, ValueError: see `variables_of`.
    """
    return PointVariables(
        [{**variables_of(command(extent.point(rank))), **env} for rank in range(len(extent))], following
    )
