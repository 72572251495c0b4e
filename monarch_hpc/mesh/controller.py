"""The controller's side of a run: its hosts, the procs it started, and what became of them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.fault import MeshFailure, leaving_on_faults, tell_program
from monarch_hpc.actor.local import Line
from monarch_hpc.actor.reference import ProcRef
from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.agent.attach import attach
from monarch_hpc.agent.local import open_local
from monarch_hpc.agent.pulse import Pulse
from monarch_hpc.agent.settings import read_config
from monarch_hpc.config.load import load
from monarch_hpc.config.program import read_program
from monarch_hpc.config.schema import Config
from monarch_hpc.core.errors import ActorError, AllocationError, SpawnError, TransportError
from monarch_hpc.core.ids import Role, new_run_id
from monarch_hpc.mesh.deaths import Deaths
from monarch_hpc.mesh.here import open_registry
from monarch_hpc.mesh.links import LinkReport, Links, summarize
from monarch_hpc.mesh.printer import Printer
from monarch_hpc.supervision.lease import Lease, Life
from monarch_hpc.transport.api import Channel
from monarch_hpc.transport.engine import Engine, Signal
from monarch_hpc.wire import messages
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.messages import HostEntry, Message

__all__ = ["Controller"]

_log = logging.getLogger(__name__)

_REPORT_S = 5.0
"""Beyond its own deadline, how long a host may take to report that it is done."""


class _Spawning:
    """The procs of one mesh while they start."""

    def __init__(self, engine: Engine, num_ranks: int) -> None:
        self.procs: dict[int, ProcRef] = {}
        self.channels = 0
        self.num_ranks = num_ranks
        self.failure: SpawnError | None = None
        self.over = Signal(engine)


class Controller(Runtime):
    """One run's controller; made by the first use of `hosts()`."""

    cells_drive = False
    _instance: ClassVar[Controller | None] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def instance(cls) -> Controller:
        """The controller of this process; attaches to the allocation at the first call."""
        with cls._instance_lock:
            if cls._instance is None:
                if Runtime.current is not None:
                    raise RuntimeError("hosts() works in the controller program; this is a proc that it started")
                cls._instance = Controller._open()
                Runtime.current = cls._instance
                open_registry(cls._instance)
                cls._instance._resources.enter_context(leaving_on_faults(cls._instance.abandon))
                atexit.register(cls._instance.close)
            return cls._instance

    @classmethod
    def _open(cls) -> Controller:
        program = read_program()
        resources = contextlib.ExitStack()
        directory = program.directory
        if directory is None:
            config = load().config
            directory = resources.enter_context(open_local(1, config))
        else:
            config = read_config(directory)
        try:
            return cls(directory, program.run or new_run_id(), config, resources, owner=not program.run)
        except BaseException:
            resources.close()
            raise

    def __init__(
        self, directory: Path, run: str, config: Config, resources: contextlib.ExitStack, *, owner: bool
    ) -> None:
        # No spinning: controllers live on login nodes, which are shared and count CPU time.
        engine = Engine()
        host = platform.node()
        super().__init__(engine, ProcInfo("", run, 0, 1, host, host_rank=-1, local_rank=0, gpus=()))
        self.hosts: dict[int, HostEntry] = {}
        self._run = run
        self._config = config
        self._resources = resources
        self._opened = Signal(engine)
        self._member = 0
        self._num_meshes = 0
        self._names: dict[int, str] = {}
        self._spawning: dict[int, _Spawning] = {}
        self._stopping: dict[int, tuple[set[int], Signal]] = {}
        self._mesh_hosts: dict[int, list[int]] = {}
        self._procs: dict[tuple[int, int], ProcRef] = {}
        self._deaths = Deaths(engine.call_later)
        self._refusal: str = ""
        self._closed = False
        self._printer = Printer()
        self._links = LinkReport(engine.call_later, self._look_at_links, self._tell_links)
        engine.start()
        self._attachment = attach(directory, Role.CONTROLLER, self, engine)
        node = self._attachment.node
        # It listens nowhere: procs that may call it are dialled when they start.
        self.bind(node, ProcRef(0, 0, host, -1, os.getpid(), node.identity.incarnation, ()))
        self._head: Channel = self._attachment.channel
        liveness = config.liveness
        self._pulse = Pulse(engine, liveness.heartbeat_s, Lease(liveness.suspect_s, liveness.dead_s))
        engine.call_soon(lambda: self._pulse.watch(self._head))
        self._tell(messages.OpenRun(run, " ".join(sys.argv) or "python", host, os.getpid(), owner))
        if not self._opened.wait(config.transport.connect_s) or self._refusal:
            raise AllocationError(directory.name, self._refusal or "its head agent does not answer")

    # ---- what meshes ask ----

    def spawn_procs(
        self, hosts: list[int], per_host: int, name: str, environment: dict[str, str], preload: list[str]
    ) -> tuple[int, Mapping[int, ProcRef]]:
        """Start *per_host* procs on each of *hosts*; return the mesh's number and its procs by rank.

        Raises:
            SpawnError: a proc did not start; the others were ended.
        """
        config = self._config.procs
        self._num_meshes += 1
        mesh = self._member << 20 | self._num_meshes
        spawning = self._spawning[mesh] = _Spawning(self.engine, len(hosts) * per_host)
        self._names[mesh] = name
        self._mesh_hosts[mesh] = hosts
        order = messages.SpawnProcs(
            run=self._run,
            mesh=mesh,
            hosts=hosts,
            first_rank=[index * per_host for index in range(len(hosts))],
            per_host=per_host,
            num_ranks=spawning.num_ranks,
            environment=environment,
            preload=[*config.preload, *(module for module in preload if module not in config.preload)],
            sys_path=[str(Path(entry or ".").resolve()) for entry in sys.path],
            cwd=str(Path.cwd()),
            umask=_umask(),
            gpu_visible=config.gpu_visible,
            deadline_s=config.start_s,
        )
        self._tell(order)
        in_time = spawning.over.wait(config.start_s + _REPORT_S)
        del self._spawning[mesh]
        if in_time and spawning.failure is None:
            return mesh, spawning.procs
        failure = spawning.failure
        if failure is None:
            missing = next(rank for rank in range(spawning.num_ranks) if rank not in spawning.procs)
            host = self.hosts[hosts[missing // per_host]].name
            failure = SpawnError(host, f"its agent did not report within {config.start_s + _REPORT_S:.0f} s")
        with contextlib.suppress(TimeoutError, TransportError):
            self.stop_procs(mesh, None)
        raise failure

    def stop_procs(self, mesh: int, timeout_s: float | None) -> None:
        """End all procs of *mesh*; return when every host has reported that none is left.

        Raises:
            TimeoutError: a host did not report in time.
        """
        hosts = self._mesh_hosts.get(mesh)
        if hosts is None:
            return
        grace_s = self._config.procs.stop_s
        stopped = Signal(self.engine)
        self._stopping[mesh] = set(hosts), stopped
        self._tell(messages.StopProcs(self._run, mesh, hosts, grace_s))
        in_time = stopped.wait(grace_s + _REPORT_S if timeout_s is None else timeout_s)
        left, _ = self._stopping.pop(mesh)
        self._mesh_hosts.pop(mesh, None)
        if not in_time:
            names = ", ".join(self.hosts[host].name for host in sorted(left))
            raise TimeoutError(f"procs of {self._names[mesh] or 'a mesh'} may still run on {names}: no report in time")

    def close(self) -> None:
        """End all procs, print what they said last, and detach; an embedded allocation ends too."""
        if self._closed:
            return
        self._closed = True
        try:
            self.shut_down()
            for mesh in list(self._mesh_hosts):
                with contextlib.suppress(TimeoutError, TransportError):
                    self.stop_procs(mesh, None)
            self.node.close("the program ended")
        finally:
            self._release()

    def abandon(self) -> None:
        """Let the head end all procs, at once: as `close`, for a program whose main thread hangs."""
        if not self._closed:
            self._closed = True
            self.node.close("the program was ended by force")
            self._release()

    def _release(self) -> None:
        self._printer.close()
        self._resources.close()
        self.engine.close()
        Runtime.current = Controller._instance = None

    def _tell(self, message: Message) -> None:
        self._head.send(Frame(Kind.CONTROL, body=messages.encode(message)))

    def _look_at_links(self) -> Links:
        return summarize(self._procs.values(), self.node.channels)

    def _tell_links(self, links: Links) -> None:
        with contextlib.suppress(TransportError):
            self._tell(messages.RunLinks(self._run, links))

    # ---- what the head and the procs say ----

    def on_control(self, channel: Line, frame: Frame) -> None:
        """Act on a message of the head."""
        message = messages.decode(frame.body)
        match message:
            case messages.RunOpened():
                self.hosts = {host.rank: host for host in message.hosts}
                self._member = message.member
                self.node.hold(message.epoch)
                self._opened.set()
            case messages.ProcReady():
                self._on_ready(message)
            case messages.SpawnFailed():
                host = self.hosts[message.host].name
                self._fail_spawning(message.mesh, SpawnError(host, message.cause, message.last_lines))
            case messages.ProcEnded():
                self._on_ended(message)
            case messages.ProcLife():
                self._on_life(message)
            case messages.ProcsStopped():
                self._on_stopped(message.mesh, message.host)
            case messages.HostLost():
                self._on_host_lost(message.host, message.cause)
            case messages.Output():
                self._print(message)
            case messages.Refused():
                self._refusal = message.problem
                self._opened.set()
            case _:
                _log.warning("unexpected message from %s: %s", channel.peer, type(message).__name__)

    def on_lost(self, channel: Channel, error: TransportError) -> None:
        """Without the head nobody tells us of deaths and nothing can be started: all of it is over."""
        if channel is self._head and not self._closed:
            cause = f"the allocation is gone: {error}"
            for proc in self._procs.values():
                self._bury(proc, cause)
            for mesh in list(self._spawning):
                self._fail_spawning(mesh, SpawnError("the allocation", cause))
            for hosts, stopped in self._stopping.values():
                hosts.clear()
                stopped.set()
            self._refusal = cause
            self._opened.set()
        super().on_lost(channel, error)

    def explain(self, incarnation: int, where: str, error: TransportError, tell: Callable[[ActorError], None]) -> None:
        """Wait a moment for the agent's word on how the proc ended."""
        give_up = super().explain
        self._deaths.explain(incarnation, where, tell, lambda where, tell: give_up(incarnation, where, error, tell))

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Tell whether a proc ended because it was asked to, or with the program."""
        return self._closed or self._deaths.was_expected(incarnation)

    def unhandled(self, failure: MeshFailure) -> None:
        """The program is told."""
        if not self._closed:
            tell_program(failure)

    def _on_ready(self, ready: messages.ProcReady) -> None:
        proc = ProcRef(
            mesh=ready.mesh,
            rank=ready.rank,
            host=self.hosts[ready.host].name,
            host_rank=ready.host,
            pid=ready.pid,
            incarnation=int(ready.incarnation),
            addresses=tuple(ready.addresses),
        )
        self._procs[ready.mesh, ready.rank] = proc
        spawning = self._spawning.get(ready.mesh)
        if spawning is None:
            return
        spawning.procs[ready.rank] = proc

        def connected(result: Channel | TransportError) -> None:
            if isinstance(result, TransportError):
                self._fail_spawning(ready.mesh, SpawnError(proc.host, f"it runs, but cannot be reached: {result}"))
                return
            self._links.changed()
            spawning.channels += 1
            if spawning.channels == spawning.num_ranks:
                spawning.over.set()

        self.node.dial(proc.addresses, proc.incarnation, connected)

    def _fail_spawning(self, mesh: int, failure: SpawnError) -> None:
        spawning = self._spawning.get(mesh)
        if spawning is not None and spawning.failure is None:
            spawning.failure = failure
            spawning.over.set()

    def _on_ended(self, ended: messages.ProcEnded) -> None:
        key = ended.mesh, ended.rank
        proc = self._procs.get(key)
        if proc is None:
            return
        cause = "it was stopped" if ended.expected else ended.cause
        if not ended.expected:
            said = "".join(f"\n    {line}" for line in ended.last_lines)
            self._printer.put(sys.stderr, f"monarch-hpc: proc {ended.rank} on {proc.host} died: {cause}\n")
            cause += f"; it wrote last:{said}" if said else ""
            self._fail_spawning(ended.mesh, SpawnError(proc.host, cause))
        self._bury(proc, cause, expected=ended.expected)

    def _on_life(self, news: messages.ProcLife) -> None:
        who = f"proc {news.rank} on {self.hosts[news.host].name}"
        if news.life == Life.SUSPECT.value:
            text = (
                f"{who} is stopped by a signal (SIGSTOP): let it go on (SIGCONT), or it is killed {news.dead_s:g} s "
                "after it stopped (config key 'liveness.dead_s')"
            )
        else:
            text = f"{who} goes on after {news.stopped_s:.0f} s"
        self._printer.put(sys.stderr, f"monarch-hpc: {text}\n")

    def _bury(self, proc: ProcRef, cause: str, *, expected: bool = False) -> None:
        self._deaths.record(proc.incarnation, cause, expected=expected)
        self.node.bar(proc.incarnation, cause)
        self._links.changed()
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None:
            channel.give_up(cause)

    def _on_stopped(self, mesh: int, host: int) -> None:
        stopping = self._stopping.get(mesh)
        if stopping is not None:
            left, stopped = stopping
            left.discard(host)
            if not left:
                stopped.set()

    def _on_host_lost(self, host: int, cause: str) -> None:
        name = self.hosts[host].name
        self._printer.put(sys.stderr, f"monarch-hpc: host {name} is lost: {cause}\n")
        for proc in self._procs.values():
            if proc.host_rank == host:
                self._bury(proc, f"host {name} is lost: {cause}")
        for mesh, hosts in self._mesh_hosts.items():
            if host in hosts:
                self._fail_spawning(mesh, SpawnError(name, f"the host is lost: {cause}"))
                self._on_stopped(mesh, host)

    def _print(self, output: messages.Output) -> None:
        name = self._names.get(output.mesh, "")
        prefix = f"[{name + ' ' if name else ''}r{output.rank:02d} {self.hosts[output.host].name}] "
        stream = sys.stdout if output.stream == "out" else sys.stderr
        text = "".join(f"{prefix}{line}\n" for line in output.lines)
        if output.dropped:
            text += f"{prefix}... {output.dropped} lines left out here; the run's log files have them\n"
        self._printer.put(stream, text)


def _umask() -> int:
    """This process's file mode mask; `os.umask` could only tell it by changing it for all threads."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), 8)
