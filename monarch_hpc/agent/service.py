"""The agent's process: receives channels, and routes messages to the agent and, on one host, to the head."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.assembly import ToHead, assemble
from monarch_hpc.agent.casts.channels import CastChannels
from monarch_hpc.agent.children.leftovers import find_leftovers, kill_leftovers
from monarch_hpc.agent.head.changes import HeadChanges
from monarch_hpc.agent.head.head import Head
from monarch_hpc.agent.head.link import ChannelLink, Link, LocalLink
from monarch_hpc.agent.head_office import FLUSH_S, HeadOffice, own_run
from monarch_hpc.agent.proc_addresses import ProcAddresses
from monarch_hpc.agent.procs.zygote_launch import StartingZygote, ZygoteSettings
from monarch_hpc.agent.programs.table import Request
from monarch_hpc.agent.ready_report import make_entry
from monarch_hpc.agent.rejoin import REJOIN
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.agent.succession.elections import Elections, ElectionsEnd
from monarch_hpc.agent.succession.reports import Reports
from monarch_hpc.agent.succession.search import HeadSearch
from monarch_hpc.agent.succession.slurm_word import SlurmWord
from monarch_hpc.agent.termination import Termination
from monarch_hpc.allocation.changes import CHANGES
from monarch_hpc.allocation.files import report_host
from monarch_hpc.allocation.heads import HeadPlace, claim, read_head
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import FrameError, PeerLost, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.allocation import Join, Roster, ShutDown, ShutDownDone
from monarch_hpc.wire.control.links import LinkGiven, LinkOver
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskHosts
from monarch_hpc.wire.control.refusal import Refused, refuse
from monarch_hpc.wire.control.succession import Acknowledge, Resign
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Service"]

_log = Logger(__name__)


class Service:
    """One agent, including the head on one of the hosts; calls *finished* with an exit code when it ends.

    Args:
        first_zygote: started before this module was loaded.

    Attributes:
        reaper: watches the children of this process.
        termination: handles SIGTERM.

    All methods except the constructor must be called on the engine's driver.
    """

    def __init__(
        self,
        engine: Engine,
        args: AgentArgs,
        grant: Grant,
        config: Config,
        zygote_settings: ZygoteSettings,
        first_zygote: StartingZygote,
        finished: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._args = args
        self._config = config
        self._finished = finished
        self._leaving = self._fenced = self._sent_goodbye = False
        self._proc_addresses = ProcAddresses()
        identity = Identity(args.allocation, Role.AGENT, args.name, new_incarnation())
        self._node = Node(engine, identity, args.key, self, config.transport, forwards=self._proc_addresses.addresses)
        self._deadline = Deadline(args.rejoins_s or config.slurm.bootstrap_s, engine.clock)
        listen_hosts = list(grant.interfaces.values())
        own = self._node.listen(listen_hosts, port_range=config.fabric.port_range)
        self._host_entry = make_entry(args, grant, own, identity.incarnation)
        self._forwarders: list[str] = []
        to_head = ToHead(
            self._send_up,
            lambda: self._head_link.backlogged,
            self._forwarders,
            lambda deliver: own_run(self._office, deliver),
        )
        addresses = self._host_entry.addresses
        self._parts = parts = assemble(engine, args, grant, config, zygote_settings, addresses, listen_hosts, to_head)
        self.reaper, self._agent, self._programs = parts.reaper, parts.agent, parts.programs
        self._first_zygote = first_zygote
        self._heartbeat = Heartbeat(engine, config.liveness.heartbeat_s, parts.settings.lease, self._on_liveness)
        self._casts = CastChannels(engine, self._node, self._heartbeat, args.rank, args.num_hosts, config, self._agent)
        self.termination = Termination(engine, args, config, parts.segments, lambda: self._head_link, self.end)
        self._links: dict[FrameChannel, ChannelLink] = {}
        self._head_link: Link = LocalLink(lambda _message: None, lambda _reason: None)  # until the head is known
        self._office: HeadOffice | None = None
        self._reports = Reports()
        end = ElectionsEnd(self._take_office, self._follow, self._fence)
        word = SlurmWord(engine, SlurmQuery(engine, args.slurm_job_id, args.environment))
        self._elections = Elections(engine, self._node, self._host_entry, config.liveness, word, end)
        self._search = HeadSearch(
            *(engine, self._node, self._elections, args.folder, self._deadline, self._forwarders),
            *(lambda: self._leaving, self._join, self._on_head_lost, self._fail),
            doubt=partial(word.ask_rank, args.host_names) if args.rejoins_s else None,
        )
        self._num_hosts = args.num_hosts  # by the newest roster
        self._code = 0

    def start(self) -> None:
        """Report to the head, or become the head.

        Raises:
            AllocationError: another agent of the first host has claimed to be the head, and is not there yet.
        """
        self._parts.zygotes.warm(self._first_zygote, self._config.procs.preload)
        if self._args.owns_job and (num_left := kill_leftovers(find_leftovers())):
            _log.warning("ended %d processes that an earlier allocation of yours had left here", num_left)
        problem = report_host(self._args.folder, self._host_entry)
        if self._args.rank == 0 and read_head(self._args.folder) is None:
            claim(self._args.folder, f"process {os.getpid()} on {self._args.name}")
            self._start_head(problem, HeadPlace(1, 0, self._host_entry.addresses))
        else:
            self._search.find(problem)

    @property
    def _head(self) -> Head | None:
        return None if self._office is None or self._office.over else self._office.head

    def _start_head(self, problem: str, place: HeadPlace) -> None:
        self._agent.join()
        office = self._office = HeadOffice(
            self._agent,
            self._args,
            self._config,
            self._num_hosts,
            place.term,
            HeadChanges(partial(self._parts.files.append, self._args.folder / CHANGES)).add,
            self._on_complete,
            self._on_all_left,
            self._fence,
            self._elections.hand_over,
            self._node,
            self._end,
        )
        head = office.head
        agent_link = LocalLink(lambda message: self._engine.call_soon(partial(self._on_order, message)), self._refused)
        self._head_link = LocalLink(
            lambda message: self._engine.call_soon(partial(head.on_agent, agent_link, message)), lambda _reason: None
        )
        self._forwarders[:] = place.addresses
        before = self._elections
        bootstrap_s = self._deadline.left_s()
        office.open(place, bootstrap_s, before.hosts, before.last_head, has_resigned=before.has_resigned)
        head.on_join(agent_link, Join(self._host_entry, problem, self._args.num_hosts))
        self.termination.start_head(head.deadline)

    def _on_complete(self) -> None:
        if self._office is not None:
            self._elections.found(self._office.head.inheritance)

    def _take_office(self, term: int) -> None:
        if not self._leaving:
            self._start_head("", HeadPlace(term, self._args.rank, self._host_entry.addresses))
            self._reports.tell_again(self._head_link.send)
            assert self._head is not None
            self._elections.lead(self._head.inheritance)

    def _on_head_lost(self, error: TransportError, heard_s: float = 0.0, *, resigned: bool = False) -> None:
        if self._leaving:
            return
        if self._args.slurm_job_id is not None:
            self._parts.own_log.begin()
        if isinstance(error, PeerLost) and error.farewell:  # nobody has told this agent to leave: it was given up
            self._fence(str(error))
        elif not self._elections.seek(str(error), heard_s, resigned=resigned):
            _log.warning("lost the head: %s", error)
            self.leave(self._config.agent.grace_s)

    def _follow(self, heir: HeadPlace) -> None:
        self._search.follow(heir)

    def _fence(self, why: str) -> None:
        """Give and take no orders from now on, end the procs, and begin anew, as another incarnation."""
        rejoin_s = self._config.agent.rejoin_s
        _log.error("this host is fenced: %s; its procs end, and it asks to be seated again for %g s", why, rejoin_s)
        if not rejoin_s or self._leaving:
            self.end()
            return
        self._leaving = self._fenced = True
        self._code = REJOIN
        self._elections.close()
        death = Death(DeathKind.FENCED, f"its host is fenced: {why}")
        self._agent.leave(self._config.agent.grace_s, lambda _num_left: self._end(), death)

    # ---- the link to the head ----

    def _join(self, channel: FrameChannel, problem: str) -> None:
        link = self._head_link = self._links[channel] = ChannelLink(channel)
        self._heartbeat.watch(channel)
        link.send(Join(self._host_entry, problem, self._args.num_hosts))
        self.termination.tell_again(link.send)
        self._reports.tell_again(self._head_link.send)

    def _send_up(self, message: Message) -> None:
        self._proc_addresses.note(message)
        self._casts.note(message)
        if self._office is not None:
            self._office.note(message)
        self._reports.pass_up(message, self._head_link.send)

    def _on_order(self, message: Message) -> None:
        if not isinstance(message, Refused | ShutDown):
            self._agent.join()
        match message:
            case ShutDown():
                self.leave(message.grace_s, message.death)
            case Refused(request="" | "Join"):
                self._refused(message.problem)
            case Refused():
                _log.warning("the head refused %s: %s", message.request, message.problem)
            case Resign():
                self._on_head_lost(PeerLost("the head", message.why), resigned=True)
            case Roster():
                self._num_hosts = message.num_hosts
                self._casts.on_roster(message.hosts, message.num_hosts)
                self._elections.on_roster(message.hosts)
            case AskHosts():
                self._casts.on_ask(message, self._head_link.send)
            case _:
                try:
                    self._agent.handle(message)
                except Exception as error:  # noqa: BLE001 the requester must get an answer
                    self._fail_on(self._head_link, message, error)

    def _refused(self, problem: str) -> None:
        if not self._leaving:
            self._fail(f"the head refused this agent: {problem}")

    # ---- channels ----

    def on_channel(self, channel: FrameChannel) -> None:
        """Accept a channel: anyone's on the head; elsewhere only those of agents and procs, which carry casts."""
        if self._head is None or channel.peer.link:  # a proc of another allocation may cast, and nothing else
            if not self._casts.on_channel(channel) and not self._elections.on_channel(channel):
                channel.close("this agent is not the head")
            return
        self._links[channel] = ChannelLink(channel)
        # A program that holds the interpreter's lock is silent but alive. So a client is not judged by its heartbeats
        # until it owns a run from another host, where `monarch-hpc run` sends them on its behalf.
        self._heartbeat.watch(channel, judged=channel.peer.role is Role.AGENT)

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a control message or a frame of a cast; frames of other kinds close the channel."""
        if channel.error is not None or self._fenced:
            return  # sent before the peer noticed that this side closed, or does not count any more
        link = self._links.get(channel)
        if (link is None and self._elections.on_frame(channel, frame)) or self._casts.on_frame(channel, frame):
            return
        if link is None or frame.kind is not Kind.CONTROL:
            channel.close(f"an agent does not accept {frame.kind.name} frames")
            return
        try:
            message = decode(frame.body)
        except FrameError as error:  # the sender has proved the key, so the channel stays open
            link.send(refuse(frame.body, str(error)))
            return
        try:
            self._on_message(channel, link, message)
        except Exception as error:  # noqa: BLE001 other requests must not be affected
            self._fail_on(link, message, error)

    def _fail_on(self, link: Link, message: Message, error: Exception) -> None:
        _log.error("cannot carry out %s", type(message).__name__, exc_info=error)
        link.send(refuse(message, f"{self._args.name} failed on it: {type(error).__name__}: {error!s:.500}"))

    def _on_message(self, channel: FrameChannel, link: ChannelLink, message: Message) -> None:
        head = self._head
        votes = channel.peer.role is Role.AGENT or isinstance(message, Acknowledge)
        if votes and self._elections.on_message(channel, message):
            return
        if head is None:
            if link is self._head_link:
                self._on_order(message)
        elif channel.peer.role is not Role.AGENT and isinstance(message, Request):
            self._programs.handle(message, link.send)
        elif channel.peer.role is Role.CONTROLLER and isinstance(message, LinkGiven | LinkOver):
            self._casts.on_link(message, link.send)
        elif channel.peer.role is not Role.AGENT:
            head.on_client(link, message)
            self._elections.on_client(link, message)
            if head.owns(link) and not channel.peer.address.startswith("tcp://127."):
                self._heartbeat.watch(channel)
        elif isinstance(message, Join):
            head.on_join(link, message)
            self._elections.greet(link)
        else:
            self._proc_addresses.note(message)
            head.on_agent(link, message)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel."""
        link = self._links.pop(channel, None)
        self._heartbeat.forget(channel)
        if link is not None:
            self._programs.forget(link.send)
        if self._casts.on_lost(channel, error) or link is None:
            return
        if self._office is None:
            if self._leaving and self._sent_goodbye:
                self._end()
            elif link is self._head_link:
                self._on_head_lost(error, channel.received_s)
            return
        lost = partial(self._office.declare_lost, self._node, self._proc_addresses, channel.peer, link, str(error))
        if channel.peer.role is Role.AGENT:
            self._elections.when_sure(lost)
        else:
            lost()

    def _on_liveness(self, channel: FrameChannel, life: Liveness) -> None:
        link = self._links.get(channel)
        if self._head is not None and link is not None and channel.peer.role is Role.AGENT:
            self._head.on_life(link, life)

    # ---- the end ----

    def end(self) -> None:
        """End in response to the end of the process that started this agent."""
        if self._head is not None:
            self._head.shut_down(self._config.procs.stop_s, None)
        else:
            self.leave(self._config.procs.stop_s)

    def leave(self, grace_s: float, why: Death | None = None) -> None:
        """End this host's procs and what they left behind, report to the head, and end."""
        if not self._leaving:
            self._leaving = True
            self._elections.close()
            self._agent.leave(grace_s, self._on_left, why)

    def _on_left(self, num_left: int) -> None:
        if num_left:
            _log.warning("%d processes of this allocation survive SIGKILL", num_left)
        self._head_link.send(ShutDownDone({self._args.name: num_left}))
        self._sent_goodbye = True
        if self._head is None and self._head_link not in self._links.values():
            self.termination.outlast_head(self._end)
        elif self._head is None:
            # Normally the head closes the channel first, when it has received the report.
            self._engine.call_later(FLUSH_S, self._end)

    def _on_all_left(self) -> None:
        assert self._office is not None, "its head calls this"
        self._office.end(self._node, self._end_job)

    def _end_job(self) -> None:
        if self._office is not None and (self._office.is_heir or self._config.slurm.allocate_by == "salloc"):
            self.termination.outlast_head(self._end, wanted=True)
        else:
            self._end()

    def _fail(self, problem: str) -> None:
        _log.error("%s", problem)
        if self._args.rejoins_s:  # as one that was fenced and does not come back: perhaps nobody else ends the job
            self.end()
            return
        self._code = 1
        self._leaving = True
        self._agent.leave(0.0, lambda _num_left: self._end())

    def _end(self) -> None:
        finished, self._finished = self._finished, lambda _code: None
        self._parts.own_log.close()
        self._parts.files.close(FLUSH_S)
        if self._office is not None:
            self._office.close(FLUSH_S)
        finished(self._code)
