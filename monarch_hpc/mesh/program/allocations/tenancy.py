"""A program's use of one allocation: its run there, the hosts, the meshes of procs on them, and their deaths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from monarch_hpc.actor.fault import end_taken_over
from monarch_hpc.actor.kept.takes import Takes
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.attach.attach import join
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import AllocationError, SpawnError, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.place import read_place
from monarch_hpc.mesh.output.choice import LogRequests
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.mesh.plan import MeshOwner
from monarch_hpc.mesh.program.allocations.absences import HostAbsences
from monarch_hpc.mesh.program.allocations.link_report import LinkReport, summarize
from monarch_hpc.mesh.program.allocations.links import Links
from monarch_hpc.mesh.program.allocations.opening import Opened, find_own_rank, open_slurm_query
from monarch_hpc.mesh.program.allocations.own_tables import own_tables
from monarch_hpc.mesh.program.allocations.retelling import Unsent, opening, retell
from monarch_hpc.mesh.program.kept.requests import make_kept
from monarch_hpc.mesh.program.procs.announcements import Announcements
from monarch_hpc.mesh.program.procs.death_reports import DeathReports, calls_of, cause_of
from monarch_hpc.mesh.program.procs.deaths import Deaths
from monarch_hpc.mesh.program.procs.fleet import Fleet
from monarch_hpc.mesh.program.procs.replacing import make_revivals
from monarch_hpc.mesh.program.takeover.roll import Roll, ref_of
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.allocation import AllocationEnds, HostEnded, HostEntry, HostReturned, HostStillLost
from monarch_hpc.wire.control.deadline import DeadlineNear, JobEnd
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import LogsSet, Output
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, SpawnFailed
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import TAKEN_OVER, OpenRun, Recording, RunLinks, RunOpened
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.serializer import dumps
from monarch_hpc.wire.tables.answer import answer

__all__ = ["Tenancy"]

_log = Logger(__name__)


class Tenancy:
    """The program's run on one allocation. Messages and losses are handled on the driver.

    Args:
        runtime: the program's runtime.
        opened: the allocation; its resources are closed by `release`.
        printer: shows the output of procs.
        deaths: causes of death, of all allocations.
        links: the links to other allocations.
        announcements: tell procs of those that replace others.
        numbers: numbers the meshes of the program.
        record_fd: the memory that the program records into.
        changed: called when procs were reached or are gone.
        died: called with the incarnation of each proc that has ended.
        on_deadline: called with the head's messages about the end of its job.

    Attributes:
        allocation: the allocation's id.
        name: the allocation's name, for people.
        rank: rank of the host that the program runs on; -1 outside the allocation.
        over: why no proc can be started any more; empty while it can.
        outlives: whether the allocation was made by others, and lives on without this program.
        resting: whether its hosts were shut down, and the next use of the allocation takes them again: a process that
            has detached is fenced, and could not attach again.
        given_up: ranks of hosts that were shut down.
        keeps: whether procs keep their answers until the program has read them, because they may outlive it.
        kept_bytes: config key `run.kept_bytes`; *start_s* likewise `procs.start_s`.
        roll: the procs of the run that the program takes over; None if it takes none over.
        absences: hosts that are lost, and spares.
        dismiss: called with the ranks of hosts that are given back, to end workers that were started by hand.
    """

    def __init__(
        self,
        runtime: Runtime,
        opened: Opened,
        printer: Printer,
        deaths: Deaths,
        links: Links,
        announcements: Announcements,
        numbers: Iterator[int],
        record_fd: int,
        changed: Callable[[], None],
        died: Callable[[int], None],
        on_deadline: Callable[[Tenancy, JobEnd | DeadlineNear], None],
    ) -> None:
        engine, config = runtime.engine, opened.config
        self.directory = opened.directory
        self.name = opened.name or name_of(opened.directory)
        self.ready = check_allocation(opened.directory)
        self.allocation = self.ready.allocation
        self.run = opened.run
        self.resources = opened.resources
        self.outlives = opened.outlives
        self.outlived = opened.outlives and self.ready.job_id is not None
        self.rank, self.over, self.resting = -1, "", False
        self.given_up: set[int] = set()
        self.dismiss: Callable[[Collection[int]], None] = lambda _ranks: None
        self.procs: dict[ProcKey, ProcRef] = {}
        self.absences = HostAbsences(len(self.ready.hosts) + len(self.ready.missing), config.heal.spare_hosts)
        self._reports = reports = DeathReports(runtime, deaths, lambda: self.fleet, self._place)
        self.revivals = make_revivals(
            runtime, deaths, config.procs.start_s, announcements, lambda: self.fleet, self.absences, reports.tell
        )
        self.fleet = Fleet(engine, self.run, config.procs, runtime.incarnations, self.send, numbers, self.revivals)
        self.kept = make_kept(engine, self.name, self.allocation, self.fleet, self.procs, self.send, self._on_ended)
        self.heal_s, self.poison_lives = config.procs.heal_s, config.procs.poison_lives
        self.logs = LogRequests(self.run, config.logs, engine, printer, self.send)
        self.head: FrameChannel | None = None
        self._runtime = runtime
        self._owner = opened.owner
        self._opened_for = opened
        self.kept_bytes, self.start_s = config.run.kept_bytes, config.procs.start_s
        self.keeps = opened.on_loss != "stop"
        self.roll = Roll(engine) if opened.takes else None
        self._hold_s = config.run.hold_s
        self._answer_s = config.transport.connect_s
        self._printer, self._deaths, self._links, self._announcements = printer, deaths, links, announcements
        self._record_fd, self._changed, self._died, self._on_deadline = record_fd, changed, died, on_deadline
        self._report = LinkReport(engine.call_later, self._summarize, self._send_links)
        self._opened = Flag(engine)
        self._refusal = ""
        self._ending: Death | None = None
        self._slurm = open_slurm_query(engine, self.ready.job_id, opened.directory)
        self._epoch = 0
        self._unsent = Unsent()

    @property
    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        return self.fleet.hosts

    def open(self) -> None:
        """Attach to the head, and open the run.

        Raises:
            AllocationError: the head refuses the run or this process, or does not answer.
            TransportError: the head cannot be reached.
        """
        node, here = self._runtime.node, os.uname().nodename
        self.head = join(node, self.directory).channel
        try:
            self.send(self._opening())
            if not self._opened.wait(self._answer_s) or self._refusal:
                raise AllocationError(self.name, self._refusal or "its head agent does not answer")
            self.send(self._recording())
        except BaseException as error:
            node.leave(self.allocation, "the run could not be opened")
            if isinstance(error, TransportError):
                raise AllocationError(self.name, f"its head agent ended the connection: {error}") from error
            raise
        names = {self._runtime.own.host, self._runtime.info.host, here, here.partition(".")[0]}
        self.rank = find_own_rank(self.ready, self.hosts, names)

    def _opening(self) -> OpenRun:
        return opening(self.run, self._owner, self._opened_for.on_loss, self._hold_s, self._opened_for.takes)

    def send(self, message: Message) -> None:
        """Send a message to the head.

        Raises:
            TransportError: the channel is closed.
        """
        assert self.head is not None, "open() comes first"
        if not self._unsent.keep(message):
            self.head.send(Frame(Kind.CONTROL, body=encode(message)))

    def _recording(self) -> Recording:
        incarnation = f"{self._runtime.node.identity.incarnation:x}"
        return Recording(self.run, read_place(), os.uname().nodename, os.getpid(), self._record_fd, incarnation)

    def be_headless(self) -> None:
        """Keep messages for the head of the next term. On the driver."""
        self._unsent.begin()

    def follow(self, ready: Ready, head: FrameChannel) -> None:
        """Tell the head of a later term of the run. On the driver."""
        self.ready, self.head = ready, head
        with contextlib.suppress(TransportError):  # its end is reported
            again = replace(self._opening(), epoch=self._epoch, member=self.fleet.member, takes=0)
            for message in [*retell(self.fleet, again, self._recording(), self._unsent.end()), *self.kept.again()]:
                self.send(message)
        self._report.changed()

    def stop_procs(self, cause: str) -> None:
        """End all procs; returns when none is left."""
        ended = Flag(self._runtime.engine)
        self.fleet.stop_all(cause, lambda _late: ended.set())
        ended.wait()

    def end(self, cause: str) -> None:
        """End all procs, and leave the allocation; returns when no proc is left."""
        self.stop_procs(cause)
        self.over = self.over or cause
        self._runtime.node.leave(self.allocation, cause)

    def _summarize(self) -> list[dict[str, object]]:
        self._changed()
        return summarize(self.procs.values(), self._runtime.node.channels)

    def _send_links(self, links: list[dict[str, object]]) -> None:
        with contextlib.suppress(TransportError):
            self.send(RunLinks(self.run, links))

    # ---- events from the head and the procs ----

    def on_control(self, message: Message) -> None:
        """Handle a message of the head."""
        if self.kept.take(message) or (self.roll is not None and self.roll.take(message)):
            return
        match message:
            case RunOpened():
                self.fleet.hosts |= {host.rank: host for host in message.hosts}
                self.absences.end_all(host.rank for host in message.hosts)
                self.fleet.member, self._epoch = message.member, message.epoch
                self._runtime.node.set_epoch(message.epoch, self.allocation)
                self._opened.set()
            case ProcReady():
                self._on_ready(message)
            case SpawnFailed():
                host = self.hosts[message.proc.host].name
                failure = SpawnError(host, message.cause, message.last_lines)
                self.fleet.on_failed(message.mesh, failure, message.proc.rank)
            case ProcEnded():
                self._on_ended(message)
            case ProcLife():
                self._printer.put_life(message, self.hosts[message.proc.host].name)
            case ProcsStopped():
                self.fleet.on_stopped(message.mesh, message.host)
                self.logs.forget(message.host, message.mesh)
                if not self.fleet.has(message.mesh):
                    self._printer.forget(message.mesh)
            case AllocationEnds():
                self._ending = Death(DeathKind.parse(message.kind), message.cause)
            case HostEnded():
                told = self.absences.is_lost(message.host)  # by the head of an earlier term
                if self.absences.lose(message, self.hosts.get(message.host)):
                    self._on_host_lost(message.host, message.cause, DeathKind.parse(message.kind), told=told)
            case HostReturned():
                self._on_host_returned(message.host)
            case HostStillLost():
                self.absences.give_up(message.host, message.cause)
            case Ask():
                portion = answer(message, f"the program of run {self.run}", own_tables(self._runtime, self.run))
                self.send(Rows(message.ticket, [portion], [], []))
            case Output():
                self._printer.show(message, self.fleet.name_of(message.mesh), self.hosts[message.proc.host].name)
            case LogsSet():
                self.logs.on_set(message)
            case JobEnd() | DeadlineNear():
                self._on_deadline(self, message)
            case Refused():
                self._on_refused(message)
            case _:
                _log.warning("unexpected message from the head of %s: %s", self.name, type(message).__name__)

    def _on_refused(self, refused: Refused) -> None:
        match refused.request:
            case "" | "OpenRun":
                self._refusal = refused.problem
                self._opened.set()
            case "SpawnProcs":
                self.fleet.on_failed(refused.mesh, SpawnError("any host", refused.problem))
            case "StopProcs":
                self.fleet.on_not_stopped(refused.mesh)
            case "SetLogs":
                self.logs.on_refused(refused.number, refused.problem)
            case _:
                _log.warning("the head of %s refused %s: %s", self.name, refused.request, refused.problem)

    def on_head_lost(self, error: TransportError) -> None:
        """Handle the loss of the head, which ends the run: deaths and new procs go through the head."""
        self.over = cause = f"the allocation {self.name} is gone or out of reach: {error}"
        lost = [(proc, self._sever(proc, cause)) for proc in self.procs.values()]
        self.procs.clear()

        def explained(found: Death | None) -> None:
            words = f"{cause}; {found.cause}" if found is not None else cause
            kind = found.kind if found is not None else DeathKind.UNKNOWN
            for proc, owner in lost:
                self._reports.record(proc, Death(kind, words), owner)

        if TAKEN_OVER in str(error):
            self._ending = Death(DeathKind.FENCED, "this program is not the owner of its run any more")
            end_taken_over(f"another program has taken over run {self.run}")
        if self._ending is not None:
            explained(self._ending)
        else:
            self._slurm.ask(self.ready.head_name, explained)
        self.fleet.on_head_lost(cause)
        self.logs.fail(error)
        self.kept.fail(cause)
        self._refusal = cause
        self._opened.set()

    def adopt(self, proc: ProcRef) -> None:
        """Take over a living proc of another program, to which there is a channel."""
        self.procs[ProcKey(self.run, proc.mesh, proc.rank, proc.host_rank)] = proc
        self._report.changed()

    def _on_ready(self, ready: ProcReady) -> None:
        proc = ref_of(ready, self.hosts[ready.proc.host].name, self.allocation)
        if self.procs.get(ready.proc) == proc:
            return  # told again by the head of a later term
        self.procs[ready.proc] = proc
        if not self.fleet.on_ready(proc):
            return

        def connected(result: FrameChannel | TransportError) -> None:
            if isinstance(result, TransportError):
                failure = SpawnError(proc.host, f"it runs, but cannot be reached: {result}")
                self.fleet.on_failed(proc.mesh, failure, proc.rank)
                return
            self._report.changed()
            if self.keeps:
                plan, owner = self.fleet.request_of(proc.mesh)
                about = dumps((replace(plan, bootstrap=None), owner))[0]
                Takes.of(self._runtime).prepare(result, self.kept_bytes, about)
            self._announcements.catch_up(result)
            self._links.introduce(result, lambda: self.fleet.on_reached(proc))

        self._runtime.node.dial(proc.addresses, proc.incarnation, connected, self.allocation)

    def _on_ended(self, ended: ProcEnded) -> None:
        proc = self.procs.pop(ended.proc, None)
        if proc is None:
            return
        self._printer.flush_soon()
        reason, again = self.fleet.reason(ended.mesh), False
        cause = cause_of(ended, reason)
        if ended.expected:
            self.revivals.on_death(proc, cause, final=True)
        else:
            words = f"monarch-hpc: proc {proc.rank} on {self._place(proc.host)} died: {cause}"
            cause, again = self.revivals.on_death(proc, cause, succeeded=ended.succeeded, last_lines=ended.last_lines)
            self._printer.put(f"{words}; it is started again\n" if again else f"{words}\n")
            self.fleet.on_failed(ended.mesh, SpawnError(proc.host, cause))
        kind, last_lines = DeathKind.parse(ended.kind), tuple(ended.last_lines)
        death = Death(kind, cause, "", proc.rank, last_lines, ended.expected, running=calls_of(ended))
        self._record_death(proc, death, handled=again or self.fleet.ends_with_policy(proc.mesh))

    def _place(self, host: str) -> str:
        """A host in words; with the allocation if the program has several."""
        return f"{host} of {self.name}" if self._links.needed else host

    def _record_death(self, proc: ProcRef, death: Death, *, handled: bool = False) -> None:
        # First: the end of its channel makes its callers ask.
        self._deaths.record(proc.incarnation, replace(death, host=proc.host, rank=proc.rank), handled=handled)
        owner = self._sever(proc, death.cause)
        self._reports.record(proc, death, None if handled else owner)

    def _sever(self, proc: ProcRef, cause: str) -> MeshOwner | None:
        """End all contact with a proc that is dead, or is to be taken for dead; return the owner of its mesh."""
        node = self._runtime.node
        node.bar(proc.incarnation, cause)
        self._links.forget(proc.incarnation)
        self._report.changed()
        if (channel := node.channels.get(proc.incarnation)) is not None:
            channel.give_up(cause)
        owner = self.fleet.owner_of(proc.mesh)
        self._died(proc.incarnation)
        return owner

    def _on_host_returned(self, host: HostEntry) -> None:
        known = self.hosts.get(host.rank)
        if known is not None and known.incarnation == host.incarnation and not self.absences.is_lost(host.rank):
            return  # its agent has joined the head of a later term
        self.fleet.hosts[host.rank] = host
        what = "was added" if known is None else "is back, without its procs"
        self._printer.put(f"monarch-hpc: host {self._place(host.name)} {what}\n")
        if not self.absences.end(host.rank) and known is not None:  # the end of its earlier agent was not reported
            self._on_host_lost(host.rank, "its agent was started again", DeathKind.UNKNOWN)

    def _on_host_lost(self, host: int, cause: str, kind: DeathKind, *, told: bool = False) -> None:
        name = self._place(self.hosts[host].name)
        if host not in self.given_up and not told:
            self._printer.put(f"monarch-hpc: host {name} is lost: {cause}\n")
        for key, proc in [(key, proc) for key, proc in self.procs.items() if proc.host_rank == host]:
            del self.procs[key]
            lost = Death(kind, f"host {name} is lost: {cause}", host_lost=True)
            self.revivals.on_death(proc, lost.cause, final=True)
            self._record_death(proc, lost)
        self.fleet.on_host_lost(host, cause)
        self.logs.forget(host)
