"""The door of a process to its program, which alone has a channel to the head, and so to hosts, procs and logs.

The program has a `mesh.program.local_door.LocalDoor`, each proc a `mesh.program.remote_door.RemoteDoor`. The door is
chosen once, when the process's runtime is set up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.mesh.healing.revivals import Healing
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import HostChoice, MeshOwner, ProcPlan, Started
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["ProgramDoor", "block", "current_door", "door_of"]

T = TypeVar("T")


class ProgramDoor(ABC):
    """Requests of a process to its program.

    Attributes:
        runtime: the runtime of the process.
        is_program: whether the process is the program.
    """

    is_program = False

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    # ---- procs ----

    def start_procs(self, plan: ProcPlan, actor: int) -> tuple[int, Future[Started]]:
        """Start procs, which end with *actor*; in the program, 0 makes the program itself their owner.

        The future fails with `SpawnError` if a proc did not start; by then the others are gone.

        Returns:
            At once: the number of the mesh, or 0 if this process does not know it before the procs run; and the future.
        """
        future: Future[Started] = Future(self.runtime.engine, lambda: f"the start of {plan.name or 'procs'}")
        owner = self._owner(actor)

        def adopt(started: Started) -> Started:
            # Still on the driver: the next event may be the death of one of these procs, which must find its owner.
            if owner is not None:
                end = partial(self.end_procs, started.mesh)
                self.runtime.failures.adopt(actor, plan.name or "procs", started.mesh, started.procs, end)
            return started

        number, requested = self.request_start(plan, owner)
        requested.add_done_callback(lambda done: _settle(future, lambda: adopt(done.result())))
        return number, future

    def stop_procs(self, mesh: int, name: str, reason: str) -> Future[None]:
        """End all procs of a mesh; the future is done when every host has reported that none is left.

        The future fails with `TimeoutError` if a host does not report that in time.
        """
        future: Future[None] = Future(self.runtime.engine, lambda: f"the end of {name or 'procs'}")

        def check(late: list[str]) -> None:
            if late:
                raise TimeoutError(f"procs of {name} may still run on {', '.join(late)}: no report in time")

        self.runtime.ownership.remove(mesh)
        self.request_stop(mesh, reason).add_done_callback(lambda done: _settle(future, lambda: check(done.result())))
        return future

    @abstractmethod
    def request_start(self, plan: ProcPlan, owner: MeshOwner | None) -> tuple[int, Future[Started]]:
        """Start procs for *owner*; None for the program itself. The future ends on the driver.

        Returns:
            The number of the mesh, or 0 if this process does not know it before the procs run; and the future.
        """

    @abstractmethod
    def request_stop(self, mesh: int, reason: str) -> Future[list[str]]:
        """End all procs of a mesh; the result names the hosts that did not report in time. Ends on the driver."""

    @abstractmethod
    def end_procs(self, mesh: int, gone: Callable[[], None]) -> None:
        """End the procs of an owner that has ended; *gone* is called when they are gone, or late."""

    @abstractmethod
    def heal_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None, *, respawn: bool) -> Future[Healing]:
        """Bring dead procs of a mesh back, with their actors; or, without *respawn*, only name them.

        The future is done when each of them is alive again, or cannot be, or *timeout_s* seconds have passed; None for
        config key `procs.heal_s`. It fails with `RuntimeError` if the mesh was stopped.

        Raises:
            RuntimeError: this process is not the program.
        """

    @abstractmethod
    def move_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> Future[Healing]:
        """Bring the dead procs of lost hosts back on hosts without procs of the mesh; otherwise as `heal_procs`.

        The result has only those for which there is a host.
        """

    @abstractmethod
    def replace_hosts(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> bool:
        """Take as many hosts from Slurm as the given procs of a mesh have lost; return whether there were any to take.

        Raises:
            AllocationError, SlurmError: the hosts did not come, or may not be requested now.
            RuntimeError: this process is not the program.
        """

    @abstractmethod
    def keep_procs(self, mesh: int, name: str) -> None:
        """Have the procs of a mesh stay when their run ends, see `ProcMesh.keep`; blocks until that is done.

        Raises:
            RuntimeError: this process is not the program, or the mesh was stopped.
        """

    @abstractmethod
    def procs(self, mesh: int) -> tuple[str, dict[int, ProcRef]]:
        """The name of a mesh of procs, and its procs by rank.

        Raises:
            RuntimeError: the program has no such mesh any more.
        """

    @abstractmethod
    def _owner(self, actor: int) -> MeshOwner | None:
        """The owner of procs that *actor* starts."""

    # ---- output ----

    @abstractmethod
    def choose_logs(self, choice: LogChoice) -> Future[None]:
        """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""

    # ---- hosts ----

    @abstractmethod
    def allocation(self, name: str | None) -> str:
        """The allocation called *name*; for None this process's own, which a program opens if it has none.

        Raises:
            AllocationError: there is none of that name, or it has ended.
        """

    @abstractmethod
    def here(self) -> tuple[str, int]:
        """The allocation and the rank of the host that this code runs on."""

    @abstractmethod
    def hosts(self, allocation: str) -> dict[int, HostEntry]:
        """Resources granted on each host of an allocation, by rank.

        Raises:
            RuntimeError: the program does not use the allocation any more.
        """

    @abstractmethod
    def place(self, allocation: str) -> tuple[Path, str]:
        """The directory of an allocation, and the run there; as `hosts`, and in a proc it raises `RuntimeError`."""

    @abstractmethod
    def hosts_in_use(self, allocation: str) -> list[int]:
        """Ranks of the hosts of an allocation that are not spares; otherwise as `hosts`."""

    @abstractmethod
    def stop_hosts(self, choice: HostChoice, reason: str) -> Future[None]:
        """End the program's procs on hosts; the future fails with `TimeoutError` if a host does not report.

        Raises:
            RuntimeError: this process is not the program.
        """

    @abstractmethod
    def shut_down_hosts(self, choice: HostChoice) -> None:
        """End all procs on hosts and give the hosts back; returns when that is done.

        The allocation ends, or is left, once all its hosts were given back.

        Raises:
            AllocationError: the allocation outlives this program.
            RuntimeError: this process is not the program.
        """

    @abstractmethod
    def grow_hosts(
        self, allocation: str, num_hosts: int | str, options: Sequence[str], timeout_s: float | None
    ) -> list[int]:
        """Take further hosts for an allocation; return their ranks once they have joined. See `HostMesh.grow`.

        Raises:
            RuntimeError: this process is not the program.
        """

    @abstractmethod
    def leave_hosts(self, choice: HostChoice) -> None:
        """End all procs, and give the hosts back unless the allocation outlives this program. Nothing in a fork.

        Raises:
            RuntimeError: this process is not the program.
        """


def door_of(runtime: Runtime) -> ProgramDoor:
    """The door of the process of *runtime*."""
    assert isinstance(runtime.door, ProgramDoor)  # set in `mesh.process` and in the controller
    return runtime.door


def current_door() -> ProgramDoor:
    """The door of this process.

    Raises:
        RuntimeError: this process has no runtime.
        ForkedError: this process was forked, and the runtime belongs to its parent.
    """
    return door_of(current_runtime())


def block(runtime: Runtime, future: Future[T]) -> T:
    """Wait for *future*; a running event loop of this thread is blocked meanwhile.

    Raises:
        RuntimeError: called on the thread that drives the I/O, or the process is ending.
    """
    if runtime.engine.driving:
        raise RuntimeError("a done-callback must not wait for hosts or procs")
    if not runtime.engine.wait(future.done, None) and not future.done():
        raise RuntimeError("the process is ending")
    return future.result()


def _settle(future: Future[T], read: Callable[[], T]) -> None:
    try:
        value = read()
    except BaseException as error:  # noqa: BLE001 any exception of the request belongs to the future
        future.set_exception(error)
    else:
        future.set_result(value)
