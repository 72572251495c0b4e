"""The door of a proc: requests are calls of an actor in the program."""

from __future__ import annotations

from typing import NoReturn

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.death_causes import program_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.door import ProgramDoor, block
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import MeshOwner, ProcPlan, Started
from monarch_hpc.mesh.program.requests import ProgramRequests, requests_of
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["RemoteDoor"]


class RemoteDoor(ProgramDoor):
    """The door in a proc. All requests raise `RuntimeError` once the connection to the program is lost."""

    def request_start(self, plan: ProcPlan, owner: MeshOwner | None) -> Future[Started]:
        """Start procs for *owner*. The future ends on the driver."""
        started: Future[Started] = self._requests().start_procs.call_one(plan, owner)
        return started

    def request_stop(self, mesh: int, reason: str) -> Future[list[str]]:
        """End all procs of a mesh; the result names the hosts that did not report in time. Ends on the driver."""
        late: Future[list[str]] = self._requests().stop_procs.call_one(mesh, reason)
        return late

    def end_procs(self, mesh: int) -> None:
        """End the procs of an owner that has ended, without waiting for them."""
        if program_of(self.runtime.node) is not None:  # otherwise all procs of the run are ending anyway
            self._requests().stop_procs.broadcast(mesh, "its owner ended")

    def _owner(self, actor: int) -> MeshOwner:
        return MeshOwner(self.runtime.own.incarnation, actor)

    def choose_logs(self, choice: LogChoice) -> Future[None]:
        """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""
        chosen: Future[None] = self._requests().choose_logs.call_one(choice)
        return chosen

    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        found: Future[dict[int, HostEntry]] = self._requests().hosts.call_one()
        return block(self.runtime, found)

    def stop_hosts(self, reason: str) -> Future[None]:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("stop")

    def shut_down_hosts(self) -> None:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("shut down")

    def leave_hosts(self) -> None:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("stop")

    def _requests(self) -> ActorMesh[ProgramRequests]:
        program = program_of(self.runtime.node)
        if program is None:
            raise RuntimeError("the connection to the program is lost")
        return requests_of(program)


def _refuse(verb: str) -> NoReturn:
    raise RuntimeError(f"only the program can {verb} hosts, and this is one of its procs")
