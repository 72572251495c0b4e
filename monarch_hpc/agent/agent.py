"""One host's work for its allocation: start procs, watch them, end them and whatever they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import partial

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.children.sweep import cookies, find, kill_matching, kill_runs, orphans
from monarch_hpc.agent.output.proc_output import Outlet
from monarch_hpc.agent.proc_settings import ProcSettings
from monarch_hpc.agent.procs.mpi_step import MpiSteps
from monarch_hpc.agent.procs.proc import Proc
from monarch_hpc.agent.procs.proc_table import ProcTable
from monarch_hpc.agent.procs.scribe import Scribe
from monarch_hpc.agent.procs.spawner import ProcSpawner
from monarch_hpc.agent.procs.zygote_pool import MAX_PROCS_PER_ORDER, ZygotePool
from monarch_hpc.agent.programs.table import Programs
from monarch_hpc.agent.resources.shm_folder import remove_segments
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.death import Death
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.storage.shortage import shortage_note
from monarch_hpc.telemetry.clock import ClockComparison
from monarch_hpc.telemetry.observer import RecordObserver, open_observer
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.clocks import ClockTold
from monarch_hpc.wire.control.kept import KeepProcs, ProcsKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import FlushLogs, LogsSet, SetLogs
from monarch_hpc.wire.control.procs import ProcsStopped, SpawnFailed, SpawnProcs, StopProcs
from monarch_hpc.wire.control.questions import Ask, AskHosts, AskSql, Portion, SqlAnswer
from monarch_hpc.wire.control.runs import CloseRun, Recording, RunClosed
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.start import MESH_COOKIE
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.calls import PROGRAM_MESH
from monarch_hpc.wire.tables.keeping import KEEPING
from monarch_hpc.wire.tables.profiles import PROFILES
from monarch_hpc.wire.tables.samples import SAMPLES
from monarch_hpc.wire.tables.stacks import STACKS

__all__ = ["Agent"]

_SWEEP_S = 5.0
_SWEEP_RETRY_S = 0.01

_KEEP_ORDERS = 4096
"""Meshes whose order is remembered, as it may come again from the next head; that comes within a minute."""

_log = Logger(__name__)


class Agent:
    """Carries out the head's orders on this host. All methods must be called on the engine's driver.

    Args:
        outlet: receives the procs' output.
        send: sends a message to the head.

    Attributes:
        seated: whether it has this host's seat. Without it there may be another agent here, whose processes carry the
            same marks: it ends nothing but its zygotes when it leaves.
        reaper: watches its children.
    """

    def __init__(
        self,
        engine: Engine,
        settings: ProcSettings,
        zygotes: ZygotePool,
        steps: MpiSteps,
        reaper: Reaper,
        programs: Programs,
        outlet: Outlet,
        send: Callable[[Message], None],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._zygotes = zygotes
        self._steps = steps
        self.reaper = reaper
        self._programs = programs
        self._send = send
        telemetry = settings.telemetry
        self._clock = ClockComparison(
            settings.name, telemetry.clock_exchanges, telemetry.clock_interval_s, send, engine.call_later
        )
        self._scribe = Scribe(engine, settings, reaper, self._clock)
        self._procs = ProcTable(engine, settings, steps, reaper, send, self._settle, self._clock, self._scribe)
        self._spawner = ProcSpawner(engine, settings, zygotes, steps, outlet, send, self._procs)
        self._stopping_meshes: set[tuple[str, int]] = set()
        self._closing_runs: dict[str, Deadline | None] = {}  # None: procs are still ending
        self._kept: set[tuple[str, int]] = set()  # meshes that do not end with their run
        self._clearing = False
        self._ordered: Recent[tuple[str, int], bool] = Recent(_KEEP_ORDERS)
        self.seated = False
        self._leaving: Callable[[int], None] | None = None

    def join(self) -> None:
        """Begin this host's part in the allocation; the head knows it."""
        if not self.seated:
            self.seated = True
            self._engine.call_soon(self._clock.start)

    def open_observer(self, recording: Recording) -> RecordObserver | None:
        """See `telemetry.observer.open_observer`; what the program records is kept as that of procs is."""
        observer = open_observer(recording)
        if observer is not None:
            place = ProcPlace(recording.run, PROGRAM_MESH, 0, recording.pid)
            self._scribe.add(place, observer.memory_fd)
            observer.on_close = partial(self._scribe.remove, place, "", failed=False)
        return observer

    def handle(self, message: Message) -> None:
        """Carry out one message from the head; a failure is answered at once."""
        try:
            self._handle(message)
        except Exception as error:  # noqa: BLE001 a callback's edge: the requester waits for an answer
            _log.exception("%s could not be carried out", type(message).__name__)
            step = shortage_note(error) or "its log has more"
            self._fail(message, f"its agent failed: {type(error).__name__}: {error}; {step}")

    def _fail(self, message: Message, problem: str) -> None:
        match message:
            case SpawnProcs():
                left = set(message.ranks_on(self._settings.rank))
                for proc in self._procs.of_mesh(message.run, message.mesh):
                    if proc.start.rank not in left:
                        continue
                    left.discard(proc.start.rank)
                    proc.cause = problem
                    self._procs.end(proc, problem)  # if already forked, `on_forked` kills it
                    self._procs.kill(proc)
                for rank in sorted(left):
                    self._send(SpawnFailed(ProcKey(message.run, message.mesh, rank, self._settings.rank), problem, []))
            case StopProcs():
                self._stopping_meshes.add((message.run, message.mesh))
                for proc in self._procs.of_mesh(message.run, message.mesh):
                    self._procs.kill(proc)
                self._settle()
            case CloseRun():
                self._closing_runs.setdefault(message.run, None)
                for proc in self._ending_with(message.run):
                    self._procs.kill(proc)
                self._settle()
            case SetLogs() | FlushLogs():
                self._send(LogsSet(message.run, message.mesh, self._settings.rank, message.number))
            case AskSql():
                self._send(SqlAnswer(message.ticket, absent=problem))

    def _handle(self, message: Message) -> None:
        match message:
            case SpawnProcs():
                self._spawn(message)
            case StopProcs():
                self._stopping_meshes.add((message.run, message.mesh))
                for proc in self._procs.of_mesh(message.run, message.mesh):
                    self._procs.stop(proc, message.grace_s)
                self._settle()
            case CloseRun():
                failpoint("agent.close")
                self._closing_runs.setdefault(message.run, None)
                for proc in self._ending_with(message.run):
                    self._procs.stop(proc, self._settings.procs.stop_s)
                self._settle()
            case KeepProcs():
                self._keep(message)
            case SetLogs():
                for proc in self._procs.of_mesh(message.run, message.mesh):
                    if not message.ranks or proc.start.rank in message.ranks:
                        proc.output.stream(message.stream)
                self._send(LogsSet(message.run, message.mesh, self._settings.rank, message.number))
            case FlushLogs():
                for proc in self._procs.of_mesh(message.run, message.mesh):
                    proc.output.flush()
                self._send(LogsSet(message.run, message.mesh, self._settings.rank, message.number))
            case ClockTold():
                self._clock.take(message)
            case AskSql():
                self._scribe.solve(message, self._send)
            case _:
                _log.warning("the head sent %s, which agents do not handle", type(message).__name__)

    def rows(self, question: Ask, max_bytes: int, reply: Callable[[Portion | None], None]) -> None:
        """Pass on this host's rows, up to *max_bytes* of rows of the past; None if they cannot be read."""
        source = f"host {self._settings.name}"
        try:
            if question.table == STACKS.name:
                self._procs.stacks(question, lambda rows: reply(Portion(source, STACKS.render(rows, question.where))))
            elif question.table == PROFILES.name:
                where = question.where
                self._procs.profiles(question, lambda rows: reply(Portion(source, PROFILES.render(rows, where))))
            elif question.pieces or question.table in SAMPLES or question.table == KEEPING.name:
                self._scribe.ask(question, max_bytes, reply)
            else:
                reply(answer(question, source, self._procs.sources, max_bytes))
        except Exception:  # noqa: BLE001 a callback's edge: the hosts behind this one are to be asked all the same
            _log.exception("rows of %s could not be read", question.table)
            reply(None)

    def merge(
        self, question: AskHosts, portions: Sequence[Portion], max_bytes: int, reply: Callable[[Portion | None], None]
    ) -> None:
        """Combine the parts of an answer to a question in SQL; None if they stay as they are."""
        self._scribe.merge(question, portions, max_bytes, reply)

    def leave(self, grace_s: float, done: Callable[[int], None], why: Death | None = None) -> None:
        """End all procs and zygotes and everything they started; call *done* with the number of processes left.

        Args:
            why: stands in the reports of the procs' ends, if nobody has asked for them.
        """
        if self._leaving is not None:
            return
        self._leaving = done
        if not self.seated:
            self._zygotes.close()
            done(0)
            return
        self._procs.ending = why
        # What procs do at the moment is part of what they have recorded.
        self._scribe.ship(partial(self._stop_everything, grace_s), with_open=True)

    def _stop_everything(self, grace_s: float) -> None:
        for proc in self._procs:
            self._procs.stop(proc, grace_s)
        self._programs.leave(grace_s)
        self._await_procs(Deadline(grace_s + _SWEEP_S, self._engine.clock))

    def resume_output(self) -> None:
        """Resume reading the procs' output after the log writer has caught up."""
        for proc in self._procs:
            proc.output.resume()

    # ---- starting ----

    def _spawn(self, order: SpawnProcs) -> None:
        if order.again and (order.run, order.mesh) in self._ordered:
            return
        failpoint("agent.spawn")
        self._ordered[order.run, order.mesh] = True
        first = order.first_rank[order.hosts.index(self._settings.rank)]
        ranks = [(rank, rank - first) for rank in order.ranks_on(self._settings.rank)]
        problem = self._refusal(order)
        while ranks and not problem:
            most = len(ranks) if order.mpi else MAX_PROCS_PER_ORDER
            batch, rest = ranks[:most], ranks[most:]
            try:
                self._spawner.start(order, batch)
            except ValueError as error:
                problem = str(error)
                break
            ranks = rest
        for rank, _ in ranks:
            self._send(SpawnFailed(ProcKey(order.run, order.mesh, rank, self._settings.rank), problem, []))

    def _refusal(self, order: SpawnProcs) -> str:
        if self._leaving is not None:
            return "the allocation is being released"
        if order.run in self._closing_runs:
            return "the run is over"
        if not 0 < order.mesh < 1 << 63 or min(order.first_rank, default=0) < 0:
            return f"invalid order: ranks {order.first_rank} of mesh {order.mesh}"
        running = [proc.start.rank for proc in self._procs.of_mesh(order.run, order.mesh)]
        if running and not order.restarts:
            return f"mesh {order.mesh} exists already in this run"
        taken = sorted(set(running).intersection(order.ranks_on(self._settings.rank)))
        return f"rank {taken[0]} of mesh {order.mesh} runs here, and is not to be replaced yet" if taken else ""

    # ---- ending ----

    def _keep(self, order: KeepProcs) -> None:
        failpoint("agent.keep")
        self._kept.add((order.run, order.mesh))
        self._send(ProcsKept(order.run, order.mesh, order.name, order.num_ranks, self._settings.rank))

    def _ending_with(self, run: str) -> list[Proc]:
        """The procs that end with a run."""
        return [proc for proc in self._procs.of_run(run) if (run, proc.start.mesh) not in self._kept]

    def _settle(self) -> None:
        """Report the meshes and runs whose last proc has ended."""
        for run, mesh in list(self._stopping_meshes):
            if not self._procs.of_mesh(run, mesh):
                self._stopping_meshes.discard((run, mesh))
                self._forget_kept(run, mesh)
                self._send(ProcsStopped(run, mesh, self._settings.rank))
        alive = {proc.start.run for proc in self._procs if (proc.start.run, proc.start.mesh) not in self._kept}
        for run, deadline in self._closing_runs.items():
            if deadline is None and run not in alive:
                self._closing_runs[run] = Deadline(_SWEEP_S, self._engine.clock)
                self._clear_runs_in(0.0)

    def _forget_kept(self, run: str, mesh: int) -> None:
        """End what the procs of a kept mesh have left behind; the end of its run has spared it."""
        if (run, mesh) in self._kept:
            self._kept.discard((run, mesh))
            mark = f"{MESH_COOKIE}={mesh}".encode()
            kill_matching([*cookies(self._settings.allocation, self._settings.rank, run), mark])

    def _clear_runs_in(self, delay_s: float) -> None:
        # Coalesced: when thousands of runs end at once, a scan of all processes for each would delay the heartbeats.
        if not self._clearing:
            self._clearing = True
            self._engine.call_later(delay_s, self._clear_runs)

    def _clear_runs(self) -> None:
        self._clearing = False
        ending = {run: deadline for run, deadline in self._closing_runs.items() if deadline is not None}
        num_found = kill_runs(self._settings.allocation, self._settings.rank, ending, {mesh for _, mesh in self._kept})
        num_orphans = self._kill_orphans()
        for run, deadline in ending.items():
            num_left = num_found[run] + num_orphans
            if num_left and not deadline.passed():
                self._clear_runs_in(_SWEEP_RETRY_S)
                continue
            if num_left:
                _log.warning("%d processes of run %s survive SIGKILL", num_left, run)
            del self._closing_runs[run]
            self._send(RunClosed(run))

    def _kill_orphans(self) -> int:
        # An orphan that emptied its environment belongs to no known run, so it is killed only when none has processes.
        if self._procs or self._programs.running:
            return 0
        found = orphans(self.reaper.watched)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def _await_procs(self, deadline: Deadline) -> None:
        if (self._procs or not self._programs.drained) and not deadline.passed():
            self._engine.call_later(_SWEEP_RETRY_S, lambda: self._await_procs(deadline))
        else:
            self._scribe.ship(partial(self._clear_host, deadline), with_open=False)

    def _clear_host(self, deadline: Deadline) -> None:
        assert self._leaving is not None
        self._programs.close()
        self._zygotes.close()
        self._steps.close()
        self._scribe.close()
        self._procs.close()
        entries = cookies(self._settings.allocation, self._settings.rank)
        num_found = kill_matching(entries) + self._kill_orphans()
        if num_found and not deadline.passed():
            self._engine.call_later(_SWEEP_RETRY_S, lambda: self._clear_host(deadline))
            return
        self._procs.log_refusals()
        remove_segments(self._settings.allocation, self._settings.rank)
        self._leaving(len(find(entries)) if num_found else 0)
