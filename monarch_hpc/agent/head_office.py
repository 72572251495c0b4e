"""The head within an agent's process, with its timers and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from monarch_hpc.agent.agent import Agent
from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.head.events import Event, HostGone, HostJoined, HostMissed, KeptEnded, MeshLeftHost
from monarch_hpc.agent.head.head import Head
from monarch_hpc.agent.head.hosts.resignation import ResignWork
from monarch_hpc.agent.head.idle import watch_idle
from monarch_hpc.agent.head.link import Link, LocalLink
from monarch_hpc.agent.output.retention import Retention
from monarch_hpc.agent.proc_addresses import ProcAddresses
from monarch_hpc.agent.ready_report import report_ready
from monarch_hpc.agent.relaunch import begin_returns
from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.allocation.files import write_left
from monarch_hpc.allocation.heads import HeadPlace, newer_head, write_head
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.api import Peer
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.runs import RunClosed

__all__ = ["FLUSH_S", "HeadOffice", "own_run"]

FLUSH_S = 2.0
"""Time that a final message may take to be sent before the process ends."""

_POLL_S = 0.05

_log = Logger(__name__)


class HeadOffice:
    """The head of one term, in this process.

    Args:
        agent: that of this host.
        num_hosts: the number of hosts of the allocation, as far as is known.
        term: its term.
        journal: see `Head`.
        complete: called when all agents have joined, or the head has stopped waiting for them.
        ended: called once shutdown is complete and has been reported.
        superseded: called with the reason if another head is found to rule.
        hand_over: see `ResignWork`.
        node: of this process.
        resigned: called when the head has resigned, and all have been told.

    Attributes:
        over: whether the head has resigned.
        is_heir: whether it follows another head: then the batch script, on that head's host, may be gone.
    """

    def __init__(
        self,
        agent: Agent,
        args: AgentArgs,
        config: Config,
        num_hosts: int,
        term: int,
        journal: Callable[[Event], None],
        complete: Callable[[], None],
        ended: Callable[[], None],
        superseded: Callable[[str], None],
        hand_over: Callable[[Callable[[bool], None]], None],
        node: Node,
        resigned: Callable[[], None],
    ) -> None:
        reaper = agent.reaper
        self._engine = engine = reaper.engine
        self._args = args
        self._config = config
        self._complete = complete
        self.is_heir = term > 1
        self.over = False
        self._retention = Retention(args.directory, config.logs.keep_runs)
        self._journal = journal
        self._writing: set[str] = set()  # runs that are over, and whose kept procs still write
        self._slurm = slurm = SlurmQuery(engine, args.slurm_job_id, args.environment)
        self.head = Head(
            num_hosts,
            engine.clock,
            engine.call_later,
            config.agent.grace_s,
            partial(self._changed, term),
            ended,
            agent.open_observer,
            config.telemetry.max_answer_bytes,
            config.slurm.notice_s,
            self._on_event,
            slurm.ask,
            ResignWork(hand_over, partial(self._resign, node, resigned)),
            rank=args.rank,
            term=term,
        )
        self._leave_steps: Callable[[], None] = lambda: None
        if term == 1 or args.relaunches:  # the steps of agents that an heir started would end with its own
            self._leave_steps = begin_returns(self.head.returns, engine, reaper, args, config, slurm, term, superseded)
        self._idle = watch_idle(self.head, config, args, engine.call_later, engine.clock)

    def open(
        self, place: HeadPlace, bootstrap_s: float, hosts: Sequence[HostEntry], last_head: int, *, has_resigned: bool
    ) -> None:
        """Begin to lead: publish where the head is, and wait for the agents.

        Args:
            bootstrap_s: time that they may take in the first term.
            hosts: those of the head before; empty in the first term.
            last_head: rank of the head before.
            has_resigned: whether that has said that it ends, with all hosts of its Slurm job.
        """
        if place.term == 1:
            self._engine.call_later(bootstrap_s, self.head.on_bootstrap_deadline)
            write_head(self._args.folder, place)
            return
        inheritance, liveness = self.head.inheritance, self._config.liveness
        inheritance.begin([entry for entry in hosts if entry.rank != place.rank])
        if has_resigned:
            job = next((host.job_id for host in hosts if host.rank == last_head), 0)
            ended = [host.rank for host in hosts if host.job_id == job]
            self._engine.call_soon(partial(inheritance.settle_hosts, ended))
        # More than half have lost the last head; others may notice that, and join, as late as a silent host is dead.
        self._engine.call_later(liveness.suspect_s, partial(inheritance.settle_hosts, [last_head]))
        self._engine.call_later(liveness.dead_s, inheritance.settle_hosts)
        self._engine.call_later(liveness.fence_s, inheritance.settle_runs)
        try:
            write_head(self._args.folder, place)
        except OSError as error:
            _log.error("cannot publish the head of term %d in %s: %s", place.term, self._args.folder, error)

    def note(self, message: Message) -> None:
        """Note the end of a run; other messages are ignored."""
        if isinstance(message, RunClosed):
            self._writing.add(message.run)
            self._end_runs()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, HostJoined | HostMissed):
            self._slurm.note_hosts([event.entry])
        self._journal(event)
        if isinstance(event, MeshLeftHost | HostGone | KeptEnded):
            self._end_runs()

    def _end_runs(self) -> None:
        """Count the runs as ended that have no procs any more: the files of kept ones are in use."""
        kept = {mesh.run for mesh in self.head.state.kept.values()}
        for run in self._writing - kept:
            self._writing.discard(run)
            self._retention.ended(run)

    def declare_lost(self, node: Node, addresses: ProcAddresses, peer: Peer, link: Link, why: str) -> None:
        """Declare a peer lost here and in its run. If only its network was cut, it must not return: bar it."""
        if self.over:
            return
        procs: list[int] = []
        barred = peer.role is Role.AGENT or (peer.role is not Role.TOOL and self.head.knows(link))
        if peer.role is Role.AGENT:
            rank = self.head.on_agent_lost(link, why)
            procs = [] if rank is None else addresses.lose_host(rank)
        else:  # the owner of a run may have a second channel, by which it has offered its voice
            self.head.on_client_lost(link, why)
        for incarnation in [peer.incarnation, *procs] if barred else procs:
            node.bar(incarnation, why)

    def end(self, node: Node, ended: Callable[[], None]) -> None:
        """Close all channels of *node*; call *ended*, at least once, when they are closed, or after `FLUSH_S`."""
        if self._idle is not None:
            self._idle.finish()
        try:
            # Of one that was followed, only its own host has ended; the others need the job and so its batch script.
            if not newer_head(self._args.folder, self.head.state.term):
                write_left(self._args.folder)
        except (OSError, ConfigError) as error:
            _log.warning("the batch script may wait for srun: %s", error)
        node.close("the allocation is over")
        self._engine.call_later(FLUSH_S, ended)
        self._await_closed(node, ended)

    def _resign(self, node: Node, resigned: Callable[[], None]) -> None:
        """Call *resigned* when all channels of *node* have sent what is queued, or after `FLUSH_S`.

        They are not closed: the others would take the farewell of a head for the end of the allocation.
        """
        self.over = True
        self._await_sent(node, resigned, Deadline(FLUSH_S, self._engine.clock))

    def _await_sent(self, node: Node, sent: Callable[[], None], late: Deadline) -> None:
        if late.passed() or not any(channel.queued_bytes for channel in node.channels.values()):
            sent()
        else:
            self._engine.call_later(_POLL_S, partial(self._await_sent, node, sent, late))

    def _await_closed(self, node: Node, ended: Callable[[], None]) -> None:
        if node.channels:
            self._engine.call_later(_POLL_S, partial(self._await_closed, node, ended))
        else:
            ended()

    def close(self, timeout_s: float) -> None:
        """Leave the steps of agents that the head has started again, and end the thread that removes old files."""
        self._leave_steps()
        self._retention.close(timeout_s)

    def _changed(self, term: int, hosts: list[HostEntry], missing: dict[int, str]) -> None:
        self._complete()
        # Not before the agents know their electorate: a reader of the ready file may shut the head's host down at once.
        self._engine.call_soon(partial(report_ready, self._args, term, hosts, missing))


def own_run(
    office: HeadOffice | None, deliver: Callable[[Message], None]
) -> tuple[Callable[[Message], None], Callable[[], None]]:
    """Make the agent of the head the owner of a run there, see `agent.programs.table.OwnRun`."""
    assert office is not None, "only the head's agent is asked for programs"
    link = LocalLink(deliver, lambda _reason: deliver(RunClosed("")))
    return partial(office.head.on_client, link), partial(office.head.on_client_lost, link, "its program has ended")
