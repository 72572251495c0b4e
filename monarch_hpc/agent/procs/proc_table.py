"""The procs of a host from their order to their end: their hello, their processes, their records."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.children.stop_watch import StoppedProcs
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.procs.mpi_step import MpiSteps
from monarch_hpc.agent.procs.proc import Proc, ProcState
from monarch_hpc.agent.procs.records import HostRecords
from monarch_hpc.agent.procs.refusals import Refusals
from monarch_hpc.agent.procs.scribe import Scribe
from monarch_hpc.agent.procs.stack_dumps import StackDumps
from monarch_hpc.agent.questions import PART_OF_WAIT
from monarch_hpc.agent.resources.gpu_errors import find_gpu_error
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.telemetry.history import HISTORY
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.telemetry.views.flame import without_profile
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcHello, ProcLife, ProcReady, SpawnFailed
from monarch_hpc.wire.control.questions import Ask
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.start import STOP_ORDERED
from monarch_hpc.wire.tables.answer import Sources
from monarch_hpc.wire.tables.calls import CALLS
from monarch_hpc.wire.tables.clocks import CLOCKS
from monarch_hpc.wire.tables.history import RECORDERS
from monarch_hpc.wire.tables.memory import MEMORY
from monarch_hpc.wire.tables.procs import PROCS, ProcRow
from monarch_hpc.wire.tables.profiles import MAX_SECONDS, PROFILES, ProfileRow
from monarch_hpc.wire.tables.schema import Table
from monarch_hpc.wire.tables.stacks import STACKS, ThreadStack

__all__ = ["ProcTable"]

R = TypeVar("R")

_MAX_HELLO_BYTES = 64 << 10


class ProcTable:
    """The procs that have been ordered and have not ended. All methods must be called on the engine's driver.

    Args:
        send: sends a message to the head.
        on_ended: called after a proc has left the table and its end was reported.
        clock: the comparison of this host's clock with the head's.
        scribe: the helper of this host, which is told of procs.

    Attributes:
        ending: why all procs are asked to end, if it is for another reason than that somebody wants it.
        failed_gpus: GPUs that are not given out again, with the error that a proc wrote.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ProcSettings,
        steps: MpiSteps,
        reaper: Reaper,
        send: Callable[[Message], None],
        on_ended: Callable[[], None],
        clock: ClockComparison,
        scribe: Scribe,
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._reaper = reaper
        self._send = send
        self._on_ended = on_ended
        self._lease = settings.lease
        self._procs: set[Proc] = set()
        self._clock = clock
        self._scribe = scribe
        self._records = HostRecords(settings.telemetry.keep_dead)
        self._refusals = Refusals(engine, self._procs)
        # Apart from each other: a request for stacks must not wait until a profile is done.
        self._dumps, self._profiles = (
            StackDumps(engine, reaper, settings.allocation, settings.rank, lambda: {*reaper.watched, *steps.watched})
            for _ in range(2)
        )
        self.ending: Death | None = None
        self.failed_gpus: dict[str, str] = {}
        self._stopped_procs = StoppedProcs(engine, settings.heartbeat_s, settings.lease)

    def __iter__(self) -> Iterator[Proc]:
        return iter(list(self._procs))

    def __len__(self) -> int:
        return len(self._procs)

    def __contains__(self, proc: object) -> bool:
        return proc in self._procs

    def of_mesh(self, run: str, mesh: int) -> list[Proc]:
        """The procs of a mesh."""
        return [proc for proc in self._procs if (proc.start.run, proc.start.mesh) == (run, mesh)]

    def of_run(self, run: str) -> list[Proc]:
        """The procs of a run."""
        return [proc for proc in self._procs if proc.start.run == run]

    @property
    def sources(self) -> Sources:
        """The tables that this host has rows of: all procs, and the dead procs whose records are kept."""
        return {
            CALLS.name: lambda: self._records.calls(self._procs),
            MEMORY.name: lambda: self._records.memory(self._procs),
            PROCS.name: lambda: self._records.procs(self._procs),
            CLOCKS.name: lambda: [self._clock.row()],
            RECORDERS.name: lambda: self._records.recorders(self._procs),
            **{name: partial(self._records.history, self._procs, name, self._clock) for name in HISTORY},
        }

    def stacks(self, question: Ask, done: Callable[[list[ThreadStack]], None]) -> None:
        """Read the stacks of the procs that *question* asks for, and pass on their rows: once, when all are read."""
        native = question.where.get("native") is True

        def read(row: ProcRow, take: Callable[[list[ThreadStack]], None]) -> None:
            self._dumps.dump(row, question.timeout_s * PART_OF_WAIT, take, native=native)

        self._read_all(STACKS, question, read, done)

    def profiles(self, question: Ask, done: Callable[[list[ProfileRow]], None]) -> None:
        """Sample the procs that *question* asks for, and pass on their rows: once, when all are sampled."""
        seconds = question.where.get("seconds", 1)
        assert isinstance(seconds, int)
        idle = question.where.get("idle") is True

        def read(row: ProcRow, take: Callable[[list[ProfileRow]], None]) -> None:
            if 1 <= seconds <= MAX_SECONDS:
                self._profiles.profile(row, seconds, question.timeout_s * PART_OF_WAIT, take, idle=idle)
            else:
                take([without_profile(row, seconds, f"a profile takes 1 to {MAX_SECONDS} s", idle=idle)])

        self._read_all(PROFILES, question, read, done)

    def _read_all(
        self,
        table: Table[R],
        question: Ask,
        read: Callable[[ProcRow, Callable[[list[R]], None]], None],
        done: Callable[[list[R]], None],
    ) -> None:
        chosen = [row for row in self._records.procs(self._procs) if table.chooses(row, question.where)]
        left = [row for row in chosen if row.state != "ended"]
        rows: list[R] = []
        num_left = len(left)

        def take(some: list[R]) -> None:
            nonlocal num_left
            rows.extend(some)
            num_left -= 1
            if not num_left:
                done(rows)

        for row in left:
            read(row, take)
        if not left:
            done(rows)

    def close(self) -> None:
        """Free the records of dead procs."""
        self._records.close()

    def log_refusals(self) -> None:
        """Log the connections that procs have refused since the last such line."""
        self._refusals.log_new()

    # ---- the start ----

    def add(self, proc: Proc, deadline_s: float) -> None:
        """Add a proc that is about to be forked, and must send its hello within *deadline_s*."""
        self._procs.add(proc)
        proc.deadline = self._engine.call_later(deadline_s, partial(self._on_deadline, proc, deadline_s))
        self._engine.watch(proc.hello_fd, partial(self._read_hello, proc))
        self._records.starts(proc)

    def on_forked(self, proc: Proc) -> None:
        """Watch the process of a proc; kill it if the proc was given up while the zygote was busy."""
        try:
            watcher = self._steps if proc.in_step else self._reaper
            watcher.watch(proc.pid, partial(self._on_exit, proc))
            if proc in self._procs:
                self._stopped_procs.watch(proc.pid, partial(self._on_liveness, proc), partial(self._on_exec, proc))
                self._scribe.add(_place(proc), proc.record_fd)
        except Exception as error:  # noqa: BLE001 e.g. out of descriptors: unwatched, the process would leak
            with contextlib.suppress(ProcessLookupError):
                os.kill(proc.pid, signal.SIGKILL)
            self.end(proc, f"cannot be watched: {error}")
        if proc in self._procs:
            self._report_if_ready(proc)
        else:
            self.kill(proc)

    def _read_hello(self, proc: Proc, _mask: int = 0) -> None:
        try:
            data = os.read(proc.hello_fd, _MAX_HELLO_BYTES)
        except BlockingIOError:
            return
        proc.hello += data
        if data and b"\n" not in proc.hello and len(proc.hello) < _MAX_HELLO_BYTES:
            return
        self._close_hello(proc)
        self._report_if_ready(proc)

    def _report_if_ready(self, proc: Proc) -> None:
        """Report a proc as ready once its hello and its pid are known, in either order."""
        if not proc.pid or proc.stopping or proc.state is ProcState.READY:
            return
        try:
            hello = decode(proc.hello)
        except FrameError:
            return  # incomplete or invalid: the proc's end or the deadline follows
        if isinstance(hello, ProcHello):
            proc.state = ProcState.READY
            if proc.deadline is not None:
                proc.deadline.cancel()
            self._records.ready(proc, hello.incarnation)
            start = proc.start
            ready = ProcReady(start.proc, proc.pid, str(hello.incarnation), hello.addresses, start.restarts)
            self._send(ready)

    def _close_hello(self, proc: Proc) -> None:
        if proc.hello_fd >= 0:
            self._engine.unwatch(proc.hello_fd)
            os.close(proc.hello_fd)
            proc.hello_fd = -1

    def _on_deadline(self, proc: Proc, deadline_s: float) -> None:
        late = f"after {deadline_s:g} s (config key 'procs.start_s')"
        if proc.pid:
            proc.cause = f"it was not ready {late}"
            proc.stopping = True
            self.kill(proc)
        else:
            self.end(proc, f"the zygote was still importing the preload modules {late}")

    # ---- the end ----

    def stop(self, proc: Proc, grace_s: float) -> None:
        """End a proc as requested: with SIGTERM, and after *grace_s* with SIGKILL."""
        proc.stop_requested = True
        if proc.stopping:
            return
        proc.stopping = True
        if not proc.pid:
            self.end(proc, "stopped before it was forked")
            self._steps.abandon(proc.start.run, proc.start.mesh)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(proc.pid, STOP_ORDERED)
            os.kill(proc.pid, signal.SIGTERM)
        proc.killer = self._engine.call_later(grace_s, partial(self.kill, proc))

    def kill(self, proc: Proc) -> None:
        """Send SIGKILL to a proc and its process group."""
        if (
            proc.pid in self._reaper.watched or proc.pid in self._steps.watched
        ):  # not reaped yet, so the pid cannot have been reused
            for send in (os.kill, os.killpg):
                with contextlib.suppress(ProcessLookupError):
                    send(proc.pid, signal.SIGKILL)

    def end(
        self,
        proc: Proc,
        cause: str,
        last_lines: list[str] | None = None,
        kind: DeathKind = DeathKind.UNKNOWN,
        *,
        succeeded: bool = False,
    ) -> None:
        """Remove and report a proc that has ended, or that failed to start; nothing if it has left already.

        Args:
            last_lines: the last lines that it wrote; None for those that the agent has read.
            succeeded: whether it has ended by itself, with exit code 0.
        """
        if proc not in self._procs:
            return
        self._procs.discard(proc)
        self._stopped_procs.forget(proc.pid)
        for timer in (proc.deadline, proc.killer):
            if timer is not None:
                timer.cancel()
        self._close_hello(proc)
        proc.output.finish()
        self._refusals.ended(proc)
        self._scribe.remove(_place(proc), cause, failed=not proc.stop_requested)
        running = [] if proc.stop_requested else self._records.running(proc)
        self._records.ended(proc, cause)
        lines = last_lines or proc.output.last_lines
        if proc.state is ProcState.STARTING:
            self._send(SpawnFailed(proc.start.proc, cause, lines))
        else:
            if proc.stop_requested:
                asked = self.ending or Death(DeathKind.STOPPED, cause)
                kind, cause = asked.kind, asked.cause
            elif proc.own_gpus and (error := find_gpu_error(lines)):
                self.failed_gpus |= dict.fromkeys(proc.own_gpus, error)
                gpus = ", ".join(proc.own_gpus)
                kind, cause = DeathKind.GPU, f"{cause}; GPU {gpus} failed, and is not given out again: {error}"
                succeeded = False
            self._send(ProcEnded(proc.start.proc, proc.stop_requested, cause, lines, kind.value, succeeded, running))
        self._on_ended()

    def _on_exit(self, proc: Proc, how: Exit) -> None:
        if proc.hello_fd >= 0:
            self._read_hello(proc)
        death = Death.of_exit(how)
        kind = DeathKind.SIGNAL if proc.cause else death.kind
        self.end(proc, proc.cause or death.cause, kind=kind, succeeded=how.code == 0 and not proc.cause)

    def _on_liveness(self, proc: Proc, life: Liveness, stopped_s: float) -> None:
        if life is Liveness.DEAD:
            proc.cause = f"stopped (SIGSTOP) for {stopped_s:.0f} s"
            proc.stopping = True
            self.kill(proc)
        elif proc.state is ProcState.READY and not proc.stop_requested:
            self._send(ProcLife(proc.start.proc, life.value, round(stopped_s, 1), self._lease.dead_s))

    def _on_exec(self, proc: Proc) -> None:
        proc.cause = "it has replaced itself by another program (exec)"
        proc.stopping = True
        self.kill(proc)


def _place(proc: Proc) -> ProcPlace:
    return ProcPlace(proc.start.run, proc.start.mesh, proc.start.rank, proc.pid)
