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
from monarch_hpc.actor.cell.event_loop import EventLoop
from monarch_hpc.actor.cell.exit import exit_process
from monarch_hpc.actor.cell.process import CellProcess
from monarch_hpc.actor.cell.recording import peer_of
from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.context import ProcInfo, context
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.causes import Causes
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.pending import Answer, Pending, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.deadlines import Deadlines
from monarch_hpc.actor.runtime.death_causes import CauseLookup
from monarch_hpc.actor.runtime.failures import FailureRouter
from monarch_hpc.actor.runtime.ownership import Ownership
from monarch_hpc.core.errors import ActorDied, FrameError, PeerLost, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.fork import watch_forks
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Buffer, Frame, Kind

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
        causes: explains why calls to lost procs get no answer; None to ask the program.
        unhandled: takes failures that no actor of this process owns; None to report them to the program.
        on_failure: called after the failure of a call was handled.
        cells_drive: whether idle actors drive the engine; False in a program, whose main thread drives it.

    Attributes:
        connections: the node, and the links to other processes and to this one.
        actors: the actors and ports of this process.
        ownership: what was spawned here.
        failures: routes the failures of what was spawned here.
        replier: answers calls.
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
        self.replier = Replier(engine, info.host)
        self.actors = Actors(engine, self.replier, self._start_actor, self.connections.lines)
        self.ownership = Ownership(self.recorder)
        self.deadlines = Deadlines(engine.clock, engine.call_later)
        self._causes = causes or CauseLookup(self.connections, self.call)
        self.failures = FailureRouter(
            self.ownership, self.connections, self._causes, self.replier, self.actors.cells, self.stop, unhandled
        )
        self.casts = CastSender(self.connections, self.recorder, info.run, self._causes, on_failure)
        self._receiver: CastReceiver | None = None  # from the first cast that arrives; puts messages into one order
        self._on_failure = on_failure
        self._loop = EventLoop(exit_process)
        self._process = CellProcess(
            engine,
            self.recorder,
            self._loop,
            self.replier,
            cells_drive,
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
    ) -> None:
        """Spawn an actor in each of *procs*, given by rank in the actors' mesh.

        Args:
            owner: the actor that gets their failures, see `actor.context.Context.actor`.
            region: the place of *procs* in their mesh; needed to spawn through the agents.

        Raises:
            ActorDied: a proc is gone.
        """
        self.ownership.add(actor, owner, name, procs)
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
        except TransportError as error:
            raise ActorDied(
                f"proc {rank} on {proc.host}", error.reason if isinstance(error, PeerLost) else str(error)
            ) from error

    def stop(self, proc: ProcRef, actor: int, answer: Answer | None = None) -> None:
        """Stop an actor after all messages queued for it; *answer* is called after its clean-up.

        Raises:
            TransportError: the proc cannot be reached.
        """
        self.ownership.stop(actor, proc.incarnation)
        slot = 0
        if answer is not None:
            slot = next(self._next_slot)
            self._slots[slot] = Slot(proc.incarnation, f"the end of actor {actor:x} on {proc.host}", answer)
        try:
            self.casts.send(proc, self.connections.line_to(proc), Frame(Kind.STOP, actor, slot))
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
            self.recorder.sent(slot, context().mark, name, peer, len(body), actor)
            # As in `CastSender.send`, without one more function call on the path of every message.
            if self._casts_in_flight:
                self.casts.mark_after(incarnation, line)
            sent = line.send(Frame(_CALL, actor, slot, body, buffers), until_s)
            self._sent_directly(incarnation)
            if not sent:
                self._forget(slot)
                return HELD
        except FrameError:
            self._forget(slot)
            raise
        except TransportError as error:
            if slot:
                self._lost_slot(slot, error)
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
                self.recorder.answered(frame.dest)
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
        elif kind is Kind.CANCEL or self._receiver is None or not self._receiver.take_direct(channel, frame):
            self.actors.dispatch(channel, frame)

    def _receive_cast(self, channel: MessageLink, frame: Frame) -> None:
        if self._receiver is None:
            self._receiver = CastReceiver(self.connections, self.recorder, self.info, self.actors.dispatch)
        self._receiver.on_frame(channel, frame)

    def _start_actor(self, channel: MessageLink, frame: Frame) -> Cell:
        return Cell(self._process, self.info, channel, frame)

    def on_control(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a control message; procs expect none."""
        _log.warning("unexpected control message from %s", channel.peer)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel: fail everything that waits for it."""
        incarnation = channel.peer.incarnation
        lost = [number for number, slot in list(self._slots.items()) if slot.incarnation == incarnation]
        for number in lost:
            self._lost_slot(number, error)
        for owned, rank in self.ownership.lose(incarnation):
            reported = bool(lost) or self.casts.in_flight.reports(owned.procs[rank])
            on_cause = partial(self.failures.on_death, owned, rank, incarnation, reported)
            self._causes.explain(incarnation, owned.where(rank), error, on_cause)
        self.casts.on_lost(channel, error)
        if self._receiver is not None:
            self._receiver.on_lost(incarnation)

    def _lost_slot(self, number: int, error: TransportError) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self.recorder.answered(number)
            self._causes.explain(slot.incarnation, slot.where, error, slot.answer)

    def shut_down(self) -> None:
        """End all actors of this process at once; return after their clean-up, or after `cell.CLEANUP_S`."""
        self.actors.end_all()
        self._loop.close()


def current_runtime() -> Runtime:
    """The runtime of this process.

    Raises:
        RuntimeError: this process has none.
        ForkedError: this process was forked, and the runtime belongs to its parent.
    """
    runtime = Runtime.current
    if runtime is None:
        raise RuntimeError("this process is not part of an allocation: call monarch_hpc.hosts() first")
    runtime.engine.check_own()
    return runtime
