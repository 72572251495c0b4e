"""A program's use of one allocation: its run there, the hosts, the meshes of procs on them, and their deaths."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.attach.attach import join
from monarch_hpc.core.errors import AllocationError, SpawnError, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.place import read_place
from monarch_hpc.mesh.output.choice import LogRequests
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.mesh.plan import MeshOwner
from monarch_hpc.mesh.program.deaths import Deaths
from monarch_hpc.mesh.program.fleet import Fleet
from monarch_hpc.mesh.program.link_report import LinkReport, summarize
from monarch_hpc.mesh.program.links import Links
from monarch_hpc.mesh.program.opening import Opened, find_own_rank
from monarch_hpc.mesh.program.own_tables import own_tables
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.control.allocation import HostEnded, HostEntry
from monarch_hpc.wire.control.deadline import DeadlineNear, JobEnd
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import LogsSet, Output
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, SpawnFailed, SpawnProcs
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, Recording, RunLinks, RunOpened
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.proc_key import ProcKey
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
        dismiss: called with the ranks of hosts that are given back, to end workers that were started by hand.
    """

    def __init__(
        self,
        runtime: Runtime,
        opened: Opened,
        printer: Printer,
        deaths: Deaths,
        links: Links,
        numbers: Iterator[int],
        record_fd: int,
        changed: Callable[[], None],
        died: Callable[[int], None],
        on_deadline: Callable[[Tenancy, JobEnd | DeadlineNear], None],
    ) -> None:
        engine, config = runtime.engine, opened.config
        self.directory = opened.directory
        self.name = opened.name or opened.directory.name
        self.ready = check_allocation(opened.directory)
        self.allocation = self.ready.allocation
        self.run = opened.run
        self.resources = opened.resources
        self.outlives = opened.outlives
        self.resting = False
        self.outlived = opened.outlives and self.ready.job_id is not None
        self.rank = -1
        self.over = ""
        self.given_up: set[int] = set()
        self.dismiss: Callable[[Collection[int]], None] = lambda _ranks: None
        self.procs: dict[ProcKey, ProcRef] = {}
        self.fleet = Fleet(engine, self.run, config.procs, runtime.incarnations, self.send, numbers)
        self.logs = LogRequests(self.run, config.logs, engine, printer, self.send)
        self.head: FrameChannel | None = None
        self._runtime = runtime
        self._owner = opened.owner
        self._answer_s = config.transport.connect_s
        self._printer = printer
        self._deaths = deaths
        self._links = links
        self._record_fd = record_fd
        self._changed = changed
        self._died = died
        self._on_deadline = on_deadline
        self._report = LinkReport(engine.call_later, self._summarize, self._send_links)
        self._opened = Flag(engine)
        self._refusal = ""
        self._epoch = 0
        self._lost: set[int] = set()  # hosts whose loss was shown; the next head reports them again
        self._waiting: list[Message] | None = None  # for the next head; None while there is one

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
        node = self._runtime.node
        here = os.uname().nodename
        self.head = join(node, self.directory).channel
        try:
            self.send(self._opening([]))
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

    def send(self, message: Message) -> None:
        """Send a message to the head.

        Raises:
            TransportError: the channel is closed.
        """
        assert self.head is not None, "open() comes first"
        if self._waiting is not None:
            self._waiting.append(message)
            return
        self.head.send(Frame(Kind.CONTROL, body=encode(message)))

    def _opening(self, meshes: list[list[int]]) -> OpenRun:
        title, here = " ".join(sys.argv) or "python", os.uname().nodename
        return OpenRun(self.run, title, here, os.getpid(), self._owner, self._epoch, self.fleet.member, meshes)

    def _recording(self) -> Recording:
        incarnation = f"{self._runtime.node.identity.incarnation:x}"
        return Recording(self.run, read_place(), os.uname().nodename, os.getpid(), self._record_fd, incarnation)

    def be_headless(self) -> None:
        """Keep messages for the head of the next term: calls between procs and the program go on. On the driver."""
        self._waiting = []

    def follow(self, ready: Ready, head: FrameChannel) -> None:
        """Tell the head of a later term of the run and its meshes, and all that it was to be told. On the driver."""
        waiting, self._waiting = self._waiting or [], None
        self.ready, self.head = ready, head
        unsent = {message.mesh for message in waiting if isinstance(message, SpawnProcs)}
        meshes = [[number, *hosts] for number, hosts in self.fleet.meshes() if number not in unsent]
        with contextlib.suppress(TransportError):  # its end is reported
            for message in (self._opening(meshes), self._recording(), *self.fleet.stops(), *waiting):
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
        match message:
            case RunOpened():
                self.fleet.hosts |= {host.rank: host for host in message.hosts}
                self._lost.difference_update(host.rank for host in message.hosts)
                self.fleet.member, self._epoch = message.member, message.epoch
                self._runtime.node.set_epoch(message.epoch, self.allocation)
                self._opened.set()
            case ProcReady():
                self._on_ready(message)
            case SpawnFailed():
                host = self.hosts[message.proc.host].name
                self.fleet.on_failed(message.mesh, SpawnError(host, message.cause, message.last_lines))
            case ProcEnded():
                self._on_ended(message)
            case ProcLife():
                self._printer.put_life(message, self.hosts[message.proc.host].name)
            case ProcsStopped():
                self.fleet.on_stopped(message.mesh, message.host)
                self.logs.forget(message.host, message.mesh)
                if not self.fleet.has(message.mesh):
                    self._printer.forget(message.mesh)
            case HostEnded():
                self._on_host_lost(message.host, message.cause)
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
        cause = f"the allocation {self.name} is gone or out of reach: {error}"
        self.over = cause
        for proc in self.procs.values():
            self._record_death(proc, cause)
        self.procs.clear()
        self.fleet.on_head_lost(cause)
        self.logs.fail(error)
        self._refusal = cause
        self._opened.set()

    def _on_ready(self, ready: ProcReady) -> None:
        proc = ProcRef(
            mesh=ready.mesh,
            rank=ready.proc.rank,
            host=self.hosts[ready.proc.host].name,
            host_rank=ready.proc.host,
            pid=ready.pid,
            incarnation=int(ready.incarnation),
            addresses=tuple(ready.addresses),
            restarts=ready.restarts,
            allocation=self.allocation,
        )
        self.procs[ready.proc] = proc
        if not self.fleet.on_ready(proc):
            return

        def connected(result: FrameChannel | TransportError) -> None:
            if isinstance(result, TransportError):
                self.fleet.on_failed(proc.mesh, SpawnError(proc.host, f"it runs, but cannot be reached: {result}"))
                return
            self._report.changed()
            self._links.introduce(result, lambda: self.fleet.on_reached(proc))

        self._runtime.node.dial(proc.addresses, proc.incarnation, connected, self.allocation)

    def _on_ended(self, ended: ProcEnded) -> None:
        proc = self.procs.pop(ended.proc, None)
        if proc is None:
            return
        self._printer.flush_soon()
        reason = self.fleet.reason(ended.mesh)
        cause = (f"it was stopped: {reason}" if reason else "it was stopped") if ended.expected else ended.cause
        if not ended.expected:
            lines = "".join(f"\n    {line}" for line in ended.last_lines)
            self._printer.put(f"monarch-hpc: proc {proc.rank} on {self._place(proc.host)} died: {cause}\n")
            cause += f"; it wrote last:{lines}" if lines else ""
            self.fleet.on_failed(ended.mesh, SpawnError(proc.host, cause))
        self._record_death(proc, cause, expected=ended.expected)

    def _place(self, host: str) -> str:
        """A host in words; with the allocation if the program has several."""
        return f"{host} of {self.name}" if self._links.needed else host

    def _record_death(self, proc: ProcRef, cause: str, *, expected: bool = False, host_lost: bool = False) -> None:
        node = self._runtime.node
        self._deaths.record(proc.incarnation, cause, expected=expected, host_lost=host_lost)
        node.bar(proc.incarnation, cause)
        self._links.forget(proc.incarnation)
        self._report.changed()
        channel = node.channels.get(proc.incarnation)
        if channel is not None:
            channel.give_up(cause)
        owner = None if expected else self.fleet.owner_of(proc.mesh)
        self._died(proc.incarnation)
        if owner is not None:
            self._report_to_owner(owner, proc, cause)

    def _report_to_owner(self, owner: MeshOwner, proc: ProcRef, cause: str) -> None:
        """Report the death of a proc to the actor that started it."""
        name = self.fleet.name_of(proc.mesh) or "procs"
        failure = MeshFailure(name, proc.rank, f"proc {proc.rank} of {name} on {self._place(proc.host)}", cause)
        line = self._runtime.connections.open_line(owner.proc)
        if line is not None:
            self._runtime.replier.report(line, owner.actor, proc.mesh, failure)

    def _on_host_lost(self, host: int, cause: str) -> None:
        name = self._place(self.hosts[host].name)
        if host not in self.given_up and host not in self._lost:
            self._printer.put(f"monarch-hpc: host {name} is lost: {cause}\n")
        self._lost.add(host)
        for key, proc in list(self.procs.items()):
            if proc.host_rank == host:
                del self.procs[key]
                self._record_death(proc, f"host {name} is lost: {cause}", host_lost=True)
        self.fleet.on_host_lost(host, cause)
        self.logs.forget(host)
