"""Receives casts from the agents' tree, and merges them with the direct messages of their senders."""

from __future__ import annotations

import contextlib
from _thread import RLock
from collections.abc import Callable
from functools import partial

from monarch_hpc.actor.casts.reduction import combine
from monarch_hpc.actor.casts.send_order import SendOrder
from monarch_hpc.actor.cell.cancellation import LIMITED
from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import Peer
from monarch_hpc.wire.casts import Cast, Mark, Note, NoteKind, pack_notes, parse_cast, parse_number, parse_target
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["BULK_BYTES", "CastLine", "CastReceiver"]

BULK_BYTES = 64 << 10
"""A larger answer goes directly to the caller where there is a channel: agents combine only small ones."""

_FLUSH_S = 0.05
"""Time for which DONE notes are batched before they are sent: short, as a sender may be waiting for that credit."""

_LATE_S = 15.0
"""Longest wait for casts of a sender that is gone, for direct messages that it has sent after them: an agent on the way
that stands still for longer is lost, with the default of `liveness.dead_s`."""


@dataclass(slots=True, eq=False)
class CastLine:
    """The link back to the sender of one cast: answers go to the agent, which combines them on the way up the tree."""

    receiver: CastReceiver
    agent: MessageLink
    cast: Cast
    mark: int
    error: TransportError | None = None
    """Why the sender is gone; None while it may be there."""

    @property
    def peer(self) -> object:
        """The agent that delivered the cast."""
        return self.agent.peer

    @property
    def slot(self) -> int:
        """The reply slot of the call, used for direct answers too; 0 if no answer is wanted."""
        if not self.cast.answered:
            return 0
        return CAST | self.cast.number | (LIMITED if self.cast.limited else 0)

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send an answer, or the failure of an actor, to the sender."""
        self.receiver.answer(self, frame)
        return True

    def consumed(self, dest: int, cost: int) -> None:
        """Report that the cast was handled."""
        self.receiver.handled(self, cost)

    def retire(self, dest: int) -> None:
        """Do nothing: `consumed` returns the credit of each cast."""


class CastReceiver:
    """Delivers the casts that arrive at a process; created when the first one arrives.

    Args:
        dispatch: delivers a message to its actor.
    """

    def __init__(
        self,
        connections: Connections,
        recorder: Recorder,
        info: ProcInfo,
        dispatch: Callable[[MessageLink, Frame], None],
    ) -> None:
        self._connections = connections
        self._recorder = recorder
        self._info = info
        self._dispatch = dispatch
        self._flush_bytes = max(connections.node.limits.mailbox_bytes // 4, 1)  # of the credit window of senders
        # Held during delivery, so that two threads cannot reorder messages. Reentrant: a delivery may send to itself.
        self._lock = RLock()
        self._lines: dict[tuple[int, int], CastLine] = {}  # calls not handled yet, by sender and number
        self._senders: dict[int, SendOrder[Callable[[], None]]] = {}
        self._marks: dict[int, int] = {}  # names of senders in the records
        self._handled: list[Note] = []
        self._handled_bytes = 0
        self._agent: MessageLink | None = None
        self._flush_scheduled = False

    # ---- in ----

    def take_direct(self, channel: MessageLink, frame: Frame) -> bool:
        """Take a direct message if its sender also casts, and deliver it in order; False for other senders.

        A cancellation is not taken: it comes before all others. If messages are held back, it is repeated behind them,
        since the call may be one of them.
        """
        order = self._senders.get(self._sender(channel))
        if order is None or (frame.kind is Kind.CANCEL and not order.num_held):
            return False
        with self._lock:
            self._deliver(order.direct(lambda: self._dispatch(channel, frame)))
        return frame.kind is not Kind.CANCEL

    def on_frame(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a cast, a mark, or the agent's order to combine results.

        Raises:
            FrameError: the frame is malformed.
        """
        if frame.kind is Kind.MARK:
            self.on_mark(channel, frame)
        elif frame.kind is Kind.REDUCE:
            if isinstance(channel.peer, Peer) and channel.peer.role is Role.AGENT:
                combine(channel, frame, self._info)
        else:
            self.on_cast(channel, frame)

    def on_mark(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a mark among the direct messages."""
        try:
            mark = Mark(frame.dest)
        except ValueError:
            return
        with self._lock:
            self._deliver(self._order_of(self._sender(channel)).mark(mark, frame.reply))

    def on_cast(self, channel: MessageLink, frame: Frame) -> None:
        """Handle a cast from the agent."""
        if not isinstance(channel.peer, Peer) or channel.peer.role is not Role.AGENT:
            return
        cast = parse_cast(frame)
        self._agent = channel
        # The agents may still have casts of a program that is known here to be gone.
        line = CastLine(self, channel, cast, self._mark_of(cast.origin), self._connections.loss_of(cast.origin))
        if cast.kind is Kind.CALL:
            self._lines[cast.origin, cast.number] = line
        with self._lock:
            ready = self._order_of(cast.origin).cast(
                cast.number,
                lambda: self._take(line),
                waits=self._connections.own.rank in cast.waits,
            )
            if ready is not None:
                self._deliver(ready)
                return
        self._lines.pop((cast.origin, cast.number), None)
        late = Note(NoteKind.UNKNOWN, cast.origin, cast.number, 0, b"it came too late")
        self._send_notes(channel, [late, Note(NoteKind.DONE, cast.origin, cast.number)])

    def _mark_of(self, sender: int) -> int:
        mark = self._marks.get(sender)
        if mark is None:
            direct = self._connections.node.channels.get(sender)
            host = "" if direct is None else direct.peer.host
            mark = self._marks[sender] = self._recorder.names.proc(sender, host)
        return mark

    def _take(self, line: CastLine) -> None:
        cast = line.cast
        if cast.kind is Kind.CANCEL:
            cancelled = self._lines.get((cast.origin, parse_number(cast.body)))
            if cancelled is not None:
                self._dispatch(cancelled, Frame(cast.kind, cast.actor, cancelled.slot))
        else:
            self._dispatch(line, Frame(cast.kind, cast.actor, line.slot, cast.body, cast.buffers))
        if cast.kind is not Kind.CALL:  # for a call, the actor reports it
            self.handled(line, 0)

    def on_lost(self, incarnation: int, error: TransportError) -> None:
        """Handle the end of the channel to a sender."""
        for (sender, _), line in list(self._lines.items()):
            if sender == incarnation:
                line.error = error
        order = self._senders.get(incarnation)
        if order is not None:
            with self._lock:
                self._deliver(order.cut())
                awaited = order.awaited
            if awaited:
                self._connections.engine.call_later(_LATE_S, partial(self._give_up, order, awaited))

    def _give_up(self, order: SendOrder[Callable[[], None]], number: int) -> None:
        """Stop waiting for a cast of a sender that is gone."""
        with self._lock:
            self._deliver(order.mark(Mark.SKIP, number))

    def _order_of(self, sender: int) -> SendOrder[Callable[[], None]]:
        order = self._senders.get(sender)
        if order is None:
            order = self._senders[sender] = SendOrder()
        return order

    def _sender(self, channel: MessageLink) -> int:
        peer = channel.peer
        return peer.incarnation if isinstance(peer, Peer) else self._connections.own.incarnation

    @staticmethod
    def _deliver(ready: list[Callable[[], None]]) -> None:
        for deliver in ready:
            deliver()

    # ---- out ----

    def answer(self, line: CastLine, frame: Frame) -> None:
        """Send an answer, or the failure of an actor, to the sender of a cast.

        Raises:
            TransportError: the sender or the agent is gone.
        """
        cast = line.cast
        direct = self._connections.node.channels.get(cast.origin)
        if not frame.dest:
            if direct is not None:
                direct.send(frame)
            return
        tag = NoteKind.RESULT if frame.kind is Kind.RESULT else NoteKind.FAILURE
        size = len(frame.body) + sum([memoryview(buffer).nbytes for buffer in frame.buffers])
        # Answers of a reduction are combined on this host, however large.
        bulk = size > BULK_BYTES and not cast.functions
        if bulk and direct is not None and direct.error is None:
            place = parse_target(cast.target).place_of(self._connections.own.rank) or 0
            direct.send(Frame(frame.kind, CAST | cast.number, place, frame.body, frame.buffers))
            note = Note(NoteKind.ELSEWHERE, cast.origin, cast.number)
        else:
            note = Note(tag, cast.origin, cast.number, 0, frame.body, frame.buffers)
        line.agent.send(pack_notes([note]))

    def handled(self, line: CastLine, cost: int) -> None:
        """Report soon that a cast was handled; from any thread."""
        with self._lock:
            self._lines.pop((line.cast.origin, line.cast.number), None)
            self._handled.append(Note(NoteKind.DONE, line.cast.origin, line.cast.number))
            self._handled_bytes += cost
            enough = self._handled_bytes >= self._flush_bytes
            begin = not (enough or self._flush_scheduled)
            self._flush_scheduled |= begin
        if enough:
            self._flush_handled()
        elif begin:
            self._connections.engine.call_later(_FLUSH_S, self._flush_in_time)

    def _flush_in_time(self) -> None:
        self._flush_scheduled = False
        self._flush_handled()

    def _flush_handled(self) -> None:
        with self._lock:
            notes, self._handled, self._handled_bytes = self._handled, [], 0
        if notes and self._agent is not None:
            self._send_notes(self._agent, notes)

    @staticmethod
    def _send_notes(agent: MessageLink, notes: list[Note]) -> None:
        with contextlib.suppress(TransportError, FrameError):  # a proc ends with its agent
            agent.send(pack_notes(notes))
