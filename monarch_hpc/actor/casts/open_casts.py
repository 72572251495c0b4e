"""The casts of a process in flight: splits their notes by callee, and answers for the callees that were lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from monarch_hpc.actor.casts.reduction import take_part
from monarch_hpc.actor.casts.targets import OpenCast
from monarch_hpc.actor.messages.causes import Causes
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import ActorDied, DeliveryUnknown, MonarchError, PeerLost, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.recent import Recent
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.casts import Mark, Note, NoteKind, Spans, parse_lost, parse_notes
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["OpenCasts"]

_KEEP = 4096  # deaths remembered as reported by casts: duplicates arrive within seconds

_log = Logger(__name__)


class OpenCasts:
    """Casts that some callee has not answered or not handled. For the driver, except `add`, `close` and `lose`.

    Args:
        on_failure: called after the failure of a call was handled.

    Attributes:
        casts: by number.
        num_received: number of frames of notes received.
        marked: number of the last AFTER mark sent to each proc, by incarnation.
    """

    def __init__(
        self,
        connections: Connections,
        recorder: Recorder,
        causes: Causes,
        on_failure: Callable[[], None],
    ) -> None:
        self.casts: dict[int, OpenCast] = {}
        self.num_received = 0
        self.marked: dict[int, int] = {}
        self._connections = connections
        self._recorder = recorder
        self._causes = causes
        self._on_failure = on_failure
        self._reported: Recent[int, bool] = Recent(_KEEP)  # procs whose death a cast has reported

    def add(self, cast: OpenCast) -> None:
        """Add a cast that is about to be sent."""
        cast.target.num_open += 1
        self.casts[cast.number] = cast

    # ---- notes and answers ----

    def on_notes(self, frame: Frame) -> None:
        """Handle a frame of notes.

        Raises:
            FrameError: the frame is malformed.
        """
        self.num_received += 1
        for note in parse_notes(frame):
            cast = self.casts.get(note.number)
            if cast is not None and note.origin == self._connections.own.incarnation:
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
                self.close(cast)
            case NoteKind.PARTIAL | NoteKind.VOID:
                take_part(cast, note)
                self._settle(cast)

    def on_answer(self, frame: Frame) -> None:
        """Handle an answer that came directly because it is large."""
        cast = self.casts.get(frame.dest & ~CAST)
        if cast is not None and frame.dest & CAST:
            self._answer(cast, frame.reply, frame)

    def _answer(self, cast: OpenCast, place: int, given: Frame | MonarchError) -> None:
        if place not in cast.left:
            return
        cast.left.discard(place)
        cast.elsewhere.discard(place)
        cast.failed |= not isinstance(given, Frame) or given.kind is Kind.FAILURE
        if isinstance(given, ActorDied):
            self._reported[cast.target.proc(place).incarnation] = True
        self._settle(cast)
        if cast.answer is not None:
            cast.answer(place, given)
        if isinstance(given, Frame) and given.kind is Kind.FAILURE:
            self._on_failure()

    def _report_death(self, cast: OpenCast, place: int, cause: str) -> None:
        if place in cast.left:
            cast.elsewhere.add(place)
            self._causes.report_death(
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
                self._causes.explain(proc.incarnation, cast.where(place), error, partial(self._answer, cast, place))

    def _skip(self, cast: OpenCast, proc: ProcRef) -> None:
        """Stop direct messages behind a cast from waiting for it."""
        channel = self._connections.node.channels.get(proc.incarnation)
        if channel is not None and self.marked.get(proc.incarnation, 0) >= cast.number:
            with contextlib.suppress(TransportError):
                channel.send(Frame(Kind.MARK, Mark.SKIP, cast.number))

    def close(self, cast: OpenCast) -> None:
        """Close a cast that every callee has handled, or never will."""
        if not cast.done:
            cast.done = True
            cast.target.num_open -= 1
            if cast.cost:
                cast.route.credit.give(cast.actor, cast.cost)
        self._settle(cast)

    def _settle(self, cast: OpenCast) -> None:
        if not cast.left:
            cast.record_answered(self._recorder)
            if cast.done:
                self.casts.pop(cast.number, None)

    # ---- ends ----

    def end_all(self, error: MonarchError) -> None:
        """Answer all casts with *error*: this process cannot communicate any more."""
        for cast in list(self.casts.values()):
            for place in list(cast.left):
                self._answer(cast, place, error)

    def lose_all(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel, perhaps one to an agent: no more notes arrive from there."""
        for cast in list(self.casts.values()):
            if cast.channel is channel:
                self.lose(cast, error)

    def on_lost(self, incarnation: int, error: TransportError) -> None:
        """Handle the end of the channel to a callee: fail the answers that were expected through it."""
        for cast in list(self.casts.values()):
            place = cast.target.places.get(incarnation)
            if place is not None and place in cast.elsewhere and place in cast.left:
                self._causes.explain(incarnation, cast.where(place), error, partial(self._answer, cast, place))

    def reports(self, proc: ProcRef) -> bool:
        """Whether a cast reports the death of a proc, or has reported it."""
        return proc.incarnation in self._reported or any(
            cast.target.places.get(proc.incarnation) in cast.left for cast in list(self.casts.values())
        )

    def lose(self, cast: OpenCast, error: TransportError) -> None:
        """Handle the loss of the agent before all callees of a cast have answered."""
        for place in list(cast.left):
            proc = cast.target.proc(place)
            self._skip(cast, proc)
            cast.elsewhere.add(place)
            self._causes.explain(proc.incarnation, cast.where(place), error, partial(self._answer, cast, place))
        self.close(cast)
