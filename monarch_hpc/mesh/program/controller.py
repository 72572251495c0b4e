"""The controller's side of a run: its hosts, the procs that it started, and their deaths."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import platform
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from monarch_hpc.actor.context import outside, own_info, provide_instances
from monarch_hpc.actor.fault import MeshFailure, exit_on_faults, run_fault_hook
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.attach.attach import attach
from monarch_hpc.core.errors import AllocationError, SpawnError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.place import read_place
from monarch_hpc.mesh.instance import Instance
from monarch_hpc.mesh.output.choice import LogRequests
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.mesh.plan import MeshOwner
from monarch_hpc.mesh.program.calls_report import own_report
from monarch_hpc.mesh.program.deaths import Deaths, ProgramCauses
from monarch_hpc.mesh.program.fleet import Fleet
from monarch_hpc.mesh.program.link_report import LinkReport, Links, summarize
from monarch_hpc.mesh.program.local_door import LocalDoor
from monarch_hpc.mesh.program.opening import TAKEN, Opened, Opener, find_own_rank, open_allocation
from monarch_hpc.mesh.program.registry import open_registry
from monarch_hpc.mesh.program.requests import open_requests
from monarch_hpc.supervision.lease import Lease
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.control.allocation import HostEntry, HostLost
from monarch_hpc.wire.control.calls import Calls, CallsReport, Recording
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.output import LogsSet, Output
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, SpawnFailed
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun, RunLinks, RunOpened
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["Controller"]

_log = Logger(__name__)


class Controller(Runtime):
    """The controller of a run; created on the first use of `hosts()`."""

    _opening: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def instance(cls, opener: Opener | None = None) -> Controller:
        """The controller of this process; the first call attaches to the allocation, or makes one.

        Args:
            opener: makes the allocation; None for the default, see `open_allocation`.

        Raises:
            RuntimeError: this process is a proc; or *opener* was given, and the program has an allocation already.
            ForkedError: this process is a fork of the program.
        """
        with cls._opening:
            if Runtime.current is not None:
                Runtime.current.engine.check_own()
                controller = cls._current()
                if controller is None:
                    raise RuntimeError("this is a proc, not the program that started it")
                if opener is not None:
                    raise RuntimeError(TAKEN)
                return controller
            Runtime.current = controller = Controller._open(opener)
            open_registry(controller)
            open_requests(controller)
            controller._resources.enter_context(exit_on_faults(controller.abandon))
            atexit.register(controller.close)
            return controller

    @classmethod
    def serves(cls, directory: Path) -> bool:
        """Whether this process has a controller that is attached to the allocation in *directory*."""
        controller = cls._current()
        return controller is not None and controller._directory == directory

    @classmethod
    def close_any(cls) -> None:
        """Close the controller of this process, if there is one."""
        controller = cls._current()
        if controller is not None:
            controller.close()

    @staticmethod
    def _current() -> Controller | None:
        return Runtime.current if isinstance(Runtime.current, Controller) else None

    @classmethod
    def _open(cls, opener: Opener | None) -> Controller:
        opened = open_allocation(opener)
        try:
            return cls(opened)
        except BaseException:
            opened.resources.close()
            raise

    def __init__(self, opened: Opened) -> None:
        directory, run, config, resources = opened.directory, opened.run, opened.config, opened.resources
        engine = Engine()
        host = platform.node()
        record_fd = make_memory("program")
        resources.callback(os.close, record_fd)
        self._closed = False
        self._printer = Printer(config.logs)
        self.deaths = Deaths(engine.call_later)
        super().__init__(
            engine,
            replace(own_info(), run=run),
            Recorder(os.dup(record_fd)),
            causes=ProgramCauses(self.deaths, lambda: self._closed),
            unhandled=self._on_unhandled,
            # Shows the output that led to a failure before its exception ends the program or is shown by it.
            on_failure=self._printer.flush_soon,
            cells_drive=False,
        )
        self._run = run
        self._config = config
        self._resources = resources
        self._opened = Flag(engine)
        self._directory = directory
        self.fleet = Fleet(engine, run, config.procs, self._send_to_head)
        self._procs: dict[ProcKey, ProcRef] = {}
        self._refusal: str = ""
        self.logs = LogRequests(run, config.logs, engine, self._printer, self._send_to_head)
        self._links = LinkReport(engine.call_later, self._summarize_links, self._report_links)
        engine.start()
        self._attachment = attach(directory, Role.CONTROLLER, self, engine)
        node = self._attachment.node
        # A controller does not listen: it dials each proc as it starts.
        self.bind(node, ProcRef(0, 0, host, -1, os.getpid(), node.identity.incarnation, ()))
        self._head: FrameChannel = self._attachment.channel
        liveness = config.liveness
        self._heartbeat = Heartbeat(engine, liveness.heartbeat_s, Lease(liveness.suspect_s, liveness.dead_s))
        engine.call_soon(lambda: self._heartbeat.watch(self._head))
        self.recorder.open(node.identity.incarnation)
        ready = self._attachment.ready
        self.casts.route_through(ready.addresses, lambda line: engine.call_soon(lambda: self._heartbeat.watch(line)))
        self._send_to_head(OpenRun(run, " ".join(sys.argv) or "python", host, os.getpid(), opened.owner))
        if not self._opened.wait(config.transport.connect_s) or self._refusal:
            raise AllocationError(directory.name, self._refusal or "its head agent does not answer")

        incarnation = f"{node.identity.incarnation:x}"
        self._send_to_head(Recording(run, read_place(), host, os.getpid(), record_fd, incarnation))
        rank = find_own_rank(ready, self.hosts, {self.info.host, host, host.partition(".")[0]})
        self.info = replace(self.info, allocation=ready.allocation, host_rank=rank)
        outside(self.info)
        provide_instances(Instance)
        outlived = opened.outlives and ready.job_id is not None
        self.door: LocalDoor = LocalDoor(
            self, self.fleet, self.deaths, self.logs, allocation=directory.name, outlived=outlived, close=self.close
        )

    @property
    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        return self.fleet.hosts

    def forked(self, parent: int) -> None:
        """Leave the program's resources alone in a fork: they belong to *parent*, even when this process exits."""
        super().forked(parent)
        self._closed = True
        atexit.unregister(self.close)
        # Context managers are generators, which would run their clean-up when they are garbage-collected.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._resources))

    def close(self) -> None:
        """End all procs, print their last output, and detach; an embedded allocation ends too."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)  # the reference would keep this controller and its record memory alive
        try:
            self.shut_down()
            ended = Flag(self.engine)
            self.fleet.stop_all("the program ended", lambda _late: ended.set())
            ended.wait()
            self.node.close("the program ended")
        finally:
            self._release()

    def abandon(self) -> None:
        """Detach at once and leave it to the head to end all procs: `close` for a program whose main thread hangs."""
        if not self._closed:
            self._closed = True
            self.node.close("the program was ended by force")
            self._release()

    def _release(self) -> None:
        self._printer.close()
        self._resources.close()
        self.engine.close()
        self.recorder.close()
        Runtime.current = None

    def _send_to_head(self, message: Message) -> None:
        self._head.send(Frame(Kind.CONTROL, body=encode(message)))

    def _summarize_links(self) -> Links:
        self._adapt_spin()
        return summarize(self._procs.values(), self.node.channels)

    def _adapt_spin(self) -> None:
        """Spin only on a host of the allocation where each proc has a core too; login nodes account for CPU time."""
        here = self.info.host_rank
        # All hosts of an embedded allocation are this machine.
        hosts = {here} if self._attachment.ready.job_id is not None else self.hosts.keys()
        num = sum(proc.incarnation in self.node.channels for proc in self._procs.values() if proc.host_rank in hosts)
        room = here >= 0 and num < len(os.sched_getaffinity(0))
        self.engine.spin_s = self._config.fabric.spin_us / 1e6 if room else 0.0

    def _report_links(self, links: Links) -> None:
        with contextlib.suppress(TransportError):
            self._send_to_head(RunLinks(self._run, links))

    # ---- events from the head and the procs ----

    def on_control(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a message of the head."""
        match message := decode(frame.body):
            case RunOpened():
                self.fleet.hosts = {host.rank: host for host in message.hosts}
                self.fleet.member = message.member
                self.node.set_epoch(message.epoch)
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
            case HostLost():
                self._on_host_lost(message.host, message.cause)
            case Calls():
                self._send_to_head(CallsReport(message.ticket, [own_report(self, self._run)], []))
            case Output():
                self._printer.show(message, self.fleet.name_of(message.mesh), self.hosts[message.proc.host].name)
            case LogsSet():
                self.logs.on_set(message)
            case Refused():
                self._on_refused(message)
            case _:
                _log.warning("unexpected message from %s: %s", channel.peer, type(message).__name__)

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
                _log.warning("the head refused %s: %s", refused.request, refused.problem)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the loss of a channel. Losing the head ends the run: deaths and new procs go through the head."""
        if channel is self._head and not self._closed:
            cause = f"the allocation is gone: {error}"
            for proc in self._procs.values():
                self._record_death(proc, cause)
            self._procs.clear()
            self.fleet.on_head_lost(cause)
            self.logs.fail(error)
            self._refusal = cause
            self._opened.set()
        self._heartbeat.forget(channel)
        super().on_lost(channel, error)

    def _on_unhandled(self, failure: MeshFailure) -> None:
        if not self._closed:
            run_fault_hook(failure)

    def _on_ready(self, ready: ProcReady) -> None:
        proc = ProcRef(
            mesh=ready.mesh,
            rank=ready.proc.rank,
            host=self.hosts[ready.proc.host].name,
            host_rank=ready.proc.host,
            pid=ready.pid,
            incarnation=int(ready.incarnation),
            addresses=tuple(ready.addresses),
        )
        self._procs[ready.proc] = proc
        if not self.fleet.on_ready(proc):
            return

        def connected(result: FrameChannel | TransportError) -> None:
            if isinstance(result, TransportError):
                self.fleet.on_failed(proc.mesh, SpawnError(proc.host, f"it runs, but cannot be reached: {result}"))
                return
            self._links.changed()
            self.fleet.on_reached(proc)

        self.node.dial(proc.addresses, proc.incarnation, connected)

    def _on_ended(self, ended: ProcEnded) -> None:
        proc = self._procs.pop(ended.proc, None)
        if proc is None:
            return
        self._printer.flush_soon()
        reason = self.fleet.reason(ended.mesh)
        cause = (f"it was stopped: {reason}" if reason else "it was stopped") if ended.expected else ended.cause
        if not ended.expected:
            lines = "".join(f"\n    {line}" for line in ended.last_lines)
            self._printer.put(f"monarch-hpc: proc {proc.rank} on {proc.host} died: {cause}\n")
            cause += f"; it wrote last:{lines}" if lines else ""
            self.fleet.on_failed(ended.mesh, SpawnError(proc.host, cause))
        self._record_death(proc, cause, expected=ended.expected)

    def _record_death(self, proc: ProcRef, cause: str, *, expected: bool = False) -> None:
        self.deaths.record(proc.incarnation, cause, expected=expected)
        self.node.bar(proc.incarnation, cause)
        self._links.changed()
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None:
            channel.give_up(cause)
        self.fleet.on_death(proc.incarnation)
        owner = None if expected else self.fleet.owner_of(proc.mesh)
        if owner is not None:
            self._report_to_owner(owner, proc, cause)

    def _report_to_owner(self, owner: MeshOwner, proc: ProcRef, cause: str) -> None:
        """Report the death of a proc to the actor that started it."""
        name = self.fleet.name_of(proc.mesh) or "procs"
        failure = MeshFailure(name, proc.rank, f"proc {proc.rank} of {name} on {proc.host}", cause)
        line = self.connections.open_line(owner.proc)
        if line is not None:
            self.replier.report(line, owner.actor, proc.mesh, failure)

    def _on_host_lost(self, host: int, cause: str) -> None:
        name = self.hosts[host].name
        self._printer.put(f"monarch-hpc: host {name} is lost: {cause}\n")
        for key, proc in list(self._procs.items()):
            if proc.host_rank == host:
                del self._procs[key]
                self._record_death(proc, f"host {name} is lost: {cause}")
        self.fleet.on_host_lost(host, cause)
        self.logs.forget(host)
