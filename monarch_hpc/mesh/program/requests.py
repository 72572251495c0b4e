"""The program's actor that carries out the requests of its procs, at once and side by side.

It answers even while the program's own code is busy; a request is answered when its result arrives.
"""

from __future__ import annotations

from typing import Any

from monarch_hpc.actor.cell.invocation import ResponsePort
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import REQUESTS_ACTOR
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.door import current_door
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import MeshOwner, ProcPlan
from monarch_hpc.mesh.program.local_door import LocalDoor
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["ProgramRequests", "open_requests", "requests_of"]


class ProgramRequests(Actor):
    """Carries out the requests of procs in the program."""

    def __init__(self) -> None:
        door = current_door()
        assert isinstance(door, LocalDoor)  # the program alone spawns this actor
        self._door = door

    @endpoint(explicit_response_port=True)
    def start_procs(self, port: ResponsePort, plan: ProcPlan, owner: MeshOwner) -> None:
        """Start procs for an actor of another process."""
        _answer(port, self._door.request_start(plan, owner))

    @endpoint(explicit_response_port=True)
    def stop_procs(self, port: ResponsePort, mesh: int, reason: str) -> None:
        """End procs; answers with the hosts that did not report in time."""
        _answer(port, self._door.request_stop(mesh, reason))

    @endpoint(explicit_response_port=True)
    def choose_logs(self, port: ResponsePort, choice: LogChoice) -> None:
        """Apply *choice* to the output of procs."""
        _answer(port, self._door.choose_logs(choice))

    @endpoint
    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        return self._door.hosts()

    @endpoint(explicit_response_port=True)
    def why(self, port: ResponsePort, incarnation: int) -> None:
        """Answer with the cause of a proc's death and whether it was asked to end; None if that is not known."""
        _answer(port, self._door.explain(incarnation))


def open_requests(runtime: Runtime) -> None:
    """Spawn the actor that serves the procs of the run; once, before the first proc starts."""
    own = runtime.own
    body, buffers = pack_spawn("requests", own.region, ProgramRequests, (), {})
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
