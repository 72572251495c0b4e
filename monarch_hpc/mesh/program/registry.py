"""Actors of the program that every process of the run can find by name."""

from __future__ import annotations

from typing import Any, TypeVar

from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.creator import pack_creator
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import program_of
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.ids import Role
from monarch_hpc.mesh.actors import ActorMesh, check_actor
from monarch_hpc.mesh.proc import proc_of

__all__ = ["get_or_spawn_controller", "open_registry"]

A = TypeVar("A", bound=Actor)

_REGISTRY = 1
"""Actor number of the registry, known to all processes; most other actors have random 64-bit numbers."""


def get_or_spawn_controller(name: str, cls: type[A], *args: object, **kwargs: object) -> Future[ActorMesh[A]]:
    """Get the run's only actor called *name*; the first call spawns it, in the process of the program.

    Later calls, from any process of the run, get the same actor whatever class and arguments they pass. If the actor
    has failed, which is reported to the program, the next call spawns it again.

    Args:
        name: name of the actor, unique in the run.
        cls: class of the actor.
        *args: arguments of the constructor.
        **kwargs: keyword arguments of the constructor.

    Returns:
        A future of the actor, as a mesh of one without dimensions.

    Raises:
        TypeError, ValueError: as for `ProcMesh.spawn`.
        RuntimeError: this process has no connection to a program.
    """
    check_actor(name, cls, args, kwargs)
    runtime = current_runtime()
    found: Future[ActorMesh[A]] = _registry(_program(runtime)).get_or_spawn.call_one(name, cls, args, kwargs)
    return found


def open_registry(runtime: Runtime) -> None:
    """Spawn the registry, which processes of the run ask for named actors; once, before the first proc starts."""
    own = runtime.own
    body, buffers = pack_spawn("registry", own.region, pack_creator(context(), own), _Registry, (), {})
    runtime.spawn("registry", _REGISTRY, 0, {own.rank: own}, body, buffers)


class _Registry(Actor):
    """Keeps the named actors of a program; handles one request at a time, so that no actor is spawned twice."""

    def __init__(self) -> None:
        self._known: dict[str, ActorMesh[Any]] = {}

    @endpoint
    def get_or_spawn(
        self, name: str, cls: type[Actor], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> ActorMesh[Any]:
        """Return the actor called *name*; spawn it if there is none."""
        if name not in self._known:
            self._known[name] = proc_of(current_runtime()).spawn(name, cls, *args, **kwargs)
        return self._known[name]

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Forget an actor that has failed, and report the failure to the program."""
        self._known.pop(failure.mesh_name, None)
        current_runtime().failures.unhandled(failure)
        return True


def _program(runtime: Runtime) -> ProcRef:
    """The process of the program that this process belongs to; may be this process itself."""
    if runtime.node.identity.role is Role.CONTROLLER:
        return runtime.own
    program = program_of(runtime.node)
    if program is None:
        raise RuntimeError("the connection to the program is lost")
    return program


def _registry(program: ProcRef) -> ActorMesh[_Registry]:
    return ActorMesh("registry", _REGISTRY, _Registry, program.region, {program.rank: program})
