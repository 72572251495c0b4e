"""The door of a proc: requests are calls of an actor in the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import program_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.door import ProgramDoor, block
from monarch_hpc.mesh.healing.revivals import Healing
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import HostChoice, MeshOwner, ProcPlan, Started
from monarch_hpc.mesh.program.requests import ProgramRequests, requests_of
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["RemoteDoor"]

_HEALS = (
    "only the program can heal procs, and this is one of its procs: an actor that starts procs learns of their deaths "
    "in __supervise__, and can spawn others"
)


class RemoteDoor(ProgramDoor):
    """The door in a proc. All requests raise `RuntimeError` once the connection to the program is lost."""

    def request_start(self, plan: ProcPlan, owner: MeshOwner | None) -> tuple[int, Future[Started]]:
        """Start procs for *owner*. The future ends on the driver."""
        started: Future[Started] = self._requests().start_procs.call_one(plan, owner)
        return 0, started

    def request_stop(self, mesh: int, reason: str) -> Future[list[str]]:
        """End all procs of a mesh; the result names the hosts that did not report in time. Ends on the driver."""
        late: Future[list[str]] = self._requests().stop_procs.call_one(mesh, reason)
        return late

    def end_procs(self, mesh: int, gone: Callable[[], None]) -> None:
        """End the procs of an owner that has ended; *gone* is called when they are gone, or late."""
        if program_of(self.runtime.node) is None:  # all procs of the run are ending anyway
            gone()
            return
        self._requests().stop_procs.call_one(mesh, "its owner ended").add_done_callback(lambda _done: gone())

    def heal_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None, *, respawn: bool) -> Future[Healing]:
        """Raise `RuntimeError`: only the program has the constructors' arguments of its actors."""
        raise RuntimeError(_HEALS)

    def move_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> Future[Healing]:
        """Raise `RuntimeError`, as `heal_procs`."""
        raise RuntimeError(_HEALS)

    def replace_hosts(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> bool:
        """Raise `RuntimeError`: the program heals its procs."""
        _refuse("heal")

    def keep_procs(self, mesh: int, name: str) -> None:
        """Raise `RuntimeError`: procs that an actor has started end with it."""
        raise RuntimeError("only the program can keep procs, and this is one of its procs")

    def procs(self, mesh: int) -> tuple[str, dict[int, ProcRef]]:
        """The name of a mesh of procs, and its procs by rank."""
        found: Future[tuple[str, dict[int, ProcRef]]] = self._requests().procs.call_one(mesh)
        return block(self.runtime, found)

    def _owner(self, actor: int) -> MeshOwner:
        return MeshOwner(self.runtime.own.incarnation, actor)

    def choose_logs(self, choice: LogChoice) -> Future[None]:
        """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""
        chosen: Future[None] = self._requests().choose_logs.call_one(choice)
        return chosen

    def allocation(self, name: str | None) -> str:
        """The allocation called *name*, if the program uses it; for None the one that this proc belongs to."""
        if name is None:
            return self.runtime.info.allocation
        found: Future[str] = self._requests().allocation.call_one(name)
        return block(self.runtime, found)

    def here(self) -> tuple[str, int]:
        """The allocation and the rank of the host that this proc runs on."""
        return self.runtime.info.allocation, self.runtime.info.host_rank

    def hosts(self, allocation: str) -> dict[int, HostEntry]:
        """Resources granted on each host of an allocation, by rank."""
        found: Future[dict[int, HostEntry]] = self._requests().hosts.call_one(allocation)
        return block(self.runtime, found)

    def place(self, allocation: str) -> tuple[Path, str]:
        """Raise `RuntimeError`: the program shows its procs."""
        _refuse("watch procs of")

    def hosts_in_use(self, allocation: str) -> list[int]:
        """Ranks of the hosts of an allocation that are not spares."""
        found: Future[list[int]] = self._requests().hosts_in_use.call_one(allocation)
        return block(self.runtime, found)

    def stop_hosts(self, choice: HostChoice, reason: str) -> Future[None]:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("stop")

    def shut_down_hosts(self, choice: HostChoice) -> None:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("shut down")

    def grow_hosts(
        self, allocation: str, num_hosts: int | str, options: Sequence[str], timeout_s: float | None
    ) -> list[int]:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("add")

    def leave_hosts(self, choice: HostChoice) -> None:
        """Raise `RuntimeError`: the hosts belong to the program."""
        _refuse("stop")

    def _requests(self) -> ActorMesh[ProgramRequests]:
        program = program_of(self.runtime.node)
        if program is None:
            raise RuntimeError("the connection to the program is lost")
        return requests_of(program)


def _refuse(verb: str) -> NoReturn:
    raise RuntimeError(f"only the program can {verb} hosts, and this is one of its procs")
