"""One actor in its proc: the mailbox, the object, and what it does in its turns."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from monarch_hpc.actor.cell.actor_object import ActorObject
from monarch_hpc.actor.cell.cancellation import LIMITED, Cancellations, Mail
from monarch_hpc.actor.cell.coroutines import Coroutines
from monarch_hpc.actor.cell.end import CLEANUP_S, CellEnd
from monarch_hpc.actor.cell.endpoint_table import EndpointEntry, EndpointTable, place_of
from monarch_hpc.actor.cell.invocation import Invocation
from monarch_hpc.actor.cell.process import CellProcess
from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.cell.replies import ActorReplies, death_of, is_deadly
from monarch_hpc.actor.cell.supervision import Supervision
from monarch_hpc.actor.context import ProcInfo, set_caller
from monarch_hpc.actor.endpoint_wrappers import bind
from monarch_hpc.actor.execution.threads import Threaded
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import unpack_call, unpack_spawn
from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.errors import ActorDied, CallTimeout
from monarch_hpc.core.text.description import summary_of, trace_of, traceback_of
from monarch_hpc.telemetry.pen import Handling
from monarch_hpc.transport.credit import PIECE_BYTES, cost_of
from monarch_hpc.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from monarch_hpc.actor.execution.event_loop import Running

__all__ = ["Cell"]

_STOP = 0  # stands in for the cost of a call, which is always positive: the actor ends here, after all earlier messages
_NOTHING = Frame(Kind.STOP)

_now = monotonic_ns

_Begun = Callable[[], object]
"""Returns the coroutine of a function that has been called already."""


class Cell(Threaded):
    """Runs one actor: the constructor first, then its messages, one at a time; everything on one thread at a time.

    Coroutines run on the actor's own event loop, between messages. If all endpoints of a class are coroutines, its
    constructor and hooks run there too. *owner* is the number of the actor that has spawned it; 0 for a program.
    """

    def __init__(self, process: CellProcess, info: ProcInfo, channel: MessageLink, spawn: Frame) -> None:
        # Class and arguments stay packed: unpacking them runs user code, which may fail, on the actor's thread.
        spawned = unpack_spawn(spawn)
        name = spawned.name
        super().__init__(process.threads, f"actor {name}")
        self.engine = process.engine
        self.name, self.region, self.owner = name, spawned.region, spawn.reply
        self._place = place_of(info, spawned.region)
        self.where = f"actor {name}{self._place} on {info.host or 'this host'}"
        self._process = process
        self._replier = process.replier
        self._replies = ActorReplies(process.engine, process.replier, self.where, self._fail)
        self._actor = spawn.dest
        self._mailbox: deque[Mail] = deque()
        self._cancellations = Cancellations(self._mailbox, process.engine.clock, self._refuse)
        self._constructed = False
        self._busy: list[int] = []  # not empty while a function runs; the thread that empties it answers the call
        self._records = CellRecorder(process.recorder)
        self.entries = EndpointTable(self._records)
        self._supervision = Supervision(self.entries, self._fail, self._urge)
        self._coroutines = Coroutines(process.engine, self._wait, self.wake)
        self._object = ActorObject(self.where, info, spawned, spawn, self.entries, self._records, self._coroutines)
        self._turn: Running | None = None  # the coroutine that all messages wait for
        self._calls: Invocation | None = None  # the function that runs, if it is more than a function call
        self._urgent = True  # something comes before all messages: first of all, the constructor
        self._end = CellEnd(process, channel, spawn, self.where, self._mailbox, self._cancellations, self._replies)
        self.wake()

    # ---- from other threads ----

    def put(self, channel: MessageLink, frame: Frame) -> None:
        """Queue a call."""
        cost = cost_of(frame)
        slot = frame.reply
        if slot >= LIMITED:
            self._cancellations.arrive(channel, frame)
        self._put((slot, channel, frame, cost, _now()))

    def cancel(self, channel: MessageLink, slot: int) -> None:
        """Cancel a call: remove it if it has not begun, else cancel its coroutine if it has one."""
        self._cancellations.cancel(channel, slot)

    def stop(self, channel: MessageLink, frame: Frame) -> None:
        """Stop the actor after all queued messages, or when `procs.stop_s` is over; answer once it has ended.

        What still runs then is cancelled; a function, which cannot be, is left to itself.
        """
        self._supervision.refuses = True
        if self._end.ask(bytes(frame.body).decode(errors="replace")):
            self._end.limit(self._process.stop_s, self._stop_late)
        self._put((frame.reply, channel, frame, _STOP, 0))

    def supervise(self, failure: MeshFailure, *, reported: bool) -> None:
        """Queue the failure of something that this actor spawned, ahead of all messages.

        Args:
            reported: whether a call of this process already reports the failure.
        """
        self._supervision.add(failure, reported=reported)
        self._urge()

    def end(self) -> None:
        """End the actor at once: running coroutines are cancelled, queued messages refused."""
        self._end.ask("")
        self._replies.cause = self._replies.cause or self._end.asked
        self._urge()

    def kill(self, reason: str) -> None:
        """Make the actor fail after the message that it currently handles; the failure is reported to its owner."""
        self._fail(f"it was killed: {reason}", RuntimeError(reason))

    @property
    def ending(self) -> bool:
        """Whether the actor ends or has ended."""
        return bool(self._replies.cause)

    @property
    def ended(self) -> bool:
        """Whether the actor has ended, and cleaned up unless its thread hangs."""
        return bool(self._end.cause)

    @property
    def abandonable(self) -> bool:
        """Whether shutdown need not wait: the actor runs code that cannot be cancelled, and has nothing to clean up."""
        return bool(self._busy) and not self._object.needs_clean_up

    def _put(self, mail: Mail) -> None:
        self._mailbox.append(mail)
        # In this order: an ending actor sets the cause first and then empties its mailbox.
        if self._end.cause:
            self._end.refuse_all()
        else:
            self.wake()

    def _urge(self) -> None:
        self._urgent = True
        self.wake()

    def _fail(self, cause: str, error: BaseException) -> None:
        """End the actor with a failure, after the message that it currently handles; from any thread."""
        if not self.ending and self._end.failure is None:
            self._end.failure = cause, error
            self._urge()

    def _stop_late(self) -> None:
        """End what has not ended in the time for a stop; on the driver."""
        if self.ended:
            return
        if self._busy:
            self._give_up()
            return
        self._end.limit(CLEANUP_S, self._give_up)
        self.end()

    def _give_up(self) -> None:
        """Leave the actor's thread to itself, where user code hangs, and answer all callers; on the driver."""
        cause = self._replies.cause or self._end.asked
        if self.ended or not self._end.declare(cause):
            return
        self._replies.cause = cause
        print_error(f"{self.where} did not end within the time for a stop: its thread is left to itself")
        died = ActorDied(self.where, death_of(cause))
        if self._calls is not None:
            self._calls.refuse(died, raised=False)
        self._coroutines.refuse(died)
        try:
            slot = self._busy.pop()
        except IndexError:
            return
        channel = self._cancellations.channel
        if slot and channel is not None:
            self._replier.reply_failure(channel, slot, self.where, died)

    # ---- the actor's turns, on its thread ----

    def due(self) -> bool:
        """See `Threaded.due`."""
        if (self._mailbox and self._turn is None) or self._urgent:
            return not self._end.cause
        loop = self._coroutines.loop
        return loop is not None and loop.due() and not self._end.cause

    def next_s(self) -> float | None:
        """See `Threaded.next_s`."""
        loop = self._coroutines.loop
        return None if loop is None else loop.next_s()

    def work(self) -> None:
        """See `Threaded.work`."""
        mailbox, end, coroutines = self._mailbox, self._end, self._coroutines
        while not end.cause:
            if self._urgent:
                self._urgent = False
                self._attend()
                continue
            loop = coroutines.loop
            if loop is not None and loop.due():
                coroutines.step(loop, self._fail)
            if self._turn is not None or not mailbox:
                if self._urgent or (coroutines.loop is not None and self.due()):
                    continue
                break
            try:
                slot, channel, frame, cost, arrived_ns = mailbox.popleft()
            except IndexError:  # another thread removed a cancelled call meanwhile
                continue
            if cost > 0:
                over = True
                try:
                    over = self._handle(channel, frame, cost, arrived_ns)
                finally:
                    frame = _NOTHING  # free the payload before its sender gets credit for more
                    if over:
                        channel.consumed(self._actor, cost)
            else:
                end.answer_stop(channel, slot)
                self._finish()
        if end.cause and not self._object.cleaned:  # it was given up meanwhile
            self._object.clean_up(None)
            self._records.ended(end.cause, failed=False)

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        assert self.thread is not None, "called in the middle of its work"
        return self.thread.wait(ready, timeout_s)

    def _attend(self) -> None:
        """Do what comes before all messages."""
        if not self._constructed:
            self._construct()
        if self._end.failure is not None or self.ending:
            self._finish()
        elif self._supervision.due:
            self._object.context = None  # the hook enters another one
            self._supervision.handle(self._coroutines, on_loop=self._object.on_loop)
            self._urgent = True  # there may be another failure, or the hook has failed the actor

    def _construct(self) -> None:
        self._busy.append(0)
        try:
            set_caller(self._cancellations)
            self._object.construct()
        except BaseException as error:  # noqa: BLE001 user code; reported to owner and callers
            print_error(trace_of(error))
            self._end.failure = self._end.failure or (f"its constructor raised {summary_of(error)}", error)
        finally:
            self._constructed = True
            self._busy.clear()

    def _handle(self, channel: MessageLink, frame: Frame, cost: int, arrived_ns: int) -> bool:
        """Run one call; False if it continues as a coroutine, whose end answers it and returns its credit."""
        method = ""
        cancellations, slot = self._cancellations, frame.reply
        cancellations.channel, cancellations.slot = channel, slot
        orphans = self._replier.drops_orphans
        if (cancellations.keys or slot >= LIMITED or orphans) and cancellations.refuses(channel, slot, orphans=orphans):
            return True
        handling = self._records.handling
        num_bytes = cost - PIECE_BYTES * (1 + len(frame.buffers))
        busy = self._busy
        raised: BaseException | None = None
        value: object = None
        runs = False
        busy.append(slot)
        try:
            head, args, kwargs = unpack_call(frame)
            entry = self.entries[head]
            method = entry.method
            if entry.context is not self._object.context:
                self._object.enter(entry.context)
            if entry.plain is None:
                handling = self._records.begin_concurrent(channel, entry.name, slot, num_bytes, arrived_ns)
                return self._start(channel, frame, cost, entry, args, kwargs, handling)
            handling.begin(entry.name, channel.mark or self._records.peer(channel), slot, num_bytes, arrived_ns)
            runs = True
            value = entry.plain(*args, **kwargs)
            if type(value) is CoroutineType:  # a `def` that wraps an `async def`
                self._records.detach()
                return self._start(channel, frame, cost, entry, (), {}, handling, lambda: value)
        except BaseException as error:  # noqa: BLE001 user code; reported to the caller
            raised = error
        try:
            busy.pop()
        except IndexError:  # given up: the caller has its answer
            handling.end(0)
            return True
        if raised is not None:
            (self._replies.die if runs and is_deadly(raised) else self._replies.fail)(
                channel, slot, method, raised, handling
            )
            del raised  # its traceback holds this frame
        elif slot:
            self._replier.reply(channel, slot, value, self.where, method, handling)
        else:
            handling.end(0)
        if slot >= LIMITED:
            cancellations.over(channel, slot)
        return True

    # ---- endpoints that need an `Invocation` ----

    def _start(
        self,
        channel: MessageLink,
        frame: Frame,
        cost: int,
        entry: EndpointEntry,
        args: Any,
        kwargs: Any,
        handling: Handling,
        begun: _Begun | None = None,
    ) -> bool:
        endpoint, slot = entry.endpoint, frame.reply
        function = begun or bind(endpoint, self.entries.target)
        cancellations = self._cancellations
        invocation = Invocation(self._replies, channel, slot, endpoint, cancellations.due(channel, slot), handling)
        if begun is None and not endpoint.is_async:
            self._busy[:] = [0]  # the invocation answers the call, once
            self._calls = invocation
            invocation.call(function, args, kwargs)
            self._calls = None
            self._busy.clear()
            self._records.finish(handling)
            cancellations.over(channel, slot)
            return True
        self._busy.clear()

        def done(running: Running) -> None:
            if self._turn is running:
                self._turn = None
            self._records.finish(handling)
            cancellations.over(channel, slot)
            channel.consumed(self._actor, cost)

        running = self._coroutines.begin(invocation.perform(function, args, kwargs), done, invocation)
        invocation.running = running
        if not endpoint.concurrent:
            self._turn = running
        if slot:
            cancellations.runs(channel, slot, invocation)
        return False

    def _refuse(self, channel: MessageLink, slot: int, cost: int, limit_s: float) -> None:
        if cost:
            channel.consumed(self._actor, cost)
        self._replier.reply_failure(channel, slot, self.where, CallTimeout(self.where, (), limit_s))

    # ---- the end ----

    def _finish(self) -> None:
        """End the actor, with its failure or because it was stopped."""
        end, error = self._end, None
        cause = words = end.asked or self._replies.cause
        if end.failure is not None:
            words, error = end.failure
            cause = f"{words}\n{trace_of(error)}".rstrip()
            end.report(self.name, self._place.rank, end.failure)
        self._replies.cause = cause
        self._coroutines.cancel_all(CLEANUP_S)
        self._object.clean_up(error)
        end.failure = None
        if error is not None:
            traceback.clear_frames(traceback_of(error))  # its frames hold the object
        self._records.ended(words, failed=error is not None)
        end.declare(cause)

    def break_off(self, error: BaseException) -> None:
        """See `Threaded.break_off`."""
        print_error(f"{self.where} cannot go on:\n{trace_of(error)}")
        end, channel, slot = self._end, self._cancellations.channel, self._cancellations.slot
        cause = f"its thread failed: {summary_of(error)}"
        try:
            if self.thread is None:
                end.report(self.name, self._place.rank, (cause, error))
            elif not self.ended:
                end.failure = end.failure or (cause, error)
                self._finish()
        finally:
            end.declare(cause)
            end.refuse_all()
            died = ActorDied(self.where, death_of(end.cause))
            if channel is not None and slot:  # a call that has been answered ignores this
                self._replier.reply_failure(channel, slot, self.where, died)
            self._coroutines.refuse(died)
