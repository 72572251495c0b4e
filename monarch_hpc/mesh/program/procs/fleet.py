"""The meshes of procs that a program has started, for itself and for actors, from their start to their end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, replace
from functools import partial

from monarch_hpc.actor.messages.incarnations import CurrentProcs, Incarnations
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.config.schema import ProcsConfig
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SpawnError, TransportError
from monarch_hpc.core.ids import mesh_number
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.healing.revivals import Revivals
from monarch_hpc.mesh.plan import MeshOwner, Outcome, ProcPlan, Started
from monarch_hpc.mesh.program.procs.orders import spawn_order
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import SpawnProcs, StopProcs

__all__ = ["Fleet"]

_REPORT_S = 5.0
"""Time that a host has, beyond its own deadline, to report that it is done."""

_Stopped = Callable[[list[str]], None]
"""Called when no proc is left, with the names of the hosts that have not reported that in time."""


@dataclass(slots=True, eq=False)
class _MeshState:
    number: int
    plan: ProcPlan
    owner: MeshOwner | None
    done: Callable[[Outcome], None] | None
    procs: CurrentProcs
    latest: dict[int, int] = field(default_factory=dict)  # rank -> incarnation of the last proc that has started
    num_reached: int = 0
    reason: str = ""
    stopping: set[int] | None = None  # hosts that have not yet reported that no proc is left; None if not stopping
    parting: list[tuple[set[int], _Stopped]] = field(default_factory=list)  # parts of the mesh that are stopped
    stopped: list[_Stopped] = field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        return len(self.plan.hosts) * self.plan.per_host


_KEEP_DEAD = 4096
"""Dead procs that are remembered, to refuse late requests of their actors; those arrive within seconds."""

_KEEP_NAMES = 1024
"""Mesh names that are remembered, for lines that arrive after the end of their mesh; likewise within seconds."""


class Fleet:
    """Keeps the meshes of procs by number. `start` and `stop` may be called on any thread, all else on the driver.

    Args:
        incarnations: the tables of current procs, which the fleet writes as procs start.
        send: sends a message to the head.
        numbers: numbers the meshes; shared by all fleets of a program, whose meshes have different numbers therefore.
        revivals: bring dead procs back.
    """

    def __init__(
        self,
        engine: Engine,
        run: str,
        config: ProcsConfig,
        incarnations: Incarnations,
        send: Callable[[Message], None],
        numbers: Iterator[int],
        revivals: Revivals,
    ) -> None:
        self._revivals = revivals
        self._incarnations = incarnations
        self._engine = engine
        self.run = run
        self._config, self.stop_s = config, config.stop_s
        self._send = send
        self._numbers = numbers
        self._meshes: dict[int, _MeshState] = {}
        self._procs: dict[int, ProcRef] = {}  # the last one of each rank of all meshes, by incarnation
        self._over = ""
        self._dead: Recent[int, bool] = Recent(_KEEP_DEAD)
        self._names: Recent[int, str] = Recent(_KEEP_NAMES)
        self.member = 0
        """This program's number in the run, from which the numbers of its meshes are made."""
        self.hosts: dict[int, HostEntry] = {}

    # ---- requests ----

    def start(self, plan: ProcPlan, owner: MeshOwner | None, done: Callable[[Outcome], None]) -> int:
        """Start procs; return the number of their mesh.

        *done* is called on the driver when all of them answer, or the start failed and none is left.
        """
        number = mesh_number(self.member, next(self._numbers))
        self._engine.call_soon(lambda: self._start(number, plan, owner, done))
        return number

    def stop(self, mesh: int, reason: str, stopped: _Stopped) -> None:
        """End all procs of *mesh*; *stopped* is called on the driver."""
        self._engine.call_soon(lambda: self._stop(mesh, reason, stopped))

    def stop_all(self, reason: str, stopped: _Stopped) -> None:
        """End all procs; *stopped* is called on the driver."""
        self.stop_on(tuple(self.hosts), 0, reason, stopped)

    def stop_on(self, hosts: Collection[int], group: int, reason: str, stopped: _Stopped) -> None:
        """End the procs on *hosts* that were started through *group*, or all of them for 0."""

        def perform() -> None:
            found = [(mesh, set(mesh.plan.hosts).intersection(hosts)) for mesh in self._meshes.values()]
            chosen = [(mesh, part) for mesh, part in found if part and group in (0, mesh.plan.group)]
            late, left = list[str](), {mesh.number for mesh, _ in chosen}

            def one(number: int, names: list[str]) -> None:
                left.discard(number)
                late.extend(name for name in names if name not in late)
                if not left:
                    stopped(late)

            for mesh, part in chosen:
                if mesh.done is None and mesh.stopping is None and part < set(mesh.plan.hosts):
                    self._stop_part(mesh, part, reason, partial(one, mesh.number))
                else:
                    self._stop(mesh.number, reason, partial(one, mesh.number))
            if not chosen:
                stopped([])

        self._engine.call_soon(perform)

    def _stop_part(self, mesh: _MeshState, hosts: set[int], reason: str, stopped: _Stopped) -> None:
        part = hosts, stopped
        mesh.parting.append(part)
        mesh.reason = reason
        grace_s = self._config.stop_s

        def give_up() -> None:
            if part in mesh.parting:
                mesh.parting.remove(part)
                stopped([self.hosts[host].name for host in sorted(hosts)])

        self._engine.call_later(grace_s + _REPORT_S, give_up)
        try:
            self._send(StopProcs(self.run, mesh.number, sorted(hosts), grace_s))
        except TransportError:
            give_up()  # without the head the procs end by themselves

    def _start(self, number: int, plan: ProcPlan, owner: MeshOwner | None, done: Callable[[Outcome], None]) -> None:
        config = self._config
        if self._over:
            done(SpawnError("the allocation", self._over))
            return
        if owner is not None and owner.proc in self._dead:
            done(SpawnError("its hosts", "the proc of its owner has ended"))
            return
        mesh = self._meshes[number] = _MeshState(number, plan, owner, done, self._incarnations.of(number, {}))
        self._names[number] = plan.name
        self._engine.call_later(config.start_s + _REPORT_S, lambda: self._give_up(mesh))
        try:
            self._send(spawn_order(self.run, number, plan, config))
        except (OSError, TransportError) as error:
            self._fail(mesh, SpawnError("any host", f"the request could not be sent: {error}"))
        except Exception as error:  # noqa: BLE001 any process may have made the plan; its caller must not wait in vain
            cause = f"the request could not be sent: {summary_of(error)}"
            self._fail(mesh, SpawnError("any host", cause))

    def order_again(self, proc: ProcRef, restarts: int) -> None:
        """Order a proc in place of a dead one, on its host or on the one that has taken its place.

        Args:
            restarts: the number of earlier procs of its rank.

        Raises:
            SpawnError: it is one of several tasks of an MPI step.
            TransportError: the request could not be sent.
        """
        mesh = self._meshes[proc.mesh]
        if mesh.plan.mpi:
            raise SpawnError(proc.host, "procs for MPI start together, as the tasks of one step")
        first = proc.rank // mesh.plan.per_host * mesh.plan.per_host
        order, host, rank = spawn_order(self.run, mesh.number, mesh.plan, self._config), self.place_of(proc), proc.rank
        self._send(replace(order, hosts=[host], first_rank=[first], ranks=[rank], restarts=restarts))

    def move(self, number: int, places: Mapping[int, int]) -> None:
        """Let the dead procs of a mesh come back on other hosts: *places* has those, by rank of the lost ones."""
        mesh = self._meshes[number]
        mesh.plan = replace(mesh.plan, hosts=tuple(places.get(host, host) for host in mesh.plan.hosts))

    def place_of(self, proc: ProcRef) -> int:
        """The rank of the host where a proc is, or comes back if it is dead."""
        plan = self._meshes[proc.mesh].plan
        return plan.hosts[proc.rank // plan.per_host]

    def _give_up(self, mesh: _MeshState) -> None:
        if mesh.done is not None:
            missing = next((rank for rank in range(mesh.num_ranks) if rank not in mesh.procs), 0)
            host = self.hosts[mesh.plan.hosts[missing // mesh.plan.per_host]].name
            cause = f"its agent did not report within {self._config.start_s + _REPORT_S:.0f} s"
            self._fail(mesh, SpawnError(host, cause))

    def _fail(self, mesh: _MeshState, failure: SpawnError) -> None:
        """Fail the start of *mesh*, once the procs that did start have ended."""
        done, mesh.done = mesh.done, None
        if done is not None:
            self._stop(mesh.number, "others did not start", lambda _late: done(failure))

    def _stop(self, number: int, reason: str, stopped: _Stopped) -> None:
        mesh = self._meshes.get(number)
        if mesh is None:
            stopped([])
            return
        mesh.stopped.append(stopped)
        done, mesh.done = mesh.done, None
        if done is not None:
            failure = SpawnError("its hosts", f"it was stopped while it started{reason and f': {reason}'}")
            mesh.stopped.append(lambda _late: done(failure))
        if mesh.stopping is not None:
            return
        self._revivals.forget(number, f"it was stopped{reason and f': {reason}'}")
        mesh.reason = reason
        mesh.stopping = set(mesh.plan.hosts)
        grace_s = self._config.stop_s
        self._engine.call_later(grace_s + _REPORT_S, lambda: self._forget(mesh))
        try:
            self._send(StopProcs(self.run, number, list(mesh.plan.hosts), grace_s))
        except TransportError:
            mesh.stopping.clear()  # without the head the procs end by themselves
            self._forget(mesh)

    def orders_in_doubt(self) -> list[SpawnProcs]:
        """The orders to start meshes that have not started yet, for agents that have not had them."""
        starting = [mesh for mesh in self._meshes.values() if mesh.done is not None and mesh.stopping is None]
        return [replace(spawn_order(self.run, each.number, each.plan, self._config), again=True) for each in starting]

    def stops(self) -> list[StopProcs]:
        """The orders to end meshes, or parts of them, that are not carried out yet."""
        ending = [(mesh.number, mesh.stopping) for mesh in self._meshes.values() if mesh.stopping]
        ending += [(mesh.number, hosts) for mesh in self._meshes.values() for hosts, _ in mesh.parting]
        return [StopProcs(self.run, number, sorted(hosts), self._config.stop_s) for number, hosts in ending]

    def _forget(self, mesh: _MeshState) -> None:
        if self._meshes.pop(mesh.number, None) is None:
            return
        self._revivals.forget(mesh.number, self._over or "it was stopped")
        for incarnation in mesh.latest.values():
            self._procs.pop(incarnation, None)
        late = [self.hosts[host].name for host in sorted(mesh.stopping or ())]
        for stopped in [*mesh.stopped, *(stopped for _, stopped in mesh.parting)]:
            stopped(late)

    # ---- events ----

    def on_ready(self, proc: ProcRef) -> bool:
        """Handle the report that a proc runs; return whether it must be dialled: it starts, or replaces one."""
        mesh = self._meshes.get(proc.mesh)
        starts = mesh is not None and mesh.done is not None
        if mesh is None or not (starts or self._revivals.expects(proc)):
            return False
        if starts:
            mesh.procs.put(proc.rank, proc)  # one that replaces another becomes the current one when it is prepared
        self._procs.pop(mesh.latest.get(proc.rank, 0), None)
        mesh.latest[proc.rank] = proc.incarnation
        self._procs[proc.incarnation] = proc
        return True

    def on_reached(self, proc: ProcRef) -> None:
        """Handle an open channel to a proc."""
        mesh = self._meshes.get(proc.mesh)
        if mesh is None or mesh.done is None:
            self._revivals.on_reached(proc)
            return
        mesh.num_reached += 1
        if mesh.num_reached == mesh.num_ranks:
            done, mesh.done = mesh.done, None
            self._revivals.watch(mesh.number, mesh.plan.restart)
            done(Started(mesh.number, mesh.procs))

    def on_failed(self, number: int, failure: SpawnError, rank: int | None = None) -> None:
        """Handle the failure of a proc to start, or to be reached; None for all of a mesh."""
        mesh = self._meshes.get(number)
        if mesh is not None:
            self._fail(mesh, failure)
        if rank is not None:
            self._revivals.on_failed(number, rank, failure.cause, failure.last_lines)

    def on_stopped(self, number: int, host: int) -> None:
        """Handle the report that a host has no proc of the mesh left."""
        mesh = self._meshes.get(number)
        for part in list(mesh.parting) if mesh is not None else ():
            part[0].discard(host)
            if not part[0] and mesh is not None:
                mesh.parting.remove(part)
                part[1]([])
        if mesh is not None and mesh.stopping is not None:
            mesh.stopping.discard(host)
            if not mesh.stopping:
                self._forget(mesh)

    def on_not_stopped(self, number: int) -> None:
        """Handle the refusal to stop a mesh: there will be no report of its end."""
        mesh = self._meshes.get(number)
        if mesh is not None and mesh.stopping is not None:
            self._forget(mesh)

    def on_host_lost(self, host: int, cause: str) -> None:
        """Handle the loss of a host, and with it of all its procs."""
        self._revivals.on_host_lost(host, f"host {self.hosts[host].name} is lost: {cause}", self.place_of)
        for mesh in list(self._meshes.values()):
            if host in mesh.plan.hosts:
                self._fail(mesh, SpawnError(self.hosts[host].name, f"the host is lost: {cause}"))
                self.on_stopped(mesh.number, host)

    def on_head_lost(self, cause: str) -> None:
        """Handle the loss of the head: no more reports arrive, and no proc can be started."""
        self._over = cause
        for mesh in list(self._meshes.values()):
            done, mesh.done = mesh.done, None
            mesh.stopping = set()
            self._forget(mesh)
            if done is not None:
                done(SpawnError("the allocation", cause))

    def on_death(self, incarnation: int) -> None:
        """Handle the death of a proc: end the meshes that its actors started."""
        self._dead[incarnation] = True
        for mesh in list(self._meshes.values()):
            if mesh.owner is not None and mesh.owner.proc == incarnation:
                self._stop(mesh.number, "the proc of its owner has ended", lambda _late: None)

    def owner_of(self, number: int) -> MeshOwner | None:
        """The actor to report a death in mesh *number* to; None while it starts or stops, or if the program owns it."""
        mesh = self._meshes.get(number)
        return None if mesh is None or mesh.done is not None or mesh.stopping is not None else mesh.owner

    def is_ending(self, incarnation: int) -> bool:
        """Whether a proc was asked to end, and its host has not reported yet that none is left; from any thread."""
        proc = self._procs.get(incarnation)
        mesh = None if proc is None else self._meshes.get(proc.mesh)
        if proc is None or mesh is None:
            return False
        return any(proc.host_rank in hosts for hosts in (mesh.stopping or (), *(part for part, _ in mesh.parting)))

    def name_of(self, number: int) -> str:
        """The name of a mesh; also for a while after its end, when its last lines may arrive."""
        return self._names.get(number) or ""

    def procs_of(self, number: int) -> dict[int, ProcRef]:
        """The procs of a mesh by rank; empty after its end."""
        mesh = self._meshes.get(number)
        return {} if mesh is None else dict(mesh.procs)

    def request_of(self, number: int) -> tuple[ProcPlan, MeshOwner | None]:
        """The plan of a mesh that has procs, and the actor that has requested it; None for the program."""
        return self._meshes[number].plan, self._meshes[number].owner

    def adopt(self, number: int, plan: ProcPlan, owner: MeshOwner | None, procs: Mapping[int, ProcRef]) -> CurrentProcs:
        """Take over a mesh that another program has started; return the table of its procs."""
        mesh = _MeshState(number, plan, owner, None, self._incarnations.of(number, procs))
        mesh.latest = {rank: proc.incarnation for rank, proc in procs.items()}
        self._meshes[number], self._names[number] = mesh, plan.name
        self._procs.update((proc.incarnation, proc) for proc in procs.values())
        self._revivals.watch(number, plan.restart)
        return mesh.procs

    def release(self, number: int) -> None:
        """Let go of a mesh that has started: its procs stay, and nothing here ends them."""
        self._forget(self._meshes[number])

    def has(self, number: int) -> bool:
        """Whether a mesh may still have procs."""
        return number in self._meshes

    def meshes(self) -> list[tuple[int, tuple[int, ...]]]:
        """The meshes that may have procs: number and ranks of hosts; from any thread."""
        return [(number, mesh.plan.hosts) for number, mesh in list(self._meshes.items())]

    def hosts_of(self, number: int) -> tuple[int, ...]:
        """Ranks of the hosts that may have procs of a mesh."""
        mesh = self._meshes.get(number)
        return mesh.plan.hosts if mesh is not None else ()

    def ends_with_policy(self, number: int) -> bool:
        """Whether a mesh with a restart policy is being stopped: a death there is not reported."""
        mesh = self._meshes.get(number)
        return mesh is not None and mesh.stopping is not None and mesh.plan.restart is not None

    def reason(self, number: int) -> str:
        """The reason given for stopping a mesh; may be empty."""
        mesh = self._meshes.get(number)
        return mesh.reason if mesh is not None else ""
