"""The program's own door: requests go straight to its tenancies and its record of deaths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.death import Death
from monarch_hpc.core.errors import ActorDied, AllocationError, SpawnError
from monarch_hpc.mesh.door import ProgramDoor, block
from monarch_hpc.mesh.healing.revivals import Healing
from monarch_hpc.mesh.output.choice import LogChoice
from monarch_hpc.mesh.plan import HostChoice, MeshOwner, Outcome, ProcPlan, Started
from monarch_hpc.mesh.program.allocations.tenancies import ANEW, Tenancies
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.kept.keep import keep_procs
from monarch_hpc.mesh.program.procs.deaths import Deaths
from monarch_hpc.mesh.program.procs.quarantine import Quarantine
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["LocalDoor"]

_STOPPED = "these procs were stopped, or are kept, and cannot be healed: spawn others"

_RECHECK_S = 0.1
"""A proc that another proc reports lost is asked for a sign of life after this time, and looked at again after each
such time. That its sockets are open is none: the kernel closes them last, after it has taken back the memory, seconds
later where that is large or the cores are busy."""


class LocalDoor(ProgramDoor):
    """The door in the program.

    Args:
        runtime: the program's runtime.
        tenancies: the program's allocations.
        deaths: causes of death.
    """

    is_program = True

    def __init__(self, runtime: Runtime, tenancies: Tenancies, deaths: Deaths) -> None:
        super().__init__(runtime)
        self.tenancies = tenancies
        self._deaths = deaths

    # ---- procs ----

    def request_start(self, plan: ProcPlan, owner: MeshOwner | None) -> tuple[int, Future[Started]]:
        """Start procs for *owner*; None for the program itself. The future ends on the driver.

        Raises:
            RuntimeError: the hosts were shut down.
        """
        tenancy = self._tenancy(plan.allocation)
        gone = tenancy.given_up.intersection(plan.hosts)
        if gone:
            names = ", ".join(tenancy.hosts[host].name for host in sorted(gone))
            raise RuntimeError(f"{names} was shut down, and starts no procs")
        future: Future[Started] = Future(self.runtime.engine)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, SpawnError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        number = tenancy.fleet.start(plan, owner, done)
        if plan.restart is not None and tenancy.poison_lives:
            Quarantine.of(self.runtime, tenancy.poison_lives).watch(number, plan.restart.window_s)
        return number, future

    def request_stop(self, mesh: int, reason: str) -> Future[list[str]]:
        """End all procs of a mesh; the result names the hosts that did not report in time. Ends on the driver."""
        future: Future[list[str]] = Future(self.runtime.engine)

        def perform() -> None:  # on the driver: a mesh that was just requested is known there
            tenancy = self.tenancies.with_mesh(mesh)
            if tenancy is None:
                future.set_result([])
            else:
                tenancy.fleet.stop(mesh, reason, future.set_result)

        self.runtime.engine.call_soon(perform)
        return future

    def heal_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None, *, respawn: bool) -> Future[Healing]:
        """Bring dead procs of a mesh back, or only name them. The future ends on the driver."""
        if respawn and Quarantine.current is not None:
            Quarantine.current.forgive(mesh)

        def choose(_tenancy: Tenancy, procs: Mapping[int, ProcRef]) -> list[ProcRef]:
            return [procs[rank] for rank in ranks]

        return self._heal(mesh, choose, timeout_s, respawn=respawn)

    def move_procs(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> Future[Healing]:
        """Bring the dead procs of lost hosts back on other hosts. The future ends on the driver."""

        def choose(tenancy: Tenancy, procs: Mapping[int, ProcRef]) -> list[ProcRef]:
            fleet = tenancy.fleet
            places = {rank: fleet.place_of(procs[rank]) for rank in ranks}
            found = tenancy.absences.substitutes(fleet.hosts_of(mesh), places.values(), fleet.hosts)
            fleet.move(mesh, found)
            return [procs[rank] for rank in ranks if places[rank] in found]

        return self._heal(mesh, choose, timeout_s, respawn=True)

    def replace_hosts(self, mesh: int, ranks: Sequence[int], timeout_s: float | None) -> bool:
        """Take as many hosts from Slurm as the given procs have lost; return whether there were any to take."""
        from monarch_hpc.mesh.program.allocations.growing import replace_hosts  # few programs need the Slurm modules

        tenancy = self.tenancies.with_mesh(mesh)
        if tenancy is None:
            raise RuntimeError(_STOPPED)
        procs, fleet = tenancy.fleet.procs_of(mesh), tenancy.fleet
        places = {fleet.place_of(procs[rank]) for rank in ranks}
        num_lost = sum(tenancy.absences.is_lost(place) for place in places)
        if num_lost:
            replace_hosts(tenancy, num_lost, tenancy.heal_s if timeout_s is None else timeout_s)
        return num_lost > 0

    def _heal(
        self,
        mesh: int,
        choose: Callable[[Tenancy, Mapping[int, ProcRef]], list[ProcRef]],
        timeout_s: float | None,
        *,
        respawn: bool,
    ) -> Future[Healing]:
        """Heal the procs that *choose* returns, on the driver; nothing is done for none."""
        future: Future[Healing] = Future(self.runtime.engine, lambda: "procs that come back")

        def perform() -> None:
            tenancy = self.tenancies.with_mesh(mesh)
            procs = {} if tenancy is None else tenancy.fleet.procs_of(mesh)
            if tenancy is None or not procs:
                future.set_exception(RuntimeError(_STOPPED))
                return
            chosen = choose(tenancy, procs)
            if not chosen:
                future.set_result(Healing({}, {}))
                return
            limit_s = tenancy.heal_s if timeout_s is None else timeout_s
            tenancy.revivals.heal(mesh, chosen, future.set_result, limit_s, respawn=respawn)

        self.runtime.engine.call_soon(perform)
        return future

    def keep_procs(self, mesh: int, name: str) -> None:
        """Have the procs of a mesh stay when their run ends; blocks until that is done."""
        tenancy = self.tenancies.with_mesh(mesh)
        if tenancy is None:
            raise RuntimeError("these procs were stopped, or are kept already")
        keep_procs(self.runtime, tenancy, mesh, name)

    def end_procs(self, mesh: int, gone: Callable[[], None]) -> None:
        """End the procs of an owner that has ended; *gone* is called when they are gone, or late."""
        self.request_stop(mesh, "its owner ended").add_done_callback(lambda _late: gone())

    def procs(self, mesh: int) -> tuple[str, dict[int, ProcRef]]:
        """The name of a mesh of procs, and its procs by rank."""
        tenancy = self.tenancies.with_mesh(mesh)
        if tenancy is None:
            raise RuntimeError("these procs were stopped, and are in no mesh any more")
        return tenancy.fleet.name_of(mesh), tenancy.fleet.procs_of(mesh)

    def _owner(self, actor: int) -> MeshOwner | None:
        return MeshOwner(self.runtime.own.incarnation, actor) if actor else None

    def choose_logs(self, choice: LogChoice) -> Future[None]:
        """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""
        tenancy = self.tenancies.with_mesh(choice.mesh)
        if tenancy is None:
            future: Future[None] = Future(self.runtime.engine)
            future.set_result(None)  # none of its procs is left
            return future
        return tenancy.logs.choose(choice, tenancy.fleet.hosts_of(choice.mesh))

    # ---- hosts ----

    def allocation(self, name: str | None) -> str:
        """The allocation called *name*; for None the oldest one in use, or a new one."""
        return (self.tenancies.default() if name is None else self.tenancies.named(name)).allocation

    def known_allocation(self, name: str) -> str:
        """The allocation called *name*, which the program uses already.

        Raises:
            AllocationError: it uses none of that name.
        """
        known = {tenancy.name: tenancy.allocation for tenancy in self.tenancies.all()}
        if name not in known:
            raise AllocationError(name, f"the program does not use it; it uses {', '.join(known) or 'none'}")
        return known[name]

    def here(self) -> tuple[str, int]:
        """The allocation and the rank of the host that the program runs on; an embedded one if it is in none.

        In a program outside of its Slurm allocations, e.g. on a login node, the first host of the oldest of them.
        """
        if not self.tenancies.all():
            self.tenancies.default()
        jobs = [tenancy for tenancy in self.tenancies.all() if tenancy.ready.job_id is not None]
        inside = any(tenancy.rank >= 0 for tenancy in self.tenancies.all())
        tenancy = jobs[0] if jobs and not inside else self.tenancies.here()
        return tenancy.allocation, max(tenancy.rank, 0)

    def hosts(self, allocation: str) -> dict[int, HostEntry]:
        """Resources granted on each host of an allocation, by rank."""
        return dict(self._tenancy(allocation).hosts)

    def place(self, allocation: str) -> tuple[Path, str]:
        """The directory of an allocation, and the run there."""
        tenancy = self._tenancy(allocation)
        return tenancy.directory, tenancy.run

    def hosts_in_use(self, allocation: str) -> list[int]:
        """Ranks of the hosts of an allocation that are not spares."""
        tenancy = self._tenancy(allocation)
        return tenancy.absences.in_use(tenancy.hosts)

    def stop_hosts(self, choice: HostChoice, reason: str) -> Future[None]:
        """End the program's procs on hosts; the future fails with `TimeoutError` if a host does not report."""
        future: Future[None] = Future(self.runtime.engine, lambda: "the end of procs")

        def stopped(late: list[str]) -> None:
            if late:
                future.set_exception(TimeoutError(f"procs may still run on {', '.join(late)}: no report in time"))
            else:
                future.set_result(None)

        tenancy = self.tenancies.get(choice.allocation)
        if tenancy is None:
            future.set_result(None)  # it has ended, and its procs with it
        else:
            tenancy.fleet.stop_on(choice.ranks, choice.group, reason, stopped)
        return future

    def shut_down_hosts(self, choice: HostChoice) -> None:
        """End all procs on hosts and give the hosts back; returns when that is done."""
        tenancy = self.tenancies.get(choice.allocation)
        if tenancy is None:
            return
        if tenancy.outlived:
            raise AllocationError(
                tenancy.name, "it outlives this program; stop() ends your procs, 'monarch-hpc release' all of it"
            )
        tenancy.given_up.update(choice.ranks)
        if tenancy.given_up.issuperset(tenancy.hosts):
            self.tenancies.leave(tenancy, "its hosts were shut down")
        else:
            block(self.runtime, self.stop_hosts(HostChoice(choice.allocation, choice.ranks), "its host was shut down"))
            tenancy.dismiss(choice.ranks)

    def grow_hosts(
        self, allocation: str, num_hosts: int | str, options: Sequence[str], timeout_s: float | None
    ) -> list[int]:
        """Take further hosts for an allocation; return their ranks once they have joined."""
        from monarch_hpc.mesh.program.allocations.growing import grow_allocation  # few programs need the Slurm modules

        return grow_allocation(self._tenancy(allocation), num_hosts, options, timeout_s)

    def leave_hosts(self, choice: HostChoice) -> None:
        """End all procs, and give the hosts back unless the allocation outlives this program. Nothing in a fork."""
        if self.runtime.engine.forked_from:
            return  # the procs belong to the parent
        tenancy = self.tenancies.get(choice.allocation)
        if tenancy is not None and tenancy.outlived:
            block(self.runtime, self.stop_hosts(choice, ""))
        else:
            self.shut_down_hosts(choice)

    def _tenancy(self, allocation: str) -> Tenancy:
        tenancy = self.tenancies.get(allocation)
        lost = self.tenancies.why_lost(allocation)
        if tenancy is None and lost:
            raise RuntimeError(f"{lost}; {ANEW}")
        if tenancy is None or tenancy.resting:
            raise RuntimeError(
                "these hosts were shut down, or their allocation has ended: get others, e.g. with hosts()"
            )
        return tenancy

    def explain(self, incarnation: int) -> Future[Death | None]:
        """The death of a proc; None if nothing is known of it."""
        engine = self.runtime.engine
        future: Future[Death | None] = Future(engine)

        def ask() -> None:
            channel = self.runtime.node.channels.get(incarnation)
            if channel is not None and not future.done():
                asked_s = engine.clock()
                channel.probe(int(asked_s * 1e6))
                look(channel, asked_s)

        def look(channel: FrameChannel, asked_s: float) -> None:
            if future.done() or channel.error is not None:
                return
            if channel.received_s > asked_s:
                future.set_result(None)  # alive: only the caller's route to it is cut
            else:
                engine.call_later(_RECHECK_S, lambda: look(channel, asked_s))

        def perform() -> None:
            engine.call_later(_RECHECK_S, ask)
            self._deaths.explain(
                incarnation,
                "",
                lambda died: future.set_result(died.death if isinstance(died, ActorDied) else None),
                lambda _where, _on_cause: future.set_result(None),
            )

        engine.call_soon(perform)
        return future
