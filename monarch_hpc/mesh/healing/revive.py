"""Prepares a proc that replaces another: its bootstrap function, its actors, and their states."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, EndpointMethod, endpoint
from monarch_hpc.actor.messages.creator import pack_creator
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.ownership import OwnedMesh, Recipe
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import ActorDied, MonarchError, TransportError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.core.text.units import format_size
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.bootstrap import Bootstrap, bootstrap_procs
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.mesh.door import block
from monarch_hpc.mesh.plan import ProcPlan
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["end_proc", "hidden_endpoint", "made_again", "prepare"]

_END_S = 5.0
"""Time that a proc which could not be prepared has to end."""


class _Ending(Actor):
    """Ends its process."""

    @endpoint
    def end(self) -> NoReturn:
        """End at once: nothing in the process is worth a clean-up."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def prepare(runtime: Runtime, plan: ProcPlan, proc: ProcRef) -> str:
    """Make the actors again that this program had spawned in the predecessor of *proc*; return why that failed.

    Blocks until the bootstrap function, the constructors and `__restore__` have returned.
    """
    try:
        if plan.bootstrap is not None:
            num_ranks = len(plan.hosts) * plan.per_host
            bootstrap_procs(runtime, plan.name, cast(Bootstrap, plan.bootstrap), {proc.rank: proc}, num_ranks)
        found = made_again(runtime, proc)
        for owned, recipe, _place in found:
            if recipe.body is None:
                size = format_size(recipe.num_bytes)
                return (
                    f"the constructor's arguments of {owned.name}, {size}, were not kept: raise config key "
                    "'procs.kept_bytes', or send large values by a call"
                )
            frame = Frame(Kind.SPAWN, owned.actor, owned.owner, recipe.body, recipe.buffers)
            runtime.casts.send(proc, runtime.connections.line_to(proc), frame)
        waiting = []
        for owned, recipe, _place in found:
            state = recipe.states.get(proc.rank)
            if state is None:
                made = hidden_endpoint(owned.name, owned.actor, proc, "_monarch_initialized").call_one()
            else:
                made = hidden_endpoint(owned.name, owned.actor, proc, "_monarch_restore").call_one(state)
            waiting.append((owned.name, made))
        for name, made in waiting:
            try:
                block(runtime, made)
            except ActorDied as error:
                return error.cause
            except Exception as error:  # noqa: BLE001 user code raised it
                return f"{name} could not take its state back: {summary_of(error)}"
    except Exception as error:  # noqa: BLE001 raised in whatever waits for the proc
        return summary_of(error)
    return ""


def made_again(runtime: Runtime, proc: ProcRef) -> Sequence[tuple[OwnedMesh, Recipe, int]]:
    """The actors that belong into *proc*: their mesh, its recipe, and their place in the mesh."""
    found = []
    for owned, recipe in runtime.ownership.made_in(proc.mesh):
        try:
            place = recipe.region.rank_of(proc.rank)
        except ValueError:
            continue  # its mesh has no actor there
        if proc.rank not in recipe.stopped:
            found.append((owned, recipe, place))
    return found


def hidden_endpoint(name: str, actor: int, proc: ProcRef, method: str) -> Endpoint[..., Any]:
    """A method that all actors have, of one actor."""
    callee = Callee(name, actor, proc.region, {proc.rank: proc})
    return Endpoint(callee, f"{method}()", EndpointMethod(getattr(Actor, method)))


def end_proc(runtime: Runtime, proc: ProcRef) -> None:
    """End a proc that could not be prepared; blocks for a few seconds at most."""
    actor = new_incarnation()
    body, buffers = pack_spawn("ending", proc.region, pack_creator(context(), runtime.own), _Ending, (), {})
    try:
        runtime.spawn("ending", actor, 0, {0: proc}, body, buffers)
        ending = ActorMesh("ending", actor, _Ending, proc.region, {proc.rank: proc})
        ending.end.options(timeout=_END_S).call_one().exception(_END_S)
    except (MonarchError, TransportError, TimeoutError):
        pass  # it has ended
    finally:
        runtime.ownership.remove(actor)
