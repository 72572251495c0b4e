"""The actor runtime of a process: dispatches frames to its actors, and answers to its pending calls."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from monarch_hpc.actor.casts.casts import Casts
from monarch_hpc.actor.cell.cancellation import LIMITED, limited
from monarch_hpc.actor.cell.cell import CLEANUP_S, Cell
from monarch_hpc.actor.cell.event_loop import EventLoop
from monarch_hpc.actor.cell.recording import peer_of
from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.context import ProcInfo, context
from monarch_hpc.actor.messages.line import LoopbackLink, MessageLink, ProcLink
from monarch_hpc.actor.messages.pending import Answer, Pending, Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.deadlines import Deadlines
from monarch_hpc.actor.runtime.death_causes import CauseLookup, CauseReporter
from monarch_hpc.actor.runtime.failures import FailureRouter
from monarch_hpc.actor.runtime.ownership import Ownership
from monarch_hpc.core.errors import ActorDied, ActorError, DeliveryUnknown, FrameError, PeerLost, TransportError
from monarch_hpc.core.fork import watch_forks
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["HELD", "STOPPED", "Runtime", "current_runtime"]

_CALL = Kind.CALL  # on the path of every frame: an enum member costs ten times a global
_RESULT = Kind.RESULT
_FAILURE = Kind.FAILURE

_log = Logger(__name__)

HELD = -1
"""Returned by `Runtime.call` instead of a number for a call that was not sent."""

_KEEP_ENDED = 1024
"""Number of ended actors whose cause is kept, about a kilobyte each. A call to an actor that ended before these fails
with "no such actor"; messages that were queued at its end have been answered."""

_MAX_CAUSE_CHARS = 4096
"""Upper bound on a kept cause with its traceback; the last lines are the most useful."""

STOPPED = "the proc was stopped"
"""The reason with which a stopped proc closes its channels."""


class Runtime(Replier, CauseReporter, FailureRouter):
    """Dispatches frames to actors and answers to callers; one per process.

    It is the `transport.api.Listener` of the process's node. Answers and deaths are reported on the
    driver; calls may be made from any thread.
    """

    current: ClassVar[Runtime | None] = None
    """The runtime of this process, for references that arrive in messages."""

    cells_drive: bool = True
    """Whether idle actors drive the engine; False in a program, whose main thread drives it."""

    is_program: bool = False
    """Whether this process is the program, not one of its procs."""

    def __init__(self, engine: Engine, info: ProcInfo, recorder: Recorder | None = None) -> None:
        self.engine = engine
        self.info = info
        self.recorder = recorder or Recorder()
        self._node: Node | None = None
        self._channels: Mapping[int, FrameChannel] = {}
        self._own: ProcRef | None = None
        self._loopback: LoopbackLink | None = None
        self._cells: dict[int, Cell] = {}
        self._ended: Recent[int, tuple[str, str]] = Recent(_KEEP_ENDED)  # actors that have ended -> where, cause
        self._slots: dict[int, Pending] = {}
        self._next_slot = itertools.count(1)
        self.deadlines = Deadlines(engine.clock, engine.call_later)
        self.ports: dict[int, Callable[[MessageLink, Frame], None]] = {}
        """Receivers of messages to ports of this process, by number of the port; called on any thread."""
        self.ownership = Ownership(self.recorder)
        self._death_causes = CauseLookup(self)
        self.loop = EventLoop(self.exit_process)
        self.casts = Casts(self)
        watch_forks(self)

    def forked(self, parent: int) -> None:
        """In a forked child: drop the channels of *parent*; their use raises `ForkedError`."""
        self._channels, self._loopback = {}, None

    def bind(self, node: Node, own: ProcRef) -> None:
        """Use *node* for all channels; *own* is the address under which other processes reach this one."""
        self._node = node
        self._channels = node.channels
        self._own = own
        self._loopback = LoopbackLink(self.engine, self.on_frame, node.limits.mailbox_bytes, node.memories)
        self._loopback.mark = self.recorder.names.proc(node.identity.incarnation, node.identity.host)

    @property
    def node(self) -> Node:
        """The node, which holds the channels."""
        assert self._node is not None, "bind() comes first"
        self.engine.check_own()
        return self._node

    @property
    def own(self) -> ProcRef:
        """The address of this process."""
        assert self._own is not None, "bind() comes first"
        return self._own

    # ---- outgoing ----

    def line_to(self, proc: ProcRef) -> ProcLink:
        """Return the link to *proc*; connect if there is none, unless on the driver. Loopback for this process itself.

        Raises:
            TransportError: the proc cannot be reached.
        """
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None and channel.error is None:
            return channel
        if self._loopback is not None and proc.incarnation == self.node.identity.incarnation:
            return self._loopback
        return self.node.connect(proc.addresses, proc.incarnation)

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
                    self.casts.direct(proc, line, frame)
        except BaseException:
            self.ownership.remove(actor)
            raise

    def _line_for_spawn(self, rank: int, proc: ProcRef) -> MessageLink:
        try:
            return self.line_to(proc)
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
            self.casts.direct(proc, self.line_to(proc), Frame(Kind.STOP, actor, slot))
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
            channel = self._channels.get(proc.incarnation)
            line = channel if channel is not None and channel.error is None else self.line_to(proc)
            peer = line.mark or peer_of(line, self.recorder)
            self.recorder.sent(slot, context().mark, name, peer, len(body), actor)
            if not self.casts.direct(proc, line, Frame(_CALL, actor, slot, body, buffers), until_s):
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
                own = pending.incarnation == self.node.identity.incarnation
                line = self._loopback if own else self._channels.get(pending.incarnation)
                if line is not None:
                    with contextlib.suppress(TransportError):  # the call ends like all calls of a lost channel
                        line.send(Frame(Kind.CANCEL, actor, number))

    # ---- incoming ----

    def on_channel(self, channel: FrameChannel) -> None:
        """Accept a channel that the peer opened; nothing to prepare."""

    def on_frame(self, channel: MessageLink, frame: Frame) -> None:
        """Dispatch one frame; on the driver."""
        kind = frame.kind
        if kind is _CALL and self.casts.receiver is None:
            cell = self._cells.get(frame.dest)
            (self.dispatch if cell is None else cell.put)(channel, frame)
        elif kind is _RESULT or kind is _FAILURE:
            slot = self._slots.pop(frame.dest, None)
            if slot is not None:
                self.recorder.answered(frame.dest)
                slot.answer(frame)
                if kind is _FAILURE:
                    self.on_failure()
            elif frame.dest:
                self.casts.on_answer(frame)
            else:
                self.on_fault(frame)
        elif kind is Kind.CONTROL:
            self.on_control(channel, frame)
        elif not self.casts.take(channel, frame):
            self.dispatch(channel, frame)

    def dispatch(self, channel: MessageLink, frame: Frame) -> None:
        """Deliver a message to its actor or port."""
        kind, cell = frame.kind, self._cells.get(frame.dest)
        if kind is _CALL:
            port = self.ports.get(frame.dest)
            if cell is not None:
                cell.put(channel, frame)
            elif port is not None:
                port(channel, frame)
            else:
                self._refuse(channel, frame)
        elif kind is Kind.SPAWN:
            cell = Cell(self, channel, frame)
            if not cell.ended:  # its thread could not start
                self._cells[frame.dest] = cell
        elif kind is Kind.STOP:
            if cell is not None:
                cell.stop(channel, frame)
            elif frame.reply:
                self.reply(channel, frame.reply, None)
        elif kind is Kind.CANCEL and cell is not None:
            cell.cancel(channel, frame.reply)

    def _refuse(self, channel: MessageLink, frame: Frame) -> None:
        """Answer a call to an actor that has ended or is unknown here."""
        channel.consumed(frame.dest, cost_of(frame))
        channel.retire(frame.dest)
        ended = self._ended.get(frame.dest)
        if not frame.reply:
            return
        if ended is not None:
            self.reply_failure(channel, frame.reply, ended[0], ActorDied(*ended))
            return
        gone = DeliveryUnknown(
            f"actor {frame.dest:x}", "this proc has no such actor: it ended long ago, or was never here"
        )
        self.reply_failure(channel, frame.reply, self.info.host, gone)

    def forget_actor(self, actor: int, where: str, cause: str) -> None:
        """Drop an actor that has ended, except for the cause that late callers get; on its thread."""
        if len(cause) > _MAX_CAUSE_CHARS:
            first, _, rest = cause.partition("\n")
            cause = f"{first[:_MAX_CAUSE_CHARS]}\n...\n{rest[-_MAX_CAUSE_CHARS:]}"
        self._ended[actor] = where, cause
        self._cells.pop(actor, None)
        for line in [self._loopback, *self._channels.values()]:
            if line is not None:
                line.retire(actor)

    def on_failure(self) -> None:
        """Handle a failed call; a program that holds back output shows it at once."""

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
            reported = bool(lost) or self.casts.reports(owned.procs[rank])
            on_cause = partial(self.on_death, owned, rank, incarnation, reported)
            self.explain(incarnation, owned.where(rank), error, on_cause)
        self.casts.on_lost(channel, error)

    def _lost_slot(self, number: int, error: TransportError) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self.recorder.answered(number)
            self.explain(slot.incarnation, slot.where, error, slot.answer)

    def explain(
        self, incarnation: int, where: str, error: TransportError, on_cause: Callable[[ActorError], None]
    ) -> None:
        """Report why a call to a lost proc gets no answer, once the program has sent the cause."""
        self._death_causes.ask(incarnation, where, error, on_cause)

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Whether the proc ended because it was asked to; the program overrides this with what its agents report."""
        return STOPPED in cause or self._death_causes.was_expected(incarnation)

    def cell(self, actor: int) -> Cell | None:
        """Return an actor of this process by its number; None if it has none."""
        return self._cells.get(actor)

    def shut_down(self) -> None:
        """End all actors of this process at once; return after their clean-up, or after `CLEANUP_S`."""
        cells = list(self._cells.values())
        for cell in cells:
            cell.end()
        if cells:
            self.engine.wait(lambda: all(cell.ended or cell.abandonable for cell in cells), CLEANUP_S)
        self.loop.close()


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
