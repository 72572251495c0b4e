"""An agent's channels for casts: to other agents, to its procs, and from senders of casts.

They are separate from the channels of control messages, so that control messages never queue behind user data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial

from monarch_hpc.agent.casts.host_questions import HostAnswers, HostQuestions
from monarch_hpc.agent.casts.router import Router
from monarch_hpc.config.schema import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.segment import fix
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.wire.casts import parse_cast, parse_target
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.kept import ProcsKept
from monarch_hpc.wire.control.links import LinkGiven, LinkOver, LinkTaken
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.questions import AskHosts, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import RunClosed
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind, RefusedBuffers
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["CastChannels"]

_DEATH_REPORT_S = 3.0
"""Time that the death report of a proc whose channel broke may take; on the proc's own host it takes milliseconds."""

_log = Logger(__name__)


@dataclass(slots=True)
class _Outgoing:
    """An outgoing channel, and the frames queued until it is ready: connected, and the proc asked what it can map."""

    addresses: Sequence[str]
    channel: FrameChannel | None = None
    ready: bool = False
    waiting: list[Frame] = field(default_factory=list)


class CastChannels:
    """Connects an agent's `Router` to channels. All methods must be called on the engine's driver.

    Args:
        heartbeat: sends heartbeats on the channels between agents.
        rank: rank of this host.
        records: answers questions about this host.
    """

    def __init__(
        self,
        engine: Engine,
        node: Node,
        heartbeat: Heartbeat,
        rank: int,
        num_hosts: int,
        config: Config,
        records: HostAnswers,
    ) -> None:
        limits = config.transport
        self._engine = engine
        self._node = node
        self._heartbeat = heartbeat
        self._addresses: dict[int, Sequence[str]] = {}
        self._agents_of: dict[int, str] = {}  # rank -> incarnation of its agent
        self._procs: dict[ProcKey, int] = {}
        self._to_hosts: dict[int, _Outgoing] = {}
        self._to_procs: dict[int, _Outgoing] = {}  # to procs, by incarnation
        self._note_handlers: dict[FrameChannel, Callable[[Frame], None]] = {}  # of channels that were dialled
        self._upstreams: set[FrameChannel] = set()
        self._agents: set[FrameChannel] = set()  # that other agents have dialled
        self._guests: dict[str, str] = {}  # the runs that procs of other allocations cast to, by name of their link
        usable = self._addresses.__contains__
        self._router: Router[FrameChannel] = Router(
            rank, num_hosts, limits.cast_fanout, usable, self, limits.max_frame_bytes
        )
        self._questions = HostQuestions(
            rank, num_hosts, limits.cast_fanout, usable, self, records, config.telemetry.max_answer_bytes
        )

    # ---- state of hosts and procs ----

    def on_roster(self, hosts: Sequence[HostEntry], num_hosts: int) -> None:
        """Learn the addresses and names of other agents, and the number of hosts."""
        for host in hosts:
            if self._agents_of.get(host.rank, host.incarnation) != host.incarnation:
                self._on_host_back(host.rank)
            self._agents_of[host.rank] = host.incarnation
            self._addresses[host.rank] = host.addresses
        self._router.grow(num_hosts)
        self._questions.on_roster(hosts, num_hosts)

    def _on_host_back(self, rank: int) -> None:
        """Let go of what belongs to an earlier agent of a host: its channel may not have ended yet."""
        if self._to_hosts.pop(rank, None) is not None:
            self._router.on_host_cut(rank, "its agent was started again")
            self._questions.on_host_cut(rank)
        self._router.on_host_back(rank)
        self._questions.on_host_back(rank)

    def note(self, message: Message) -> None:
        """Update from this agent's reports about its procs; other messages are ignored."""
        match message:
            case ProcReady():
                proc, incarnation = message.proc, int(message.incarnation)
                self._procs[proc] = incarnation
                self._to_procs[incarnation] = _Outgoing(message.addresses)
                self._router.on_proc(proc.run, proc.mesh, proc.rank, incarnation, message.restarts)
            case ProcEnded():
                proc = message.proc
                self._to_procs.pop(self._procs.pop(proc, 0), None)
                cause = "it was stopped" if message.expected else message.cause
                self._router.on_proc_ended(proc.run, proc.mesh, proc.rank, cause)
            case ProcsKept():
                self._router.keep(message.run, message.mesh)
            case RunClosed():
                self._router.on_run_closed(message.run)
                for link in [link for link, run in self._guests.items() if run == message.run]:
                    self._forget_link(link, "the run is over")

    # ---- channels ----

    def on_channel(self, channel: FrameChannel) -> bool:
        """Accept a channel that another agent or a proc has opened for casts; return False for other peers."""
        if channel.peer.role is Role.AGENT:
            self._heartbeat.watch(channel)
            self._agents.add(channel)
        return channel.peer.role in (Role.AGENT, Role.PROC)

    def on_link(self, message: LinkGiven | LinkOver, reply: Callable[[Message], None]) -> None:
        """Take casts that procs of another allocation send to a run of this one, or no longer; for its program."""
        if isinstance(message, LinkGiven):
            self._guests[message.link] = message.run
            self._node.links[message.link] = LinkKey(message.allocation, message.link, bytes.fromhex(message.key))
            reply(LinkTaken(message.link))
        else:
            self._forget_link(message.link, message.cause)

    def _forget_link(self, link: str, cause: str) -> None:
        self._guests.pop(link, None)
        self._node.links.pop(link, None)
        for channel in [one for one in self._upstreams if one.peer.link == link]:
            channel.close(cause)

    def on_frame(self, channel: FrameChannel, frame: Frame) -> bool:
        """Handle a frame that belongs to a cast, or to a question on the tree; return whether it does."""
        try:
            if frame.kind is Kind.CAST:
                self._on_cast(channel, frame)
            elif frame.kind is Kind.NOTES:
                self._on_notes(channel, frame)
            elif frame.kind is Kind.CONTROL and channel in self._agents:
                self._on_question(channel, frame)
            elif frame.kind is Kind.CONTROL and channel in self._note_handlers:
                self._note_handlers[channel](frame)
            else:
                return False
        except FrameError as error:
            channel.close(str(error))
        return True

    def _on_cast(self, channel: FrameChannel, frame: Frame) -> None:
        # Agents vouch for the sender of a cast that they forward; at the first agent, the sender is the channel's peer.
        enters = channel.peer.role is not Role.AGENT
        if enters:
            cast = parse_cast(frame)
            if cast.origin != channel.peer.incarnation:
                raise FrameError("a cast with another process's origin")
            link = channel.peer.link
            if link and parse_target(cast.target).run != self._guests.get(link):
                raise FrameError("a cast to a run that its sender has no link to")
        for buffer in frame.buffers if not isinstance(frame.buffers, RefusedBuffers) else ():
            fix(memoryview(buffer))  # procs map it, where it arrived in shared memory
        self._upstreams.add(channel)
        failpoint("agent.cast")
        self._router.on_cast(channel, frame, enters=enters)

    def _on_question(self, channel: FrameChannel, frame: Frame) -> None:
        question = decode(frame.body)
        if not isinstance(question, AskHosts):
            raise FrameError(f"agents do not ask each other by {type(question).__name__}")
        self.on_ask(question, partial(self._answer, channel))

    def on_ask(self, question: AskHosts, reply: Callable[[Message], None]) -> None:
        """Answer a question to this host and those behind it; of the head, or of another agent."""
        self._questions.on_ask(question, reply)

    def _answer(self, channel: FrameChannel, message: Message) -> None:
        with contextlib.suppress(TransportError):  # its end is reported
            channel.send(Frame(Kind.CONTROL, body=encode(message)))

    def _on_frame_of_host(self, rank: int, frame: Frame) -> None:
        if frame.kind is Kind.NOTES:
            self._router.on_notes_of_host(rank, frame)
            return
        match decode(frame.body):
            case Rows() as rows:
                self._questions.on_rows(rank, rows)
            case Refused(request=AskHosts.__name__, number=ticket):
                self._questions.on_refused(rank, ticket)
            case other:
                raise FrameError(f"agents do not answer each other with {type(other).__name__}")

    def _on_notes(self, channel: FrameChannel, frame: Frame) -> None:
        handler = self._note_handlers.get(channel)
        if handler is None:
            raise FrameError("notes on a channel that no cast was sent on")
        handler(frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> bool:
        """Handle the end of a channel; return False if no cast went through it."""
        ours = channel in self._upstreams or channel in self._note_handlers
        if channel in self._upstreams:
            self._upstreams.discard(channel)
            self._router.on_upstream_lost(channel)
        self._agents.discard(channel)
        if self._note_handlers.pop(channel, None) is not None:
            for rank, outgoing in list(self._to_hosts.items()):
                if outgoing.channel is channel:
                    outgoing.channel = None
                    self._router.on_host_cut(rank, str(error))
                    self._questions.on_host_cut(rank)
                    self._dial_host(rank, outgoing)
            for incarnation, outgoing in list(self._to_procs.items()):
                if outgoing.channel is channel:
                    self._engine.call_later(
                        _DEATH_REPORT_S, partial(self._give_up_proc, incarnation, outgoing, str(error))
                    )
        return ours

    # ---- the carrier of the router and of questions ----

    def ask_host(self, rank: int, question: AskHosts) -> None:
        """Send a question to the agent of a host."""
        self.to_host(rank, Frame(Kind.CONTROL, body=encode(question)))

    def to_host(self, rank: int, frame: Frame) -> None:
        """Send *frame* to the agent of a host, which is dialled on first use."""
        outgoing = self._to_hosts.get(rank)
        if outgoing is None:
            outgoing = self._to_hosts[rank] = _Outgoing(self._addresses[rank])
            self._dial_host(rank, outgoing)
        self._send(outgoing, frame)

    def to_proc(self, incarnation: int, frame: Frame) -> None:
        """Send *frame* to a proc of this host, which is dialled on first use."""
        outgoing = self._to_procs.get(incarnation)
        if outgoing is None:
            return  # the proc has ended; the report to the router follows
        if outgoing.channel is None and not outgoing.waiting:
            self._engine.call_soon(
                lambda: self._node.dial(outgoing.addresses, incarnation, partial(self._on_proc, incarnation, outgoing))
            )
        self._send(outgoing, frame)

    def to_upstream(self, upstream: FrameChannel, frame: Frame) -> None:
        """Send *frame* back to a sender of casts."""
        with contextlib.suppress(TransportError):  # its end is reported
            upstream.send(frame)

    def later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Run *callback* after *delay_s* seconds."""
        return self._engine.call_later(delay_s, callback)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Run *callback* once the engine has handled all events of this turn."""
        self._engine.at_end_of_turn(callback)

    @staticmethod
    def _send(outgoing: _Outgoing, frame: Frame) -> None:
        if outgoing.channel is None or not outgoing.ready:
            outgoing.waiting.append(frame)
            return
        with contextlib.suppress(TransportError):  # its end is reported
            outgoing.channel.send(frame)

    def _connected(self, outgoing: _Outgoing, channel: FrameChannel, handler: Callable[[Frame], None]) -> None:
        outgoing.channel = channel
        self._note_handlers[channel] = handler

    def _ready(self, outgoing: _Outgoing) -> None:
        outgoing.ready = True
        waiting, outgoing.waiting = outgoing.waiting, []
        for frame in waiting:
            self._send(outgoing, frame)

    def _dial_host(self, rank: int, outgoing: _Outgoing) -> None:
        # Incarnation 0, any: a dial by incarnation would return the channel of control messages.
        self._engine.call_soon(lambda: self._node.dial(outgoing.addresses, 0, partial(self._on_host, rank, outgoing)))

    def _on_host(self, rank: int, outgoing: _Outgoing, result: FrameChannel | TransportError) -> None:
        if self._to_hosts.get(rank) is not outgoing:
            if not isinstance(result, TransportError):
                result.close("another agent has taken the place of this one")
            return
        if isinstance(result, TransportError):
            _log.warning("casts bypass host %d: %s", rank, result)
            del self._to_hosts[rank]
            self._router.on_host_lost(rank, str(result))
            self._questions.on_host_lost(rank)
            return
        self._heartbeat.watch(result)
        self._connected(outgoing, result, partial(self._on_frame_of_host, rank))
        self._ready(outgoing)

    def _on_proc(self, incarnation: int, outgoing: _Outgoing, result: FrameChannel | TransportError) -> None:
        if isinstance(result, TransportError):
            self._engine.call_later(_DEATH_REPORT_S, partial(self._give_up_proc, incarnation, outgoing, str(result)))
            return
        self._connected(outgoing, result, partial(self._router.on_notes_of_proc, incarnation))
        result.sharing.ask(partial(self._ready, outgoing))

    def _give_up_proc(self, incarnation: int, outgoing: _Outgoing, cause: str) -> None:
        if self._to_procs.get(incarnation) is outgoing:
            self._to_procs[incarnation] = _Outgoing(outgoing.addresses)
            self._router.on_proc_silent(incarnation, cause)
