"""The program's actor that carries out the requests of its procs, at once and side by side.

It answers even while the program's own code is busy; a request is answered when its result arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from monarch_hpc.actor.cell.response_port import ResponsePort
from monarch_hpc.actor.context import context
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.creator import pack_creator
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import REQUESTS_ACTOR
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.door import current_door
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import MeshOwner, ProcPlan
from monarch_hpc.wire.control.allocation import HostEntry

if TYPE_CHECKING:
    # Procs only call this actor; its door needs half of this package.
    from monarch_hpc.mesh.program.local_door import LocalDoor

__all__ = ["ProgramRequests", "open_requests", "requests_of"]


class ProgramRequests(Actor):
    """Carries out the requests of procs in the program."""

    def __init__(self) -> None:
        door = current_door()
        assert door.is_program  # which alone spawns this actor
        self._door = cast("LocalDoor", door)

    @endpoint(explicit_response_port=True)
    def start_procs(self, port: ResponsePort, plan: ProcPlan, owner: MeshOwner) -> None:
        """Start procs for an actor of another process."""
        _answer(port, self._door.request_start(plan, owner)[1])

    @endpoint(explicit_response_port=True)
    def stop_procs(self, port: ResponsePort, mesh: int, reason: str) -> None:
        """End procs; answers with the hosts that did not report in time."""
        _answer(port, self._door.request_stop(mesh, reason))

    @endpoint(explicit_response_port=True)
    def choose_logs(self, port: ResponsePort, choice: LogChoice) -> None:
        """Apply *choice* to the output of procs."""
        _answer(port, self._door.choose_logs(choice))

    @endpoint
    def procs(self, mesh: int) -> tuple[str, dict[int, ProcRef]]:
        """The name of a mesh of procs, and its procs by rank."""
        return self._door.procs(mesh)

    @endpoint
    def hosts(self, allocation: str) -> dict[int, HostEntry]:
        """Resources granted on each host of an allocation, by rank."""
        return self._door.hosts(allocation)

    @endpoint
    def hosts_in_use(self, allocation: str) -> list[int]:
        """Ranks of the hosts of an allocation that are not spares."""
        return self._door.hosts_in_use(allocation)

    @endpoint
    def allocation(self, name: str) -> str:
        """The allocation of that name, which the program uses already: procs make no program open one."""
        return self._door.known_allocation(name)

    @endpoint(explicit_response_port=True)
    def why(self, port: ResponsePort, incarnation: int) -> None:
        """Answer with the cause of a proc's death; see `LocalDoor.explain`."""
        _answer(port, self._door.explain(incarnation))


def open_requests(runtime: Runtime) -> None:
    """Spawn the actor that serves the procs of the run; once, before the first proc starts."""
    own = runtime.own
    body, buffers = pack_spawn("requests", own.region, pack_creator(context(), own), ProgramRequests, (), {})
    runtime.spawn("requests", REQUESTS_ACTOR, 0, {own.rank: own}, body, buffers)


def requests_of(program: ProcRef) -> ActorMesh[ProgramRequests]:
    """The actor of *program* that serves its procs."""
    return ActorMesh("requests", REQUESTS_ACTOR, ProgramRequests, program.region, {program.rank: program})


def _answer(port: ResponsePort, future: Future[Any]) -> None:
    """Answer with the outcome of *future* as soon as it has one."""

    def answer(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            port.send(done.result())
        else:
            port.exception(error)

    future.add_done_callback(answer)
