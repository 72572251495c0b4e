"""Sends casts: one frame into the agents' tree, whose combined answers are split by callee here."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.actor.casts.reduction import take_part
from monarch_hpc.actor.casts.targets import (
    Answered,
    CastRecord,
    CastSenderProcess,
    CastTarget,
    CastTargets,
    OpenCast,
    Reduce,
)
from monarch_hpc.actor.cell.cancellation import limited
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import ActorDied, DeliveryUnknown, FrameError, MonarchError, PeerLost, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.credit import Credit, cost_of
from monarch_hpc.wire.casts import Cast, Mark, Note, NoteKind, Spans, pack_cast, pack_number, parse_lost, parse_notes
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["CastSender"]

_HOLD_S = 0.1  # upper bound on blocking one cast of a coroutine; as in `transport.channel`, for the same reason
_AGAIN_S = 0.001  # retry delay of the driver, which must not block while another thread is sending a cast
_KEEP = 4096  # deaths remembered as reported by casts: duplicates arrive within seconds

_log = Logger(__name__)


class CastSender:
    """Sends the casts of one process. For any thread; notes and ends of channels are handled on the driver.

    Once a sender exists, the process's direct messages go through `send` too, so that casts and direct messages
    arrive in the order in which they were sent.

    Args:
        addresses: where the agent listens at which casts enter the tree.
        on_channel: called with the channel to that agent.
    """

    def __init__(
        self, process: CastSenderProcess, addresses: Sequence[str], on_channel: Callable[[FrameChannel], None]
    ) -> None:
        self._on_channel = on_channel
        self._process = process
        self._addresses = addresses
        self._channel: FrameChannel | None = None
        self._lock = _thread.allocate_lock()  # held while a cast is numbered and sent
        self._credit = Credit(process.node.limits.mailbox_bytes, process.engine.wake_waiters)
        self._number = 0
        self._num_waiting = 0
        self._num_received = 0
        self._targets = CastTargets()
        self._open: dict[int, OpenCast] = {}
        # Procs that may have been sent direct messages since the last cast to them.
        self._direct = {*process.node.channels, process.own.incarnation}
        self.sent = self._direct.add
        self._marked: dict[int, int] = {}  # proc -> number of the last AFTER mark
        self._reported: Recent[int, bool] = Recent(_KEEP)  # procs whose death a cast has reported

    @property
    def num_sent(self) -> int:
        """Number of casts sent so far."""
        return self._number

    @property
    def num_received(self) -> int:
        """Number of frames of notes received."""
        return self._num_received

    @property
    def num_waiting(self) -> int:
        """Number of threads blocked by a full mailbox."""
        return self._num_waiting

    @property
    def num_open(self) -> int:
        """Number of casts that some callee has not answered or not handled."""
        return len(self._open)

    def connect(self) -> bool:
        """Ensure a channel to the agent; False if there is none and none can be opened now."""
        if self._channel is None or self._channel.error is not None:
            if self._process.engine.driving:
                return False
            try:
                # A separate channel: control messages must not wait behind user data.
                self._channel = self._process.node.connect(self._addresses)
            except TransportError as error:
                _log.warning("no casts through the agents, but one message for each proc: %s", error)
                return False
            self._on_channel(self._channel)
        return True

    # ---- direct messages ----

    def send(self, proc: ProcRef, line: MessageLink, frame: Frame, until_s: float | None = None) -> bool:
        """Send *frame* to one proc, behind all earlier casts to that proc; otherwise as `MessageLink.send`."""
        incarnation = proc.incarnation
        after = self._targets.last_to(incarnation) if self._open else 0
        if after > self._marked.get(incarnation, 0):
            line.send(Frame(Kind.MARK, Mark.AFTER, after))
            self._marked[incarnation] = after
        sent = line.send(frame, until_s)
        self.sent(incarnation)  # later casts must not overtake it
        return sent

    # ---- casts ----

    def cast(
        self,
        kind: Kind,
        region: Region,
        procs: Mapping[int, ProcRef],
        message: tuple[int, bytes, Sequence[Buffer]],
        where: Callable[[int], str],
        answer: Answered | None,
        end_s: float | None = None,
        reduce: Reduce | None = None,
        record: CastRecord | None = None,
    ) -> OpenCast | None:
        """Send one message to the procs of *region*; None if nothing was sent and the caller must send directly.

        Args:
            message: number of the actor, body and buffers.
            where: describes the callee at a place.
            answer: called once for each place with its outcome; None for a message without answers.
            end_s: the caller's deadline, on the engine's clock. If a mailbox is full until then, nothing is sent.
            reduce: how agents may combine the answers of adjacent places; None if they must not.
            record: caller and endpoint, for the telemetry records; only for a call with answers.

        Raises:
            FrameError: the message is over a limit; nothing was sent.
        """
        target = self._targets.of(self._process.info.run, region, procs)
        if target is None or not self.connect():
            return None
        actor, body, buffers = message
        limit = answer is not None and end_s is not None
        if limit and end_s is not None:
            body = limited(max(end_s - self._process.engine.clock(), 0.0), body)
        cost = cost_of(Frame(kind, actor, 0, body, buffers)) if kind is Kind.CALL else 0
        cast = OpenCast(target, 0, actor, cost, where, answer, reduce if target.in_blocks else None, limit, record)
        cast.held = cost > 0 and not self._take_credit(actor, cost, end_s)
        if not cast.held:
            self._send(cast, kind, body, buffers)
        return cast

    def cancel(self, cast: OpenCast) -> None:
        """Cancel a cast at the callees that have not answered yet."""
        if cast.left and cast.number:
            cancel = OpenCast(cast.target, 0, cast.actor, 0, cast.where, None)
            with contextlib.suppress(TransportError):
                self._send(cancel, Kind.CANCEL, pack_number(cast.number), ())

    def _send(self, cast: OpenCast, kind: Kind, body: bytes, buffers: Sequence[Buffer]) -> None:
        engine = self._process.engine
        with engine.undisturbed():
            if not self._lock.acquire(blocking=not engine.driving):
                copies = [bytes(buffer) for buffer in buffers]
                engine.call_later(_AGAIN_S, partial(self._send, cast, kind, body, copies))
                return
            try:
                self._send_locked(cast, kind, body, buffers)
            finally:
                self._lock.release()

    def _send_locked(self, cast: OpenCast, kind: Kind, body: bytes, buffers: Sequence[Buffer]) -> None:
        line, target = self._channel, cast.target
        assert line is not None
        number = cast.number = self._number + 1
        last = target.last
        frame = pack_cast(
            Cast(
                kind=kind,
                answered=cast.answer is not None,
                limited=cast.limited,
                origin=self._process.own.incarnation,
                number=number,
                root=0,  # filled in by the agent at which the cast enters
                low=0,
                high=0,
                target=target.packed,
                hosts=target.hosts,
                waits=self._mark(target, number),
                actor=cast.actor,
                body=body,
                buffers=buffers,
                functions=b"" if cast.reduce is None else cast.reduce.functions,
            )
        )
        self._number = number
        if cast.answer is not None:
            cast.left.update(range(len(target.region)))
        target.last = number
        target.num_open += 1
        self._open[number] = cast
        cast.record_sent(self._process.recorder, len(body))
        try:
            line.send(frame)
        except FrameError:
            target.last = last  # or direct messages would wait for this cast
            cast.left.clear()
            self._close(cast)
            raise
        except TransportError as error:
            self._lose(cast, error)

    def _mark(self, target: CastTarget, number: int) -> tuple[int, ...]:
        """Send a BEFORE mark to each proc with direct messages since its last cast; return the ranks of those procs."""
        waits = []
        for incarnation in self._direct & target.places.keys():
            proc = target.proc(target.places[incarnation])
            self._direct.discard(incarnation)  # first: a message sent behind the mark adds it again
            with contextlib.suppress(TransportError):  # it is gone
                if incarnation in self._process.node.channels or incarnation == self._process.own.incarnation:
                    self._process.line_to(proc).send(Frame(Kind.MARK, Mark.BEFORE, number))
                    waits.append(proc.rank)
        return tuple(waits)

    def _take_credit(self, actor: int, cost: int, end_s: float | None) -> bool:
        engine = self._process.engine
        if self._credit.try_take(actor, cost):
            return True
        if not engine.driving:
            ticket = self._credit.queue(actor, cost)

            def ready() -> bool:
                return ticket.granted or self._channel is None or self._channel.error is not None

            self._num_waiting += 1
            try:
                wait_s = None if end_s is None else max(end_s - engine.clock(), 0.0)
                if asyncio._get_running_loop() is not None:
                    wait_s = _HOLD_S if wait_s is None else min(wait_s, _HOLD_S)
                engine.wait(ready, wait_s)
            finally:
                self._num_waiting -= 1
                self._credit.leave(ticket)
            if ticket.granted:
                return True
            if end_s is not None and engine.clock() >= end_s:
                return False
        self._credit.take(actor, cost)
        return True

    # ---- notes and answers ----

    def on_notes(self, frame: Frame) -> None:
        """Handle a frame of notes.

        Raises:
            FrameError: the frame is malformed.
        """
        self._num_received += 1
        for note in parse_notes(frame):
            cast = self._open.get(note.number)
            if cast is not None and note.origin == self._process.own.incarnation:
                self._on_note(cast, note)

    def _on_note(self, cast: OpenCast, note: Note) -> None:
        match note.tag:
            case NoteKind.RESULT:
                self._answer(cast, note.place, Frame(Kind.RESULT, 0, 0, note.body, note.buffers))
            case NoteKind.FAILURE:
                self._answer(cast, note.place, Frame(Kind.FAILURE, 0, 0, note.body, note.buffers))
            case NoteKind.ELSEWHERE:
                if note.place in cast.left:
                    cast.elsewhere.add(note.place)
            case NoteKind.DIED:
                self._report_death(cast, note.place, bytes(note.body).decode(errors="replace"))
            case NoteKind.UNKNOWN:
                self._skip(cast, cast.target.proc(note.place))
                cause = bytes(note.body).decode(errors="replace")
                self._answer(cast, note.place, DeliveryUnknown(cast.where(note.place), cause))
            case NoteKind.LOST:
                lost = parse_lost(note.body)
                self._lose_hosts(cast, lost.hosts, lost.cause)
            case NoteKind.LAST:
                for place in cast.left - cast.elsewhere:
                    unknown = DeliveryUnknown(cast.where(place), "no answer came through the agents")
                    self._answer(cast, place, unknown)
            case NoteKind.DONE:
                self._close(cast)
            case NoteKind.PARTIAL | NoteKind.VOID:
                take_part(cast, note)
                self._settle(cast)

    def on_answer(self, frame: Frame) -> None:
        """Handle an answer that came directly because it is large."""
        cast = self._open.get(frame.dest & ~CAST)
        if cast is not None and frame.dest & CAST:
            self._answer(cast, frame.reply, frame)

    def _answer(self, cast: OpenCast, place: int, given: Frame | MonarchError) -> None:
        if place not in cast.left:
            return
        cast.left.discard(place)
        cast.elsewhere.discard(place)
        if isinstance(given, ActorDied):
            self._reported[cast.target.proc(place).incarnation] = True
        self._settle(cast)
        if cast.answer is not None:
            cast.answer(place, given)
        if isinstance(given, Frame) and given.kind is Kind.FAILURE:
            self._process.on_failure()

    def _report_death(self, cast: OpenCast, place: int, cause: str) -> None:
        if place in cast.left:
            cast.elsewhere.add(place)
            self._process.report_death(
                cast.target.proc(place).incarnation, cast.where(place), cause, partial(self._answer, cast, place)
            )

    def _lose_hosts(self, cast: OpenCast, hosts: Spans, cause: str) -> None:
        lost = [
            place
            for place in range(len(cast.target.region))
            if any(start <= cast.target.proc(place).host_rank < stop for start, stop in hosts)
        ]
        if cast.answer is None:
            _log.warning(
                "%d actors may have missed a message, the first is %s: %s", len(lost), cast.where(lost[0]), cause
            )
        for place in lost:
            proc = cast.target.proc(place)
            self._skip(cast, proc)
            if place in cast.left and place not in cast.elsewhere:
                cast.elsewhere.add(place)
                # If the proc is dead, its agent reports that soon, with a better cause.
                error = PeerLost(proc.host, cause)
                self._process.explain(proc.incarnation, cast.where(place), error, partial(self._answer, cast, place))

    def _skip(self, cast: OpenCast, proc: ProcRef) -> None:
        """Stop direct messages behind a cast from waiting for it."""
        channel = self._process.node.channels.get(proc.incarnation)
        if channel is not None and self._marked.get(proc.incarnation, 0) >= cast.number:
            with contextlib.suppress(TransportError):
                channel.send(Frame(Kind.MARK, Mark.SKIP, cast.number))

    def _close(self, cast: OpenCast) -> None:
        """Close a cast that every callee has handled, or never will."""
        if not cast.done:
            cast.done = True
            cast.target.num_open -= 1
            if cast.cost:
                self._credit.give(cast.actor, cast.cost)
        self._settle(cast)

    def _settle(self, cast: OpenCast) -> None:
        if not cast.left:
            cast.record_answered(self._process.recorder)
            if cast.done:
                self._open.pop(cast.number, None)

    # ---- ends ----

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel: fail the answers that were expected through it."""
        if channel is self._channel:
            for cast in list(self._open.values()):
                self._lose(cast, error)
            return
        incarnation = channel.peer.incarnation
        if incarnation not in self._process.node.channels:
            self._marked.pop(incarnation, None)
            self._direct.discard(incarnation)
        for cast in list(self._open.values()):
            place = cast.target.places.get(incarnation)
            if place is not None and place in cast.elsewhere and place in cast.left:
                self._process.explain(incarnation, cast.where(place), error, partial(self._answer, cast, place))

    def reports(self, proc: ProcRef) -> bool:
        """Whether a cast reports the death of a proc, or has reported it."""
        return proc.incarnation in self._reported or any(
            cast.target.places.get(proc.incarnation) in cast.left for cast in list(self._open.values())
        )

    def _lose(self, cast: OpenCast, error: TransportError) -> None:
        for place in list(cast.left):
            proc = cast.target.proc(place)
            self._skip(cast, proc)
            cast.elsewhere.add(place)
            self._process.explain(proc.incarnation, cast.where(place), error, partial(self._answer, cast, place))
        self._close(cast)
