"""What one host does for its allocation: start procs, watch them, end them and what they left."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from monarch_hpc.agent.gpus import visible_gpus
from monarch_hpc.agent.grant import Grant
from monarch_hpc.agent.output import LogFiles, ProcOutput, Tag
from monarch_hpc.agent.proc import Proc, State
from monarch_hpc.agent.reap import Exit, Reaper
from monarch_hpc.agent.start import ProcOrder, ProcStart
from monarch_hpc.agent.sweep import cookies, find, strangers, strike
from monarch_hpc.agent.vigil import Vigil
from monarch_hpc.agent.zygotes import MAX_PROCS_PER_ORDER, Problem, Spawned, Zygotes
from monarch_hpc.config.schema import FabricConfig, TransportConfig, UcxConfig
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import FrameError
from monarch_hpc.supervision.lease import Lease, Life
from monarch_hpc.transport.engine import Engine
from monarch_hpc.wire.messages import (
    CloseRun,
    Message,
    ProcEnded,
    ProcHello,
    ProcLife,
    ProcReady,
    ProcsStopped,
    RunClosed,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
    decode,
)

__all__ = ["Agent", "Place"]

_SWEEP_S = 5.0
_SWEEP_AGAIN_S = 0.01
_MAX_HELLO_BYTES = 64 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is and what it hands on to its procs.

    Args:
        listen_hosts: IP addresses that procs listen on.
        stop_s: between SIGTERM and SIGKILL of a proc whose run ends.
        heartbeat_s: between two looks at the procs' state.
        lease: how long a proc may be stopped by a signal.
        forwarders: addresses of the head's agent; filled in when they are known.
    """

    allocation: str
    rank: int
    name: str
    key: bytes
    grant: Grant
    listen_hosts: list[str]
    stop_s: float
    heartbeat_s: float
    lease: Lease
    forwarders: list[str]
    limits: TransportConfig
    fabric: FabricConfig
    ucx: UcxConfig


class Agent:
    """Carries out what the head passes on for this host. All methods are for the driver of the engine.

    Args:
        send: passes a message to the head.
        crowded: tells whether too much already waits on that way.
    """

    def __init__(
        self,
        engine: Engine,
        place: Place,
        zygotes: Zygotes,
        reaper: Reaper,
        files: LogFiles,
        send: Callable[[Message], None],
        crowded: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._place = place
        self._zygotes = zygotes
        self._reaper = reaper
        self._files = files
        self._send = send
        self._crowded = crowded
        self._vigil = Vigil(engine, place.heartbeat_s, place.lease)
        self._procs: set[Proc] = set()
        self._stopping_meshes: set[tuple[str, int]] = set()
        self._closing_runs: dict[str, Deadline | None] = {}  # None: procs are still ending
        self._leaving: Callable[[int], None] | None = None

    def handle(self, message: Message) -> None:
        """Carry out one message of the head."""
        match message:
            case SpawnProcs():
                self._spawn(message)
            case StopProcs():
                self._stopping_meshes.add((message.run, message.mesh))
                for proc in self._of_mesh(message.run, message.mesh):
                    self._stop(proc, message.grace_s)
                self._settle()
            case CloseRun():
                self._closing_runs.setdefault(message.run, None)
                for proc in [proc for proc in self._procs if proc.start.run == message.run]:
                    self._stop(proc, self._place.stop_s)
                self._settle()
            case _:
                _log.warning("the head sent %s, which no agent handles", type(message).__name__)

    def leave(self, grace_s: float, done: Callable[[int], None]) -> None:
        """End all procs, zygotes and what they started; call *done* with the number of processes left."""
        if self._leaving is not None:
            return
        self._leaving = done
        for proc in list(self._procs):
            self._stop(proc, grace_s)
        deadline = Deadline(grace_s + _SWEEP_S, self._engine.clock)
        self._clear_host(deadline)

    def resume_output(self) -> None:
        """The log files take more again."""
        for proc in self._procs:
            proc.output.resume()

    # ---- starting ----

    def _spawn(self, order: SpawnProcs) -> None:
        first = order.first_rank[order.hosts.index(self._place.rank)]
        places = [(first + local_rank, local_rank) for local_rank in range(order.per_host)]
        problem = self._why_not(order)
        while places and not problem:
            some, rest = places[:MAX_PROCS_PER_ORDER], places[MAX_PROCS_PER_ORDER:]
            try:
                self._spawn_some(order, some)
            except OSError as error:
                problem = f"{error.strerror or error}"
                break
            places = rest
        for rank, _ in places:
            self._send(SpawnFailed(order.run, order.mesh, rank, self._place.rank, problem, []))

    def _why_not(self, order: SpawnProcs) -> str:
        if self._leaving is not None:
            return "the allocation is being released"
        if order.run in self._closing_runs:
            return "the run is over"
        if self._of_mesh(order.run, order.mesh):
            return f"mesh {order.mesh} exists already in this run"
        return ""

    def _spawn_some(self, order: SpawnProcs, places: list[tuple[int, int]]) -> None:
        starts = [self._start(order, rank, local_rank) for rank, local_rank in places]
        ours: list[int] = []
        theirs: list[int] = []
        try:
            for _ in range(3 * len(starts)):
                read, write = os.pipe()
                ours.append(read)
                theirs.append(write)
            procs: list[Proc] = []
            request = ProcOrder(
                starts=starts,
                environment=order.environment,
                sys_path=order.sys_path,
                cwd=order.cwd,
                umask=order.umask,
                gpu_variable=self._place.grant.gpu_variable,
            )
            self._zygotes.spawn(order.preload, request, theirs, lambda outcome: self._forked(procs, outcome))
        except OSError:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        for index, start in enumerate(starts):
            out, err, hello = ours[3 * index : 3 * index + 3]
            tag = Tag(start.run, start.mesh, start.rank, start.host_rank)
            path = self._files.path(start.run, start.rank, start.host_name)
            pipes = {"out": out, "err": err}
            output = ProcOutput(self._engine, tag, pipes, self._files, path, self._send, self._crowded)
            proc = Proc(start, output, hello)
            proc.deadline = self._engine.call_later(order.deadline_s, partial(self._late, proc, order.deadline_s))
            os.set_blocking(hello, False)
            self._engine.watch(hello, partial(self._read_hello, proc))
            procs.append(proc)
        self._procs.update(procs)

    def _start(self, order: SpawnProcs, rank: int, local_rank: int) -> ProcStart:
        place = self._place
        # A spinning thread without a core of its own only takes time from the one it waits for.
        room = len(self._procs) + order.per_host < len(place.grant.cpus)
        return ProcStart(
            allocation=place.allocation,
            run=order.run,
            mesh=order.mesh,
            rank=rank,
            num_ranks=order.num_ranks,
            local_rank=local_rank,
            per_host=order.per_host,
            host_rank=place.rank,
            host_name=place.name,
            key=place.key,
            listen_hosts=place.listen_hosts,
            gpus=visible_gpus(place.grant.gpus, local_rank, order.per_host, order.gpu_visible),
            hello_fd=-1,
            spin_s=place.fabric.spin_us / 1e6 if room else 0.0,
            forwarders=place.forwarders,
            interfaces=list(place.grant.interfaces),
            limits=place.limits,
            fabric=place.fabric,
            ucx=place.ucx,
        )

    def _forked(self, procs: list[Proc], outcome: Spawned) -> None:
        if isinstance(outcome, Problem):
            for proc in procs:
                self._gone(proc, outcome.cause, outcome.last_lines)
            return
        for proc, pid in zip(procs, outcome, strict=True):
            proc.pid = pid
            try:
                self._reaper.watch(pid, partial(self._ended, proc))
            except OSError as error:  # no descriptor is left
                os.kill(pid, signal.SIGKILL)
                self._gone(proc, f"cannot be watched: {error.strerror}", [])
            if proc in self._procs:
                self._vigil.watch(pid, partial(self._on_life, proc))
                self._welcome(proc)
            else:  # given up while the zygote was busy
                self._kill(proc)

    def _read_hello(self, proc: Proc, _mask: int = 0) -> None:
        try:
            data = os.read(proc.hello_fd, _MAX_HELLO_BYTES)
        except BlockingIOError:
            return
        proc.hello += data
        if data and b"\n" not in proc.hello and len(proc.hello) < _MAX_HELLO_BYTES:
            return
        self._close_hello(proc)
        self._welcome(proc)

    def _welcome(self, proc: Proc) -> None:
        """Report a proc as ready when both it and the zygote have spoken, whoever was first."""
        if not proc.pid or proc.stopping or proc.state is State.READY:
            return
        try:
            hello = decode(proc.hello)
        except FrameError:
            return  # not all of it, or nonsense: its end or the deadline tells
        if isinstance(hello, ProcHello):
            proc.state = State.READY
            if proc.deadline is not None:
                proc.deadline.cancel()
            start = proc.start
            incarnation = str(hello.incarnation)
            self._send(
                ProcReady(start.run, start.mesh, start.rank, start.host_rank, proc.pid, incarnation, hello.addresses)
            )

    def _close_hello(self, proc: Proc) -> None:
        if proc.hello_fd >= 0:
            self._engine.unwatch(proc.hello_fd)
            os.close(proc.hello_fd)
            proc.hello_fd = -1

    def _late(self, proc: Proc, deadline_s: float) -> None:
        late = f"after {deadline_s:g} s (config key 'procs.start_s')"
        if proc.pid:
            proc.cause = f"it was not ready {late}"
            proc.stopping = True
            self._kill(proc)
        else:
            self._gone(proc, f"the zygote still imports what is to be preloaded {late}", [])

    def _on_life(self, proc: Proc, life: Life, stopped_s: float) -> None:
        start = proc.start
        if life is Life.DEAD:
            proc.cause = f"stopped (SIGSTOP) for {stopped_s:.0f} s"
            proc.stopping = True
            self._kill(proc)
        elif proc.state is State.READY and not proc.asked:
            where = start.run, start.mesh, start.rank, start.host_rank
            self._send(ProcLife(*where, life.value, round(stopped_s, 1), self._place.lease.dead_s))

    # ---- ending ----

    def _stop(self, proc: Proc, grace_s: float) -> None:
        proc.asked = True
        if proc.stopping:
            return
        proc.stopping = True
        if not proc.pid:
            self._gone(proc, "stopped before it was forked", [])
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(proc.pid, signal.SIGTERM)
        proc.killer = self._engine.call_later(grace_s, partial(self._kill, proc))

    def _kill(self, proc: Proc) -> None:
        if proc.pid in self._reaper.watched:  # not reaped, so the number is still its own
            for send in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError):
                    send(proc.pid, signal.SIGKILL)

    def _ended(self, proc: Proc, how: Exit) -> None:
        if proc.hello_fd >= 0:
            self._read_hello(proc)
        self._gone(proc, proc.cause or str(how), [])

    def _gone(self, proc: Proc, cause: str, last_lines: list[str]) -> None:
        if proc not in self._procs:
            return
        self._procs.discard(proc)
        self._vigil.forget(proc.pid)
        for timer in (proc.deadline, proc.killer):
            if timer is not None:
                timer.cancel()
        self._close_hello(proc)
        proc.output.finish()
        start = proc.start
        words = last_lines or proc.output.last_lines
        if proc.state is State.STARTING:
            self._send(SpawnFailed(start.run, start.mesh, start.rank, start.host_rank, cause, words))
        else:
            self._send(ProcEnded(start.run, start.mesh, start.rank, start.host_rank, proc.asked, cause, words))
        self._settle()

    def _settle(self) -> None:
        """Report the meshes and runs of which nothing is left."""
        for run, mesh in list(self._stopping_meshes):
            if not self._of_mesh(run, mesh):
                self._stopping_meshes.discard((run, mesh))
                self._send(ProcsStopped(run, mesh, self._place.rank))
        for run, deadline in list(self._closing_runs.items()):
            if deadline is None and not any(proc.start.run == run for proc in self._procs):
                self._closing_runs[run] = Deadline(_SWEEP_S, self._engine.clock)
                self._clear_run(run)

    def _clear_run(self, run: str) -> None:
        entries = cookies(self._place.allocation, self._place.rank, run)
        num_found = strike(entries) + self._strike_strangers()
        deadline = self._closing_runs[run]
        if num_found and deadline is not None and not deadline.passed():
            self._engine.call_later(_SWEEP_AGAIN_S, lambda: self._clear_run(run))
            return
        if num_found:
            _log.warning("%d processes of run %s do not die", num_found, run)
        del self._closing_runs[run]
        self._send(RunClosed(run))

    def _strike_strangers(self) -> int:
        # Orphans that emptied their environment tell no run, so they can only go when no run is left.
        if self._procs:
            return 0
        found = strangers(self._reaper.watched)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def _clear_host(self, deadline: Deadline) -> None:
        assert self._leaving is not None
        if self._procs and not deadline.passed():
            self._engine.call_later(_SWEEP_AGAIN_S, lambda: self._clear_host(deadline))
            return
        self._zygotes.close()
        entries = cookies(self._place.allocation, self._place.rank)
        num_found = strike(entries) + self._strike_strangers()
        if num_found and not deadline.passed():
            self._engine.call_later(_SWEEP_AGAIN_S, lambda: self._clear_host(deadline))
            return
        self._leaving(len(find(entries)))

    def _of_mesh(self, run: str, mesh: int) -> list[Proc]:
        return [proc for proc in self._procs if (proc.start.run, proc.start.mesh) == (run, mesh)]
