"""The head: keeps the roster and the runs, and routes control messages between programs and agents.

It interprets messages only as far as routing requires. It does no I/O: links and timers are passed in. Its state is
changed by events only, see `agent.head.state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from monarch_hpc.agent.head import events
from monarch_hpc.agent.head.deadline import HeadDeadline, Later
from monarch_hpc.agent.head.hosts.departures import Departures
from monarch_hpc.agent.head.hosts.losses import AskSlurm, HostLosses, no_answer
from monarch_hpc.agent.head.hosts.resignation import Resignation, ResignWork
from monarch_hpc.agent.head.hosts.returns import HostReturns
from monarch_hpc.agent.head.hosts.roster import HostRoster, HostSlot
from monarch_hpc.agent.head.inheritance import Inheritance
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import NO_PEER, HeadPeers
from monarch_hpc.agent.head.questions import HeadQuestions
from monarch_hpc.agent.head.request_checks import problem_of, problem_of_links
from monarch_hpc.agent.head.runs.closing import RunClosing
from monarch_hpc.agent.head.runs.held import HeldRuns
from monarch_hpc.agent.head.runs.kept import KeptMeshes
from monarch_hpc.agent.head.runs.runs import OpenObserver, RunPeers, opened, problem_of_mesh, refusal, report
from monarch_hpc.agent.head.state import HeadState, RunState, apply
from monarch_hpc.core.ids import first_member
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.telemetry.clock import realtime_ns
from monarch_hpc.wire.control.allocation import (
    DrainHost,
    FreeHosts,
    HostEntry,
    Join,
    Roster,
    ShutDown,
    ShutDownDone,
    Status,
    Vacate,
    Vacated,
)
from monarch_hpc.wire.control.clocks import AskClock, ClockTold
from monarch_hpc.wire.control.deadline import AwaitDeadline, DeadlineMet, SetJobEnd, Terminated
from monarch_hpc.wire.control.kept import KeepMesh, OpenKept, ProcsKept, StopKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import FlushLogs, LogsSet, Output, SetLogs
from monarch_hpc.wire.control.procs import (
    ProcEnded,
    ProcLife,
    ProcReady,
    ProcsStopped,
    SpawnFailed,
    SpawnProcs,
    StopProcs,
)
from monarch_hpc.wire.control.questions import Ask, AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.refusal import Refused, refuse
from monarch_hpc.wire.control.runs import TAKEN_OVER, CloseRun, OpenRun, Recording, RunClosed, RunLinks
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["Head"]

_log = Logger(__name__)


class Head:
    """The roster and the runs of one allocation.

    Args:
        num_hosts: number of agents expected.
        clock, later: monotonic time in seconds; runs a callback after a delay in seconds.
        stop_s: seconds between SIGTERM and SIGKILL of procs whose controller is gone.
        changed: called with the usable hosts and the missing ones, once all have joined or the deadline has passed.
        ended: called once shutdown is complete and has been reported.
        open_observer, ask_slurm: see `telemetry.observer` and `agent.head.hosts.losses`.
        max_answer_bytes, notice_s: config keys `telemetry.max_answer_bytes` and `slurm.notice_s`.
        journal: called with each event after it has changed `state`.
        resign: see `Resignation`.
        rank, term: rank of the head's host, and number of its term.
    """

    def __init__(
        self,
        num_hosts: int,
        clock: Callable[[], float],
        later: Later,
        stop_s: float,
        changed: Callable[[list[HostEntry], dict[int, str]], None],
        ended: Callable[[], None],
        open_observer: OpenObserver,
        max_answer_bytes: int,
        notice_s: float,
        journal: Callable[[events.Event], None] = lambda _event: None,
        ask_slurm: AskSlurm = no_answer,
        resign: ResignWork | None = None,
        *,
        rank: int = 0,
        term: int = 1,
    ) -> None:
        self._clock, self._later = clock, later
        self._stop_s, self._changed = stop_s, changed
        self._open_observer = open_observer
        self._journal = journal
        self.state = HeadState(HostRoster(num_hosts), rank=rank, term=term, num_attached=first_member(term))
        self._run_peers: dict[str, RunPeers] = {}
        self._peers = HeadPeers()
        self._questions = HeadQuestions(self.state, self._peers, self._run_peers, later, max_answer_bytes)
        self.idle_left_s = -1.0  # see `StatusReport`
        self._kept = KeptMeshes(self.state, self._peers, self._apply, self._send)
        self._departures = Departures(self.state, self._apply, self._send, later, self._announce, ended)
        self._losses = losses = HostLosses(self.state, self._peers, self._apply, ask_slurm)
        self.inheritance = Inheritance(
            self.state, self._peers, self._apply, self._send, self._to_controller, losses.explain, stop_s
        )
        self.returns = HostReturns(self.state, self._peers, self._apply, clock, later)
        end = self._departures.shut_down
        self._resignation = resignation = Resignation(
            self.state, self._peers, self._apply, self._send, losses, later, self.on_agent_lost, resign
        )
        self.deadline = HeadDeadline(
            self.state, self._peers, clock, later, end, ask_slurm, notice_s, resignation.begin, resignation.take
        )
        self._closing = closing = RunClosing(
            self.state, self._peers, self._run_peers, self._apply, self._send, later, stop_s
        )
        self._held = HeldRuns(self.state, self._peers, later, closing.close, self._send, self._questions.ask, stop_s)

    def _apply(self, event: events.Event) -> None:
        apply(self.state, event)
        self._journal(event)
        self.returns.on_event(event)
        self._kept.on_event(event)

    # ---- agents ----

    def on_join(self, link: Link, join: Join) -> None:
        """Add an agent to the roster; a second one on the same host is refused."""
        problem = self.state.roster.refusal(join.host, join.num_hosts)
        if problem:
            link.send(Refused("", problem))
            link.close(problem)
            return
        if join.problem:
            _log.warning("%s: %s", join.host.name, join.problem)
        self._apply(events.HostJoined(self._peers.add(link), join.host, join.problem, join.num_hosts))
        self.inheritance.resume()
        self._announce()

    def on_bootstrap_deadline(self) -> None:
        """Stop waiting for agents; later ones are still added."""
        self._apply(events.DeadlinePassed())
        if self.state.roster.missing():  # else the last join has been announced
            self._announce()

    def on_life(self, link: Link, life: Liveness) -> None:
        """Record the liveness of an agent."""
        if (slot := self._slot(link)) is not None:
            self._apply(events.HostLifeChanged(slot.entry.rank, life))

    def on_agent(self, link: Link, message: Message) -> None:
        """Handle or forward an agent's message."""
        slot = self._slot(link)
        if slot is None:
            return
        match message:
            case Rows() | SqlAnswer():
                self._questions.take(link, message)
            case AskClock():
                link.send(ClockTold(message.ticket, realtime_ns()))
            case RunClosed():
                self._closing.closed_on(message.run, slot.entry.rank)
            case ShutDownDone():
                self._departures.note(slot.entry.rank, message.left)
                if self.state.shutting_down is None:
                    link.close("it was told to leave")
                self._resignation.left(slot.entry.rank)
            case ProcReady() | ProcLife() | SpawnFailed() | ProcsStopped() | Output() | LogsSet():
                self._to_controller(message)
            case ProcsKept():
                self._kept.on_kept(message)
            case ProcEnded():
                self._losses.explain_proc(slot.entry.name, message, self._to_controller)
            case Refused():
                self._questions.take(link, message)
                self._to_controller(message)
            case Terminated():
                self._resignation.note_end(slot)
                dismiss = partial(self._losses.dismiss, slot, link, self._stop_s)
                self.deadline.on_agent(dismiss, together=self._resignation.ends_with_head(slot))
            case _:
                _log.warning("%s sent %s, which the head does not handle", slot.entry.name, type(message).__name__)

    def on_agent_lost(self, link: Link, cause: str) -> int | None:
        """Handle the loss of an agent, its host or its link; return the host's rank if the agent was on the roster."""
        slot = self._slot(link)
        self._peers.forget(link)
        if slot is None:
            return None
        rank, runs, life = slot.entry.rank, dict(self.state.runs), slot.life
        self._apply(events.HostGone(rank, cause))
        self._questions.lose(link)
        if self.state.shutting_down is None:
            _log.warning("lost %s: %s", slot.entry.name, cause)
        self._losses.explain(slot, cause, life, runs)
        for name, run in runs.items():
            self._closing.report(name, run)
        self._departures.lose(rank, slot.entry.name)
        self._resignation.left(rank)
        return rank

    # ---- controllers and tools ----

    def on_client(self, link: Link, message: Message) -> None:
        """Handle or forward a request of a controller or a tool."""
        match message:
            case OpenRun():
                self._open(link, message)
            case SpawnProcs() | StopProcs() if self.inheritance.holds(message, partial(self.on_client, link, message)):
                pass
            case KeepMesh() | OpenKept() | StopKept():
                if not self.inheritance.defers(link, partial(self.on_client, link, message)):
                    self._kept.on_client(link, message)
            case SpawnProcs():
                self._spawn(link, message)
            case StopProcs():
                self._stop(link, message)
            case SetLogs() | FlushLogs():
                self._set_logs(link, message)
            case CloseRun():
                run = self.state.runs.get(message.run)
                if run is None:
                    link.send(RunClosed(message.run))
                else:
                    if not self._is_member(link, run):
                        self._apply(events.PeerEnteredRun(message.run, self._peers.add(link)))
                    self._closing.close(message.run, message.exit_code)
            case RunLinks() if problem := problem_of_links(message.links):
                link.send(refuse(message, problem))
            case RunLinks() | Recording():
                run = self.state.runs.get(message.run)
                if run is not None and self._is_member(link, run):
                    owner = None if run.owner is None else self._peers.links.get(run.owner)
                    self._run_peers[message.run].note(link, message, owner)
            case Ask() | AskSql():
                self._questions.ask(link, message)
            case Rows():
                self._questions.take(link, message)
            case DrainHost() if problem := self._departures.drain(message):
                link.send(refuse(message, problem))
            case Status() | DrainHost():
                link.send(report(self.state, self._peers.links, self._run_peers, self._clock(), self.idle_left_s))
            case SetJobEnd() | AwaitDeadline() | DeadlineMet():
                self.deadline.on_client(link, message)
            case ShutDown():
                self.shut_down(message.grace_s, link)
            case FreeHosts():
                self._departures.free(link, message)
            case Vacate():
                link.send(Vacated(self._departures.vacate(link)))
            case _:
                link.send(refuse(message, f"the head does not handle {type(message).__name__}"))

    def on_client_lost(self, link: Link, cause: str) -> None:
        """Handle the loss of a controller or tool: stop its procs; if it owned a run, close the run."""
        for part in (self._departures, self.deadline, self.inheritance):
            part.forget(link)
        self._questions.lose(link)
        self._kept.on_client_lost(link)
        for name, run in list(self.state.runs.items()):
            if not self._is_member(link, run):
                continue
            peer = self._peers.number(link)
            self._run_peers[name].forget(link)
            self._apply(events.PeerLeftRun(name, peer))
            self._held.lose(name, run, peer, cause)
            if run.owner is None and not run.members:
                self._closing.close_orphan_later(name, run)
        self._peers.forget(link)

    def shut_down(self, grace_s: float, requester: Link | None) -> None:
        """End all procs; report to *requester* the number of processes left by host, -1 where it is unknown."""
        self._departures.shut_down(grace_s, requester=requester)

    @property
    def num_programs(self) -> int:
        """Number of connected programs that have opened a run, also of those whose run is over."""
        return len(self._peers.links) - len(self.state.roster.linked())

    def knows(self, link: Link) -> bool:
        """Tell whether a client has opened a run, or used kept procs; others have only asked."""
        return self._peers.number(link) != NO_PEER

    def owns(self, link: Link) -> bool:
        """Tell whether *link* belongs to the owner of a run."""
        return self.state.owns(self._peers.number(link))

    # ---- runs ----

    def _open(self, link: Link, message: OpenRun) -> None:
        run = self.state.runs.get(message.run)
        problem = refusal(self.state, message) or self._departures.refusal() or self._held.problem_of(message, run)
        if problem:
            link.send(refuse(message, problem))
            return
        peer = self._peers.add(link)
        superseded = self._held.superseded(run, message, peer)
        if run is None:
            self._run_peers[message.run] = RunPeers(message.run, self._clock(), self._open_observer)
        self._apply(events.RunAttached(peer, message, self._clock()))
        for member in superseded:
            member.close(f"{TAKEN_OVER} {message.run}")
        if message.owner:
            self._run_peers[message.run].on_owner(link)
        self.deadline.report(link)  # first: an open run knows its time
        link.send(opened(self.state, message))
        self.inheritance.reopen(peer, message)
        self._held.hand_over(link, message)

    def _spawn(self, link: Link, message: SpawnProcs) -> None:
        if problem := problem_of(message):
            link.send(refuse(message, problem))
            return
        run, roster = self.state.runs.get(message.run), self.state.roster
        problem = problem_of_mesh(run, message, member=run is not None and self._is_member(link, run))
        present = {rank for rank in message.hosts if not problem and roster.usable(rank)}
        for rank in message.hosts:
            if rank not in present:
                cause = problem or roster.absence(rank)
                for mesh_rank in message.ranks_on(rank):
                    link.send(SpawnFailed(ProcKey(message.run, message.mesh, mesh_rank, rank), cause, []))
        if not problem:
            self._apply(events.MeshRequested(message.run, message.mesh, self._peers.add(link), tuple(sorted(present))))
            self._send(present, message)

    def _stop(self, link: Link, message: StopProcs) -> None:
        mesh = self.state.mesh(message.run, message.mesh)
        self._forward(link, message, mesh is not None, partial(ProcsStopped, message.run, message.mesh))

    def _set_logs(self, link: Link, message: SetLogs | FlushLogs) -> None:
        mesh = self.state.mesh(message.run, message.mesh)
        ours = mesh is not None and mesh.peer == self._peers.number(link)
        self._forward(link, message, ours, lambda rank: LogsSet(message.run, message.mesh, rank, message.number))

    def _forward(
        self, link: Link, message: StopProcs | SetLogs | FlushLogs, valid: bool, answer: Callable[[int], Message]
    ) -> None:
        present = {rank for rank in message.hosts if valid and self.state.roster.usable(rank)}
        for rank in message.hosts:
            if rank not in present:
                link.send(answer(rank))
        self._send(present, message)

    def _to_controller(self, message: events.MeshReport) -> None:
        mesh = self.state.mesh(message.run, message.mesh)
        if mesh is None:
            self.inheritance.keep(message)
            return
        link = self._peers.links.get(mesh.peer)
        self._held.note(message)
        self._kept.note(message)
        if (event := events.of_report(message)) is not None:
            self._apply(event)
        peers = self._run_peers.get(message.run)  # the run of a kept mesh may be over
        if link is not None and peers is not None:
            peers.deliver(link, message, self._clock())

    # ---- links ----

    def _slot(self, link: Link) -> HostSlot | None:
        return self.state.roster.of(self._peers.number(link))

    def _is_member(self, link: Link, run: RunState) -> bool:
        return self._peers.number(link) in run.members

    def _send(self, ranks: Iterable[int], message: Message) -> None:
        for link in self._peers.of(self.state.roster.peers(ranks)):
            link.send(message)

    def _announce(self) -> None:
        roster, missing = self.state.roster, self.state.roster.missing()
        if missing and not self.state.past_deadline:
            return
        hosts = roster.connected()
        self._send([host.rank for host in hosts], Roster(hosts, roster.num_hosts))
        self._changed(hosts, missing)
