"""The program's own door: requests go straight to its fleet, its log settings and its record of deaths."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import AllocationError, SpawnError
from monarch_hpc.mesh.door import ProgramDoor, block
from monarch_hpc.mesh.output.choice import LogChoice, LogRequests
from monarch_hpc.mesh.plan import MeshOwner, Outcome, ProcPlan, Started
from monarch_hpc.mesh.program.deaths import Deaths
from monarch_hpc.mesh.program.fleet import Fleet
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["LocalDoor"]

_RECHECK_S = 0.1
"""A proc that another proc reports lost is alive if the program's channel to it is still open after this time: the
kernel closes a dead process's sockets."""


class LocalDoor(ProgramDoor):
    """The door in the program.

    Args:
        runtime: the program's runtime.
        fleet: the meshes of procs.
        deaths: causes of death.
        logs: log settings.
        allocation: the allocation's name.
        outlived: whether the allocation is a Slurm job that outlives this program, and may serve other programs.
        close: ends the program's use of the allocation.
    """

    def __init__(
        self,
        runtime: Runtime,
        fleet: Fleet,
        deaths: Deaths,
        logs: LogRequests,
        *,
        allocation: str,
        outlived: bool,
        close: Callable[[], None],
    ) -> None:
        super().__init__(runtime)
        self.outlived = outlived
        self.shutdown_callbacks: list[Callable[[], None]] = []
        """Called before the hosts are given back, e.g. to end workers that were started by hand."""
        self._fleet = fleet
        self._deaths = deaths
        self._logs = logs
        self._allocation = allocation
        self._close = close

    def request_start(self, plan: ProcPlan, owner: MeshOwner | None) -> Future[Started]:
        """Start procs for *owner*; None for the program itself. The future ends on the driver."""
        future: Future[Started] = Future(self.runtime.engine)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, SpawnError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._fleet.start(plan, owner, done)
        return future

    def request_stop(self, mesh: int, reason: str) -> Future[list[str]]:
        """End all procs of a mesh; the result names the hosts that did not report in time. Ends on the driver."""
        future: Future[list[str]] = Future(self.runtime.engine)
        self._fleet.stop(mesh, reason, future.set_result)
        return future

    def end_procs(self, mesh: int) -> None:
        """End the procs of an owner that has ended, without waiting for them."""
        self._fleet.stop(mesh, "its owner ended", lambda _late: None)

    def _owner(self, actor: int) -> MeshOwner | None:
        return MeshOwner(self.runtime.own.incarnation, actor) if actor else None

    def choose_logs(self, choice: LogChoice) -> Future[None]:
        """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""
        return self._logs.choose(choice, self._fleet.hosts_of(choice.mesh))

    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        return dict(self._fleet.hosts)

    def stop_hosts(self, reason: str) -> Future[None]:
        """End all procs of the program; the future fails with `TimeoutError` if a host does not report."""
        future: Future[None] = Future(self.runtime.engine, lambda: "the end of all procs")

        def stopped(late: list[str]) -> None:
            if late:
                future.set_exception(TimeoutError(f"procs may still run on {', '.join(late)}: no report in time"))
            else:
                future.set_result(None)

        self._fleet.stop_all(reason, stopped)
        return future

    def shut_down_hosts(self) -> None:
        """End all procs and give the hosts back; returns when that is done."""
        if self.outlived:
            raise AllocationError(
                self._allocation, "it outlives this program; stop() ends your procs, 'monarch-hpc release' all of it"
            )
        for callback in self.shutdown_callbacks:
            callback()
        self._close()

    def leave_hosts(self) -> None:
        """End all procs, and give the hosts back unless the allocation outlives this program. Nothing in a fork."""
        if self.runtime.engine.forked_from:
            return  # the procs belong to the parent
        if self.outlived:
            block(self.runtime, self.stop_hosts(""))
        else:
            self.shut_down_hosts()

    def explain(self, incarnation: int) -> Future[tuple[str, bool] | None]:
        """The cause of a proc's death and whether it was asked to end; None if that is not known."""
        future: Future[tuple[str, bool] | None] = Future(self.runtime.engine)

        def recheck() -> None:
            channel = self.runtime.node.channels.get(incarnation)
            if channel is not None and channel.error is None:  # alive: only the caller's route to it is cut
                future.set_result(None)

        def perform() -> None:
            self.runtime.engine.call_later(_RECHECK_S, recheck)
            self._deaths.explain(
                incarnation,
                "",
                lambda died: future.set_result(
                    (str(getattr(died, "cause", died)), self._deaths.was_expected(incarnation))
                ),
                lambda _where, _on_cause: future.set_result(None),
            )

        self.runtime.engine.call_soon(perform)
        return future
