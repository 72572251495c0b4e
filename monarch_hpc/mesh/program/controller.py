"""The runtime of a program: what it holds once, whatever allocations it uses."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
from _thread import RLock
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from monarch_hpc.actor.context import outside, own_info, provide_instances
from monarch_hpc.actor.fault import MeshFailure, exit_on_faults, print_error, run_fault_hook
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.kept.takes import Takes
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.ports.sent_response import send_response_ports
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.allocation.ready import Ready
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.attach.heir_search import seek_heir
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_failpoints, read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.errors import AllocationError, ConfigError, EngineFailed, MonarchError, TransportError
from monarch_hpc.core.failpoints import arm
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.signals import interrupt_kept
from monarch_hpc.core.process.streams import fill_standard_streams
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.storage.shortage import explained
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.instance import Instance
from monarch_hpc.mesh.launch import end_launches
from monarch_hpc.mesh.output.cells import NotebookCells
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.mesh.program.allocations.links import CastEntry, Links
from monarch_hpc.mesh.program.allocations.opening import Opened
from monarch_hpc.mesh.program.allocations.tenancies import Tenancies
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.deadline import ProgramDeadline
from monarch_hpc.mesh.program.kept.keep import keep_at_end
from monarch_hpc.mesh.program.local_door import LocalDoor
from monarch_hpc.mesh.program.procs.announcements import Announcements
from monarch_hpc.mesh.program.procs.deaths import Deaths, ProgramCauses
from monarch_hpc.mesh.program.procs.quarantine import Quarantine
from monarch_hpc.mesh.program.registry import open_registry
from monarch_hpc.mesh.program.requests import open_requests
from monarch_hpc.supervision.liveness import Lease
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel, Peer
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.faults import log_fault
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.links import LinkTaken
from monarch_hpc.wire.control.procs import ReplacementTaken
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame

__all__ = ["Controller"]

_log = Logger(__name__)


class Controller(Runtime):
    """The runtime of a program; created by the first use of the API. It belongs to no allocation, and joins any number.

    Attributes:
        deaths: causes of death of procs, in all allocations.
        tenancies: the program's use of each allocation.
        deadline: their ends, and the program's hooks.
        resources: what is closed with it.
    """

    _one_creates: ClassVar[RLock] = RLock()
    _creating: ClassVar[bool] = False

    @classmethod
    def instance(cls) -> Controller:
        """The controller of this process; the first call creates it.

        Raises:
            RuntimeError: this process is a proc; or a signal handler asks in the middle of the first call.
            ForkedError: this process is a fork of the program.
        """
        with cls._one_creates:
            if Runtime.current is not None:
                Runtime.current.engine.check_own()
                controller = cls._current()
                if controller is None:
                    raise RuntimeError("this is a proc, not the program that started it")
                return controller
            if cls._creating:
                raise RuntimeError(
                    "a signal handler ran while the program's first call began: let it call actors later"
                )
            cls._creating = True
            try:
                arm(read_failpoints())
                with explained():
                    fill_standard_streams()
                    Runtime.current = controller = cls(_own_config())
            finally:
                cls._creating = False
            open_registry(controller)
            open_requests(controller)
            controller.resources.enter_context(exit_on_faults(controller.abandon))
            atexit.register(controller.close_at_exit)
            return controller

    @classmethod
    def close_any(cls) -> None:
        """Close the controller of this process, if there is one."""
        controller = cls._current()
        if controller is not None:
            controller.close()

    @classmethod
    def leave(cls, directory: Path) -> None:
        """Leave the allocation in *directory*, which ends, if the program of this process uses it."""
        controller = cls._current()
        for tenancy in controller.tenancies.all() if controller is not None else ():
            if controller is not None and tenancy.directory == directory:
                controller.tenancies.leave(tenancy, "the allocation ends", ends=True)

    @staticmethod
    def _current() -> Controller | None:
        return Runtime.current if isinstance(Runtime.current, Controller) else None

    def __init__(self, config: Config) -> None:
        engine = Engine()
        engine.on_fault = self._on_fault
        self.resources = ExitStack()
        self._record_fd = make_memory("program")
        self.resources.callback(os.close, self._record_fd)
        self._closed = False
        self._printer = Printer(config.logs)
        self.deaths = Deaths(engine.call_later, config.procs.cause_s)
        info = own_info()
        super().__init__(
            engine,
            info,
            config.procs,
            Recorder(os.dup(self._record_fd)),
            causes=ProgramCauses(self.deaths, lambda: self._closed, self._is_ending),
            unhandled=self._on_unhandled,
            # Shows the output that led to a failure before its exception ends the program or is shown by it.
            on_failure=self._printer.flush_soon,
            cells_drive=False,
        )
        self._config = config
        self._links = Links(lambda: self.node, engine.call_later)
        self._announcements = Announcements(self)
        self._numbers = itertools.count(1)
        self.tenancies = Tenancies(self._make_tenancy, self._on_tenancy, self._on_tenancy_open, self._on_tenancy_over)
        self.deadline = ProgramDeadline(engine, self.tenancies.all)
        self.connections.find_allocation = self.tenancies.join_parent
        engine.start()
        liveness = config.liveness
        self._heartbeat = Heartbeat(engine, liveness.heartbeat_s, Lease(liveness.suspect_s, liveness.dead_s))
        host = os.uname().nodename
        identity = Identity("", Role.CONTROLLER, host, new_incarnation())
        # A controller does not listen: it dials each proc as it starts.
        self.bind(
            Node(engine, identity, b"", self, config.transport),
            ProcRef(0, 0, host, -1, os.getpid(), identity.incarnation, ()),
        )
        self.recorder.open(identity.incarnation)
        outside(info)
        provide_instances(Instance)
        send_response_ports()
        self._notebook = NotebookCells(engine, self._printer, self._flush_logs)
        self.door: LocalDoor = LocalDoor(self, self.tenancies, self.deaths)

    # ---- allocations ----

    def _make_tenancy(self, opened: Opened) -> Tenancy:
        return Tenancy(
            self,
            opened,
            self._printer,
            self.deaths,
            self._links,
            self._announcements,
            self._numbers,
            self._record_fd,
            self._adapt_spin,
            self._on_death,
            self.deadline.on_message,
        )

    def _on_tenancy(self, tenancy: Tenancy) -> None:
        linked = Flag(self.engine)

        def link() -> None:
            self._links.open(tenancy.allocation)
            linked.set()

        self.engine.call_soon(link)
        linked.wait()

    def _on_tenancy_open(self, tenancy: Tenancy) -> None:
        def watch(line: FrameChannel) -> None:
            self.engine.call_soon(lambda: self._heartbeat.watch(line))

        assert tenancy.head is not None
        watch(tenancy.head)
        self.deadline.on_open(tenancy)
        if not tenancy.keeps:  # agents combine answers, and procs keep each of theirs
            self.casts.route_through(tenancy.ready.addresses, tenancy.allocation, tenancy.run, watch)
        entry = CastEntry(tenancy.run, tenancy.ready.addresses, tenancy.send)
        self.engine.call_soon(lambda: self._links.on_entry(tenancy.allocation, entry))
        if not self.info.allocation:
            self._place(tenancy.allocation, tenancy.run, tenancy.rank)

    def _on_tenancy_over(self, tenancy: Tenancy) -> None:
        self.engine.call_soon(lambda: self._links.close(tenancy.allocation, f"the program has left {tenancy.name}"))
        if self.info.allocation == tenancy.allocation:
            self._place("", "", -1)
        self.casts.route_directly(tenancy.allocation)

    def _place(self, allocation: str, run: str, rank: int) -> None:
        self.info = replace(self.info, allocation=allocation, run=run, host_rank=rank)
        outside(self.info)

    def _on_death(self, incarnation: int) -> None:
        for tenancy in self.tenancies.all():
            tenancy.fleet.on_death(incarnation)

    def _is_ending(self, incarnation: int) -> bool:
        return any(tenancy.fleet.is_ending(incarnation) for tenancy in self.tenancies.all())

    def _adapt_spin(self) -> None:
        """Spin only on a host of an allocation where each proc has a core too; login nodes account for CPU time."""
        num, room = 0, False
        for tenancy in self.tenancies.all():
            # All hosts of an embedded allocation are this machine.
            hosts = {tenancy.rank} if tenancy.ready.job_id is not None else tenancy.hosts.keys()
            room = room or tenancy.rank >= 0
            num += sum(
                proc.incarnation in self.node.channels for proc in tenancy.procs.values() if proc.host_rank in hosts
            )
        room = room and num < len(os.sched_getaffinity(0))
        self.engine.spin_s = self._config.fabric.spin_us / 1e6 if room else 0.0

    def _flush_logs(self) -> list[Future[None]]:
        tenancies = self.tenancies.all()
        return [tenancy.logs.flush(mesh, hosts) for tenancy in tenancies for mesh, hosts in tenancy.fleet.meshes()]

    # ---- the end ----

    def forked(self, parent: int) -> None:
        """Leave the program's resources alone in a fork: they belong to *parent*, even when this process exits."""
        super().forked(parent)
        self._closed = True
        atexit.unregister(self.close_at_exit)
        # Context managers are generators, which would run their clean-up when they are garbage-collected.
        for resources in (self.resources, *(tenancy.resources for tenancy in self.tenancies.all())):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(resources))

    def close(self) -> None:
        """End all procs, print their last output, and detach; allocations made for this program end too."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close_at_exit)  # the reference would keep this controller and its record memory alive
        try:
            end_launches()
            if self.engine.failure is not None:
                return  # all ends with this process
            self.shut_down()
            if read_program().keeps:
                for problem in [problem for tenancy in self.tenancies.all() for problem in keep_at_end(self, tenancy)]:
                    print_error(f"monarch-hpc: {problem}")
            ended = [Flag(self.engine) for _ in self.tenancies.all()]
            for tenancy, flag in zip(self.tenancies.all(), ended, strict=False):
                tenancy.fleet.stop_all("the program ended", _setting(flag))
            for flag in ended:
                flag.wait()
            self.node.close("the program ended")
        finally:
            self._release()

    def close_at_exit(self) -> None:
        """`close` as the interpreter exits; after an uncaught Ctrl-C the program still ends by SIGINT."""
        with interrupt_kept():
            self.close()

    def abandon(self) -> None:
        """Detach at once and leave it to the heads to end all procs: `close` for a program whose main thread hangs."""
        if not self._closed:
            self._closed = True
            self.node.close("the program was ended by force")
            self._release()

    def _release(self) -> None:
        self._notebook.close()
        self._printer.close()
        self.tenancies.release_all()
        self.resources.close()
        self.engine.close()
        self.recorder.close()
        Takes.forget()
        Quarantine.end()
        Runtime.current = None

    # ---- events ----

    def on_control(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a message of a head, or of a proc."""
        message = decode(frame.body)
        peer = channel.peer
        assert isinstance(peer, Peer), "this process sends itself no control messages"
        tenancy = self.tenancies.get(peer.allocation)
        if isinstance(message, LinkTaken) and peer.role is Role.PROC:
            self._links.on_taken(peer.incarnation, message.link)
        elif isinstance(message, LinkTaken):
            self._links.on_entry_open(peer.allocation, message.link)
        elif isinstance(message, ReplacementTaken) and peer.role is Role.PROC:
            self._announcements.on_taken(peer.incarnation, message)
        elif tenancy is not None and peer.role is Role.AGENT:
            tenancy.on_control(message)
        else:
            _log.warning("unexpected message from %s: %s", peer, type(message).__name__)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the loss of a channel. Losing the head of an allocation ends the run there, unless it has an heir."""
        tenancy = self.tenancies.get(channel.peer.allocation)
        if tenancy is not None and channel is tenancy.head and not self._closed and not tenancy.over:
            self._on_head_lost(tenancy, error)
        self._heartbeat.forget(channel)
        super().on_lost(channel, error)

    def _on_head_lost(self, tenancy: Tenancy, error: TransportError) -> None:
        def found(ready: Ready, channel: FrameChannel) -> None:
            if tenancy.over or self._closed:
                channel.close("the program has left")
            else:
                tenancy.follow(ready, channel)
                self._on_tenancy_open(tenancy)

        def failed() -> None:
            if not tenancy.over and not self._closed:
                tenancy.on_head_lost(error)
                self.node.leave(tenancy.allocation, tenancy.over)
                self.tenancies.lose(tenancy)

        wait_s = self._config.liveness.fence_s + self._config.liveness.dead_s
        if seek_heir(self.node, tenancy.directory, tenancy.ready, len(tenancy.hosts), error, wait_s, found, failed):
            tenancy.be_headless()
        else:
            failed()

    def _on_fault(self, what: str, error: BaseException) -> None:
        log_fault(what, error)
        if self.engine.failure is None:
            # Errors of a channel or a file end it and fail its waiters. Otherwise a message may be lost.
            if not isinstance(error, (MonarchError, OSError)):
                self.engine.fail(error)
        else:
            # On a thread, since any lock may be held here.
            Thread(lambda: self._fail_calls(error))

    def _fail_calls(self, error: BaseException) -> None:
        """Answer all calls: the engine has failed, so no other thread can."""
        failed = EngineFailed(summary_of(error))
        failed.__cause__ = error
        self.fail_calls(failed)

    def _on_unhandled(self, failure: MeshFailure) -> None:
        if not self._closed:
            run_fault_hook(failure)


def _own_config() -> Config:
    """The configuration of the allocation that the program was started on, else its own."""
    directory = read_program().directory
    if directory is not None:
        with contextlib.suppress(AllocationError, ConfigError, OSError):  # reported when the allocation is used
            return read_config(directory)
    return load().config


def _setting(flag: Flag) -> Callable[[list[str]], None]:
    return lambda _late: flag.set()
