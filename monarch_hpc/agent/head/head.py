"""The head: keeps the roster and the runs, and routes control messages between programs and agents.

It interprets messages only as far as routing requires. It does no I/O: links and timers are passed in.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.request_checks import problem_of, problem_of_links, problem_of_run
from monarch_hpc.agent.head.roster import HostRoster
from monarch_hpc.agent.head.runs import OpenWitness, Run, RunMesh, report
from monarch_hpc.agent.head.survey import Surveys
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.lease import Liveness
from monarch_hpc.wire.control.allocation import HostEntry, HostLost, Join, Roster, ShutDown, ShutDownDone, Status
from monarch_hpc.wire.control.calls import Calls, CallsReport, Recording
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import LogsSet, Output, SetLogs
from monarch_hpc.wire.control.procs import (
    ProcEnded,
    ProcLife,
    ProcReady,
    ProcsStopped,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
)
from monarch_hpc.wire.control.refusal import Refused, refuse
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, RunClosed, RunLinks, RunOpened
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["Head"]

_CLOSE_S = 10.0
"""Beyond the procs' own grace, how long agents may take to report that a run's procs are gone."""

_ORPHAN_S = 2.0
"""Time that a run without members waits for its owner, which may attach after a short program has ended."""

_MeshReport = ProcReady | ProcLife | SpawnFailed | ProcEnded | ProcsStopped | Output | LogsSet | Refused
"""Agents' messages about a mesh, for the program or actor that made it."""

_log = Logger(__name__)

Later = Callable[[float, Callable[[], None]], object]


class Head:
    """The roster and the runs of one allocation.

    Args:
        num_hosts: number of agents expected.
        clock: monotonic time in seconds.
        later: runs a callback after a delay in seconds.
        stop_s: seconds between SIGTERM and SIGKILL of procs whose controller is gone.
        changed: called with the usable hosts and the missing ones, once all have joined or the deadline has passed.
        ended: called once shutdown is complete and has been reported.
        open_witness: see `telemetry.observer`.
    """

    def __init__(
        self,
        num_hosts: int,
        clock: Callable[[], float],
        later: Later,
        stop_s: float,
        changed: Callable[[list[HostEntry], dict[int, str]], None],
        ended: Callable[[], None],
        open_witness: OpenWitness,
    ) -> None:
        self._clock = clock
        self._later = later
        self._stop_s = stop_s
        self._changed = changed
        self._ended = ended
        self._open_witness = open_witness
        self._roster = HostRoster(num_hosts)
        self._runs: dict[str, Run] = {}
        self._numbers = itertools.count(1)
        self._surveys = Surveys(later)
        self._past_deadline = False
        self._shutting_down: set[int] | None = None  # hosts that have not reported what is left
        self._over = False
        self._left: dict[str, int] = {}
        self._requesters: list[Link] = []

    # ---- agents ----

    def on_join(self, link: Link, join: Join) -> None:
        """Add an agent to the roster; a second one on the same host is refused."""
        problem = self._roster.join(link, join)
        if problem:
            link.send(Refused("", problem))
            link.close(problem)
            return
        if join.problem:
            _log.warning("%s: %s", join.host.name, join.problem)
        self._announce()

    def on_bootstrap_deadline(self) -> None:
        """Stop waiting for agents; later ones are still added."""
        self._past_deadline = True
        self._announce()

    def on_life(self, link: Link, life: Liveness) -> None:
        """Record the liveness of an agent."""
        slot = self._roster.of(link)
        if slot is not None:
            slot.life = life

    def on_agent(self, link: Link, message: Message) -> None:
        """Handle or forward an agent's message."""
        slot = self._roster.of(link)
        if slot is None:
            return
        match message:
            case CallsReport():
                self._surveys.take(link, message)
            case RunClosed():
                self._closed_on(message.run, slot.entry.rank)
            case ShutDownDone():
                self._left.update(message.left)
                if self._shutting_down is None:
                    link.close("it was told to leave")
                self._shut_down_on(slot.entry.rank)
            case ProcReady() | ProcLife() | SpawnFailed() | ProcEnded() | ProcsStopped() | Output() | LogsSet():
                self._to_controller(message)
            case Refused():
                self._surveys.refuse(link, message)
                self._to_controller(message)
            case _:
                _log.warning("%s sent %s, which the head does not handle", slot.entry.name, type(message).__name__)

    def on_agent_lost(self, link: Link, cause: str) -> int | None:
        """Handle the loss of an agent, its host or its link; return the host's rank if the agent was on the roster."""
        slot = self._roster.of(link)
        if slot is None:
            return None
        slot.link, slot.life, slot.cause = None, Liveness.DEAD, cause
        self._surveys.lose(link)
        rank = slot.entry.rank
        if self._shutting_down is None:
            _log.warning("lost %s: %s", slot.entry.name, cause)
        for name, run in list(self._runs.items()):
            for member in run.members:
                member.send(HostLost(name, rank, cause))
            for number, mesh in list(run.meshes.items()):
                mesh.alive = {proc: host for proc, host in mesh.alive.items() if host != rank}
                mesh.suspect &= mesh.alive.keys()
                self._stopped_on(run, number, rank)
            self._closed_on(name, rank)
        self._shut_down_on(rank)
        return rank

    # ---- controllers and tools ----

    def on_client(self, link: Link, message: Message) -> None:
        """Handle or forward a request of a controller or a tool."""
        match message:
            case OpenRun():
                self._open(link, message)
            case SpawnProcs():
                self._spawn(link, message)
            case StopProcs():
                self._stop(link, message)
            case SetLogs():
                self._set_logs(link, message)
            case CloseRun():
                run = self._runs.get(message.run)
                if run is None:
                    link.send(RunClosed(message.run))
                else:
                    if link not in run.members:
                        run.members.append(link)
                    self._close(message.run, message.exit_code)
            case RunLinks() if problem := problem_of_links(message.links):
                link.send(refuse(message, problem))
            case RunLinks() | Recording():
                run = self._runs.get(message.run)
                if run is not None and link in run.members:
                    run.note(link, message)
            case Calls():
                self._survey(link, message)
            case CallsReport():
                self._surveys.take(link, message)
            case Status():
                link.send(report(self._roster, self._runs, self._clock()))
            case ShutDown():
                self.shut_down(message.grace_s, link)
            case _:
                link.send(refuse(message, f"the head does not handle {type(message).__name__}"))

    def on_client_lost(self, link: Link, cause: str) -> None:
        """Handle the loss of a controller or tool: stop its procs; if it owned a run, close the run."""
        if link in self._requesters:
            self._requesters.remove(link)
        self._surveys.lose(link)
        for name, run in list(self._runs.items()):
            if link not in run.members:
                continue
            run.forget(link)
            if link is run.owner:
                _log.info("run %s: its controller is gone: %s", name, cause)
                self._close(name, -1)
                continue
            for number, mesh in list(run.meshes.items()):
                if mesh.link is link:
                    self._roster.send(mesh.hosts, StopProcs(name, number, sorted(mesh.hosts), self._stop_s))
            if run.owner is None and not run.members:
                self._later(_ORPHAN_S, partial(self._close_orphan, name, run))

    def shut_down(self, grace_s: float, requester: Link | None) -> None:
        """End all procs; report to *requester* the number of processes left by host, -1 where it is unknown."""
        if requester is not None:
            self._requesters.append(requester)
        if self._shutting_down is not None:
            return
        self._shutting_down = self._roster.linked()
        self._later(grace_s + _CLOSE_S, self._on_shutdown_deadline)
        self._roster.send(set(self._shutting_down), ShutDown(grace_s))
        self._shut_down_on(-1)

    def owns(self, link: Link) -> bool:
        """Tell whether *link* belongs to the owner of a run."""
        return any(run.owner is link for run in self._runs.values())

    def _survey(self, requester: Link, question: Calls) -> None:
        slots = self._roster.all()
        asked = {slot.link: f"host {slot.entry.name}" for slot in slots if slot.link is not None}
        for name, run in self._runs.items():
            asked.update(dict.fromkeys(run.unobserved(), f"the program of run {name}"))
        known = (calls for run in self._runs.values() for calls in run.observed())
        missing = [f"host {slot.entry.name}" for slot in slots if slot.link is None]
        self._surveys.begin(requester, question, asked, known, missing)

    # ---- runs ----

    def _open(self, link: Link, message: OpenRun) -> None:
        run, problem = self._runs.get(message.run), problem_of_run(message.run)
        if self._shutting_down is not None:
            problem = "the allocation is being released"
        elif run is not None and run.closing is not None:
            problem = f"run {message.run} is over"
        if problem:
            link.send(refuse(message, problem))
            return
        number = next(self._numbers)
        if run is None:
            run = self._runs[message.run] = Run(message, self._clock(), number, self._open_witness)
        if message.owner:
            if run.owner is not None and run.owner is not link:
                # It may only be cut off, and would otherwise resume control when it reconnects. The later owner wins.
                run.epoch = number
                for member in run.members:
                    member.close(f"another controller has taken over run {message.run}")
            run.take_over(link, message)
        if link not in run.members:
            run.members.append(link)
        link.send(RunOpened(message.run, run.epoch, number, self._roster.hosts()))

    def _spawn(self, link: Link, message: SpawnProcs) -> None:
        if problem := problem_of(message):
            link.send(refuse(message, problem))
            return
        run = self._runs.get(message.run)
        problem = "" if run is not None and link in run.members and run.closing is None else "the run is over"
        if run is not None and message.mesh in run.meshes:
            problem = f"mesh {message.mesh} exists already in this run"
        present = {rank for rank in message.hosts if not problem and self._roster.usable(rank)}
        for rank, first in zip(message.hosts, message.first_rank, strict=True):
            if rank not in present:
                cause = problem or self._roster.absence(rank)
                for mesh_rank in range(first, first + message.per_host):
                    link.send(SpawnFailed(ProcKey(message.run, message.mesh, mesh_rank, rank), cause, []))
        if run is not None and not problem:
            run.meshes[message.mesh] = RunMesh(link, set(present))
            self._roster.send(present, message)

    def _stop(self, link: Link, message: StopProcs) -> None:
        run = self._runs.get(message.run)
        mesh = run.meshes.get(message.mesh) if run is not None else None
        present = {rank for rank in message.hosts if mesh is not None and self._roster.usable(rank)}
        for rank in message.hosts:
            if rank not in present:
                link.send(ProcsStopped(message.run, message.mesh, rank))
        self._roster.send(present, message)

    def _close(self, name: str, exit_code: int) -> None:
        run = self._runs[name]
        if run.closing is not None:
            return
        run.closing = self._roster.linked()
        self._roster.send(set(run.closing), CloseRun(name, exit_code))
        self._later(self._stop_s + _CLOSE_S, partial(self._on_close_deadline, name, run))
        self._closed_on(name, -1)

    def _close_orphan(self, name: str, run: Run) -> None:
        if self._runs.get(name) is run and not run.members:
            self._close(name, -1)

    def _on_close_deadline(self, name: str, run: Run) -> None:
        if self._runs.get(name) is run:
            left = [self._roster.name(rank) for rank in sorted(run.closing or ())]
            _log.warning("run %s: procs may be left on %s", name, ", ".join(left))
            run.closing = set()
            self._closed_on(name, -1)

    def _closed_on(self, name: str, rank: int) -> None:
        run = self._runs.get(name)
        if run is None or run.closing is None:
            return
        run.closing.discard(rank)
        if not run.closing:
            self._runs.pop(name).close()
            for member in run.members:
                member.send(RunClosed(name))

    def _set_logs(self, link: Link, message: SetLogs) -> None:
        run = self._runs.get(message.run)
        mesh = run.meshes.get(message.mesh) if run is not None else None
        ours = mesh is not None and mesh.link is link
        present = {rank for rank in message.hosts if ours and self._roster.usable(rank)}
        for rank in message.hosts:
            if rank not in present:
                link.send(LogsSet(message.run, message.mesh, rank, message.number))
        self._roster.send(present, message)

    def _to_controller(self, message: _MeshReport) -> None:
        run = self._runs.get(message.run)
        mesh = run.meshes.get(message.mesh) if run is not None else None
        if run is None or mesh is None:
            return
        match message:
            case ProcReady():
                mesh.alive[message.proc.rank] = message.proc.host
            case ProcLife():
                mesh.suspect.discard(message.proc.rank)
                if message.life == Liveness.SUSPECT.value and message.proc.rank in mesh.alive:
                    mesh.suspect.add(message.proc.rank)
            case SpawnFailed() | ProcEnded():
                mesh.alive.pop(message.proc.rank, None)
                mesh.suspect.discard(message.proc.rank)
                for output in run.take_dropped(message):
                    mesh.link.send(output)
            case ProcsStopped():
                self._stopped_on(run, message.mesh, message.host)
            case Output():
                passed = run.pass_on(message, self._clock(), backlogged=mesh.link.backlogged)
                if passed is None:
                    return
                message = passed
        mesh.link.send(message)

    @staticmethod
    def _stopped_on(run: Run, mesh: int, rank: int) -> None:
        run.meshes[mesh].hosts.discard(rank)
        if not run.meshes[mesh].hosts:
            del run.meshes[mesh]

    # ---- the end ----

    def _shut_down_on(self, rank: int) -> None:
        if self._shutting_down is None:
            return
        self._shutting_down.discard(rank)
        if not self._shutting_down and not self._over:
            self._over = True
            for requester in self._requesters:
                requester.send(ShutDownDone(self._left))
            self._ended()

    def _on_shutdown_deadline(self) -> None:
        for rank in list(self._shutting_down or ()):
            self._left.setdefault(self._roster.name(rank), -1)  # no report
            self._shut_down_on(rank)

    # ---- the roster ----

    def _announce(self) -> None:
        missing = self._roster.missing()
        if missing and not self._past_deadline:
            return
        hosts = self._roster.hosts()
        self._changed(hosts, missing)
        self._roster.send([host.rank for host in hosts], Roster(hosts))
