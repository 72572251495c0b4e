"""The actor runtime of a process: dispatches frames to its actors, and answers to its pending calls."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from monarch_hpc.actor.casts.receiver import CastReceiver
from monarch_hpc.actor.casts.sender import CastSender
from monarch_hpc.actor.cell.actors import Actors
from monarch_hpc.actor.cell.cancellation import LIMITED, limited
from monarch_hpc.actor.cell.cell import Cell
from monarch_hpc.actor.cell.process import CellProcess
from monarch_hpc.actor.cell.recording import peer_of
from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.context import ProcInfo, context, start_program
from monarch_hpc.actor.execution.threads import ActorThreads
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.causes import Causes
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.incarnations import Incarnations
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.pending import Answer, Pending, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef, proc_of
from monarch_hpc.actor.runtime.deadlines import Deadlines
from monarch_hpc.actor.runtime.death_causes import CauseLookup
from monarch_hpc.actor.runtime.failures import FailureRouter
from monarch_hpc.actor.runtime.ownership import Ownership
from monarch_hpc.config.schema import ProcsConfig
from monarch_hpc.core.errors import EngineFailed, FrameError, MonarchError, PeerLost, ProcDied, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel, Peer
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.secure.link import LinkKey
from monarch_hpc.wire.control.links import LinkGiven, LinkOver, LinkRoute, LinkTaken
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.control.procs import ProcReplaced, ReplacementTaken
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Buffer, Frame, Kind, size_of

__all__ = ["HELD", "Runtime", "current_runtime"]

_CALL = Kind.CALL  # on the path of every frame: an enum member costs ten times a global
_RESULT = Kind.RESULT
_FAILURE = Kind.FAILURE

_log = Logger(__name__)

HELD = -1
"""Returned by `Runtime.call` instead of a number for a call that was not sent."""


class Runtime:
    """Dispatches frames to actors and answers to callers; one per process.

    It is the `transport.api.Listener` of the process's node. Answers and deaths are reported on the
    driver; calls may be made from any thread.

    Args:
        procs: the time that a stop may take, and the number of threads kept for idle actors.
        causes: explains why calls to lost procs get no answer; None to ask the program.
        unhandled: takes failures that no actor of this process owns; None to report them to the program.
        on_failure: called after the failure of a call was handled.
        cells_drive: whether idle actors drive the engine; False in a program, whose main thread drives it.

    Attributes:
        connections: the node, and the links to other processes and to this one.
        actors: the actors and ports of this process.
        incarnations: the current procs of all meshes that are in use here.
        ownership: what was spawned here.
        failures: routes the failures of what was spawned here.
        replier: answers calls.
        causes: explains why a lost proc does not answer.
        casts: sends messages to many procs through the agents.
        deadlines: expires calls.
    """

    current: ClassVar[Runtime | None] = None
    """The runtime of this process, for references that arrive in messages."""

    door: object = None
    """The way of the layer above to the program, see `mesh.door`; set before the first actor starts."""

    def __init__(
        self,
        engine: Engine,
        info: ProcInfo,
        procs: ProcsConfig,
        recorder: Recorder | None = None,
        *,
        causes: Causes | None = None,
        unhandled: Callable[[MeshFailure], None] | None = None,
        on_failure: Callable[[], None] = lambda: None,
        cells_drive: bool = True,
    ) -> None:
        self.engine = engine
        self.info = info
        self.recorder = recorder or Recorder()
        self.connections = Connections(engine, self.on_frame)
        self.replier = Replier(engine, info.host, self.recorder.names)
        self.actors = Actors(engine, self.replier, self._start_actor, self.connections.lines)
        self.incarnations = Incarnations()
        self.ownership = Ownership(self.recorder, procs.kept_bytes)
        self.deadlines = Deadlines(engine.clock, engine.call_later)
        self.causes = causes or CauseLookup(self.connections, self.call, procs.cause_s)
        self.failures = FailureRouter(
            self.ownership, self.connections, self.causes, self.replier, self.actors.cells, self.stop, unhandled
        )
        self.casts = CastSender(self.connections, self.recorder, self.causes, on_failure)
        self._receiver: CastReceiver | None = None  # from the first cast that arrives; puts messages into one order
        self._on_failure = on_failure
        self._process = CellProcess(
            engine,
            self.recorder,
            ActorThreads(engine, drive=cells_drive, keep=procs.actor_threads),
            self.replier,
            procs.stop_s,
            self.failures.stop_owned,
            self.actors.forget,
        )
        self._cells = self.actors.cells
        self._casts_in_flight = self.casts.in_flight.casts
        self._sent_directly = self.casts.sent
        self._channels: Mapping[int, FrameChannel] = {}
        self._slots: dict[int, Pending] = {}
        self._next_slot = itertools.count(1)
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """In a forked child: drop the channels of *parent*; their use raises `ForkedError`."""
        self.connections.drop()
        self._channels = self.connections.channels

    def bind(self, node: Node, own: ProcRef) -> None:
        """Use *node* for all channels; *own* is the address under which other processes reach this one."""
        self.connections.bind(node, own, self.recorder.names.proc(node.identity.incarnation, node.identity.host))
        self._channels = self.connections.channels

    @property
    def node(self) -> Node:
        """The node, which holds the channels."""
        return self.connections.node

    @property
    def own(self) -> ProcRef:
        """The address of this process."""
        return self.connections.own

    # ---- outgoing ----

    def spawn(
        self,
        name: str,
        actor: int,
        owner: int,
        procs: Mapping[int, ProcRef],
        body: bytes,
        buffers: Sequence[Buffer],
        region: Region | None = None,
        class_name: str = "",
    ) -> None:
        """Spawn an actor in each of *procs*, given by rank in the actors' mesh.

        Args:
            owner: the actor that gets their failures, see `actor.context.Context.actor`.
            region: the place of *procs* in their mesh; needed to spawn through the agents.
            class_name: module and name of the actors' class, for reports of their failures.

        Raises:
            ProcDied: a proc is gone.
        """
        self.ownership.add(actor, owner, name, procs, class_name=class_name)
        frame = Frame(Kind.SPAWN, actor, owner, body, buffers)
        try:
            lines = [self._line_for_spawn(rank, proc) for rank, proc in procs.items()]
            if region is None or owner or not self.casts.spawn(region, procs, actor, body, buffers):
                for proc, line in zip(procs.values(), lines, strict=True):
                    self.casts.send(proc, line, frame)
        except BaseException:
            self.ownership.remove(actor)
            raise

    def _line_for_spawn(self, rank: int, proc: ProcRef) -> MessageLink:
        try:
            return self.connections.line_to(proc)
        except EngineFailed:
            raise
        except TransportError as error:
            raise ProcDied(
                f"proc {rank} on {proc.host}", error.reason if isinstance(error, PeerLost) else str(error)
            ) from error

    def stop(self, proc: ProcRef, actor: int, answer: Answer | None = None, reason: str = "") -> None:
        """Stop an actor after all messages queued for it; *answer* is called when it, and what it owns, is gone.

        Raises:
            TransportError: the proc cannot be reached.
        """
        self.ownership.stop(actor, proc.incarnation)
        slot = 0
        if answer is not None:
            slot = next(self._next_slot)
            self._slots[slot] = Slot(proc.incarnation, f"the end of actor {actor:x} on {proc.host}", answer)
        try:
            self.casts.send(proc, self.connections.line_to(proc), Frame(Kind.STOP, actor, slot, reason.encode()))
        except BaseException:
            self._slots.pop(slot, None)
            raise

    def call(
        self,
        proc: ProcRef,
        actor: int,
        body: bytes,
        buffers: Sequence[Buffer],
        pending: Pending | None,
        until_s: float | None = None,
        end_s: float | None = None,
        name: int = 0,
    ) -> int:
        """Send one call; *pending* gets its outcome exactly once. None for a call without an answer.

        Args:
            until_s: deadline for waiting on a full mailbox, on the engine's clock.
            end_s: the caller's deadline, on the same clock; sent to the actor.
            name: number of the endpoint's name, see `telemetry.names`.

        Returns:
            The call's number, for `cancel`; `HELD` if the mailbox was full until *until_s*. Then nothing was sent, and
            *pending* is not called.

        Raises:
            FrameError: the call is over a limit; nothing was sent.
        """
        slot = 0
        if pending is not None:
            slot = next(self._next_slot)
            if end_s is not None:
                slot |= LIMITED
                body = limited(max(end_s - self.engine.clock(), 0.0), body)
            self._slots[slot] = pending
        try:
            incarnation = proc.incarnation
            channel = self._channels.get(incarnation)
            line = channel if channel is not None and channel.error is None else self.connections.line_to(proc)
            peer = line.mark or peer_of(line, self.recorder)
            num_bytes = size_of(body, buffers) if buffers else len(body)
            self.recorder.sent(slot, context().mark, name, peer, num_bytes, actor)
            # As in `CastSender.send`, without one more function call on the path of every message.
            if self._casts_in_flight:
                self.casts.mark_after(incarnation, line)
            sent = line.send(Frame(_CALL, actor, slot, body, buffers), until_s)
            self._sent_directly(incarnation)
            if not sent:
                self._forget(slot)
                return HELD
        except (FrameError, EngineFailed):
            self._forget(slot)
            raise
        except TransportError as error:
            if slot and self.node.belongs(proc.allocation):
                self._lost_slot(slot, error)
            elif slot and pending is not None:  # nothing was sent, and no more is known about the proc
                self._forget(slot)
                pending.answer(ProcDied(pending.where, error.reason if isinstance(error, PeerLost) else str(error)))
        except BaseException:
            self._forget(slot)
            raise
        return slot

    def _forget(self, number: int) -> None:
        self._slots.pop(number, None)
        self.recorder.answered(number)

    def cancel(self, actor: int, slots: Sequence[int]) -> None:
        """Cancel calls to *actor*, each of which is still answered; from any thread."""
        for number in slots:
            pending = self._slots.get(number)
            if pending is not None:
                line = self.connections.open_line(pending.incarnation)
                if line is not None:
                    with contextlib.suppress(TransportError):  # the call ends like all calls of a lost channel
                        line.send(Frame(Kind.CANCEL, actor, number))

    # ---- incoming ----

    def on_channel(self, channel: FrameChannel) -> None:
        """Accept a channel that the peer opened; nothing to prepare."""

    def on_frame(self, channel: MessageLink, frame: Frame) -> None:
        """Dispatch one frame; on the driver, or on the thread that sends a message to this process."""
        kind = frame.kind
        if kind is _CALL:
            if self._receiver is None or not self._receiver.take_direct(channel, frame):
                cell = self._cells.get(frame.dest)
                (self.actors.dispatch if cell is None else cell.put)(channel, frame)
        elif kind is _RESULT or kind is _FAILURE:
            slot = self._slots.pop(frame.dest, None)
            if slot is not None:
                (self.recorder.answered if kind is _RESULT else self.recorder.failed)(frame.dest)
                slot.answer(frame)
                if kind is _FAILURE:
                    self._on_failure()
            elif frame.dest:
                self.casts.in_flight.on_answer(frame)
            else:
                self.failures.on_fault(frame)
        elif kind is Kind.CONTROL:
            self.on_control(channel, frame)
        elif kind is Kind.NOTES:
            self.casts.in_flight.on_notes(frame)
        elif kind is Kind.CAST or kind is Kind.MARK or kind is Kind.REDUCE:
            self._receive_cast(channel, frame)
        elif self._receiver is None or not self._receiver.take_direct(channel, frame):
            self.actors.dispatch(channel, frame)

    def _receive_cast(self, channel: MessageLink, frame: Frame) -> None:
        if self._receiver is None:
            self._receiver = CastReceiver(self.connections, self.recorder, self.info, self.actors.dispatch)
        self._receiver.on_frame(channel, frame)

    def _start_actor(self, channel: MessageLink, frame: Frame) -> Cell:
        return Cell(self._process, self.info, channel, frame)

    def on_control(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a control message: the program tells its procs which allocations they may call."""
        message = decode(frame.body)
        peer = channel.peer
        ours = isinstance(peer, Peer) and peer.role is Role.CONTROLLER and peer.allocation == self.info.allocation
        match message:
            case LinkGiven() if ours:
                self.node.link(LinkKey(message.allocation, message.link, bytes.fromhex(message.key)))
                channel.send(Frame(Kind.CONTROL, body=encode(LinkTaken(message.link))))
            case LinkRoute() if ours:
                self.casts.route_through(message.addresses, message.allocation, message.run)
            case LinkOver() if ours:
                self.casts.route_directly(message.allocation)
                self.node.leave(message.allocation, message.cause)
            case ProcReplaced() if ours:
                self.incarnations.replace(proc_of(message), [message.mesh, *message.actors])
                taken = ReplacementTaken(message.mesh, message.rank, message.restarts)
                channel.send(Frame(Kind.CONTROL, body=encode(taken)))
            case _:
                _log.warning("unexpected control message from %s: %s", channel.peer, type(message).__name__)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel: fail everything that waits for it."""
        incarnation = channel.peer.incarnation
        self.connections.lost[incarnation] = error
        lost = [number for number, slot in list(self._slots.items()) if slot.incarnation == incarnation]
        for number in lost:
            self._lost_slot(number, error)
        for owned, rank in self.ownership.lose(incarnation):
            reported = bool(lost) or self.casts.in_flight.reports(owned.procs[rank])
            on_cause = partial(self.failures.on_death, owned, rank, incarnation, reported)
            self.causes.explain(incarnation, owned.where(rank), error, on_cause)
        self.casts.on_lost(channel, error)
        if self._receiver is not None:
            self._receiver.on_lost(incarnation, error)

    def _lost_slot(self, number: int, error: TransportError) -> None:
        if (slot := self._slots.pop(number, None)) is not None:
            self.recorder.failed(number)
            self.causes.explain(slot.incarnation, slot.where, error, slot.answer)

    def fail_calls(self, error: MonarchError) -> None:
        """Answer all calls in flight with *error*: this process cannot communicate any more. Later ones raise it."""
        self._channels = {}
        for number in list(self._slots):
            slot = self._slots.pop(number, None)
            if slot is not None:
                slot.answer(error)
        self.casts.in_flight.end_all(error)

    def shut_down(self) -> None:
        """End all actors of this process at once; return after their clean-up, or after `cell.CLEANUP_S`."""
        self.actors.end_all()


def current_runtime() -> Runtime:
    """The runtime of this process, which becomes a program if it has none.

    Raises:
        ForkedError: this process was forked, and the runtime belongs to its parent.
    """
    runtime = Runtime.current
    if runtime is None:
        start_program()
        runtime = Runtime.current
        assert runtime is not None
    runtime.engine.check_own()
    return runtime
