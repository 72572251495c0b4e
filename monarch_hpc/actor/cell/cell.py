"""One actor in its proc: the thread, the mailbox, the object."""

from __future__ import annotations

import inspect
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from monarch_hpc.actor.cell.cancellation import LIMITED, Cancellations, Mail
from monarch_hpc.actor.cell.endpoint_table import EndpointEntry, EndpointTable, place_of
from monarch_hpc.actor.cell.event_loop import Running
from monarch_hpc.actor.cell.exit import exit_process
from monarch_hpc.actor.cell.idle import idle_wait
from monarch_hpc.actor.cell.invocation import Invocation
from monarch_hpc.actor.cell.process import CellProcess
from monarch_hpc.actor.cell.recording import CellRecorder
from monarch_hpc.actor.cell.replies import ActorReplies
from monarch_hpc.actor.context import Context, ProcInfo, set_caller, set_context
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import unpack_call, unpack_spawn
from monarch_hpc.core.errors import ActorDied, CallTimeout
from monarch_hpc.core.text.description import summary_of, trace_of, traceback_of
from monarch_hpc.telemetry.pen import Handling
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

__all__ = ["CLEANUP_S", "Cell"]

CLEANUP_S = 3.0
"""Time that cancelled endpoints and `__cleanup__` may take; less than `procs.stop_s`, after which procs are killed."""

# Stand in for the cost of a call, which is always positive.
_STOP = 0  # the actor ends here, after all earlier messages
_FAULT = -1  # handle the next entry of `_faults`
_END = -2  # the actor ends at once
_NOTHING = Frame(Kind.STOP)

_now = time.monotonic_ns

_Begun = Callable[[], object]
"""Returns the coroutine of a function that has been called already."""


class Cell:
    """Runs one actor on a dedicated thread: the constructor first, then its messages, one at a time.

    Coroutines run on the process's event loop. If all endpoints of a class are coroutines, its constructor and hooks
    run there too. In a proc the idle thread waits in the engine, and thereby drives the I/O: a call to an idle actor
    runs on the thread that read it from the socket.
    """

    def __init__(self, process: CellProcess, info: ProcInfo, channel: MessageLink, spawn: Frame) -> None:
        self.engine = process.engine
        # Class and arguments stay packed: unpacking them runs user code, which may fail, on the actor's thread.
        self._name, region, self._made = unpack_spawn(spawn)
        self._place = place_of(info, region)
        self.where = f"actor {self._name}{self._place} on {info.host or 'this host'}"
        self._process = process
        self._info = info
        self._replier = process.replier
        self._replies = ActorReplies(process.engine, process.replier, self.where, self._fail_after_call)
        self._channel = channel
        self._spawn = spawn
        self._actor = spawn.dest
        self._owner = spawn.reply
        self._mailbox: deque[Mail] = deque()
        self._cancellations = Cancellations(self._mailbox, process.engine.clock, self._refuse)
        self._faults: deque[tuple[MeshFailure, bool]] = deque()
        self._on_loop = False  # constructor and hooks run on the loop too
        self._busy = False  # in code that cannot be cancelled
        self._records = CellRecorder(process.recorder)
        self._entries = EndpointTable(self._records)
        self._running: set[Running] = set()
        self._failure: tuple[str, BaseException] | None = None  # the cause of a failure that ends the actor
        self._end_cause = ""  # why the actor has ended; empty before
        self._context: Context | None = None  # of the actor's thread
        self._wait, self._wake = idle_wait(process.engine, drives=process.drives)
        self._thread = threading.Thread(target=self._run, name=f"actor {self._name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no threads left, or memory is short
            self._thread_failed(error)

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
        """Stop the actor after all queued messages; answer once it has ended."""
        self._put((frame.reply, channel, frame, _STOP, 0))

    def supervise(self, failure: MeshFailure, *, reported: bool) -> None:
        """Queue the failure of something that this actor spawned, ahead of all messages.

        Args:
            reported: whether a call of this process already reports the failure.
        """
        self._faults.append((failure, reported))
        self._put_first(_FAULT)

    def end(self) -> None:
        """End the actor at once: running coroutines are cancelled, queued messages refused."""
        self._replies.ending = True
        self._put_first(_END)

    def kill(self, reason: str) -> None:
        """Make the actor fail after the message that it currently handles; the failure is reported to its owner."""
        if self._failure is None:
            self._failure = f"it was killed: {reason}", RuntimeError(reason)
            self._put_first(_END)

    @property
    def ending(self) -> bool:
        """Whether the actor ends or has ended."""
        return self._replies.ending

    @property
    def ended(self) -> bool:
        """Whether the actor has ended and cleaned up."""
        return bool(self._end_cause)

    @property
    def abandonable(self) -> bool:
        """Whether shutdown need not wait: the actor runs code that cannot be cancelled, and has nothing to clean up."""
        hook = inspect.getattr_static(self._entries.target, "__cleanup__", None)
        return self._busy and hook is None and not self._entries.resources

    def _put(self, mail: Mail) -> None:
        self._mailbox.append(mail)
        # In this order: an ending actor sets `_end_cause` first and then empties its mailbox.
        if self._end_cause:
            self._refuse_all()
        else:
            self._wake()

    def _put_first(self, mark: int) -> None:
        self._mailbox.appendleft((0, None, _NOTHING, mark, 0))
        self._wake()

    # ---- the actor's thread ----

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 the last line of defence: no caller may wait for a dead thread
            self._thread_failed(error)

    def _serve(self) -> None:
        self._construct()
        mailbox = self._mailbox
        while not self._end_cause:
            if not mailbox and not self._wait(lambda: bool(mailbox), None):
                return  # the process ends
            try:
                _, channel, frame, cost, arrived_ns = mailbox.popleft()
            except IndexError:  # another thread removed a cancelled call meanwhile
                continue
            if cost > 0:
                assert channel is not None
                over = True
                try:
                    over = self._handle(channel, frame, cost, arrived_ns)
                finally:
                    frame = _NOTHING  # free the payload before its sender gets credit for more
                    if over:
                        channel.consumed(self._actor, cost)
            elif cost == _FAULT:
                self._supervise(*self._faults.popleft())
            else:
                self._finish("it was stopped")
                if cost == _STOP and channel is not None and frame.reply:
                    self._replier.reply(channel, frame.reply, None)
            if self._failure is not None and not self._end_cause:
                self._finish(*self._failure)

    def _construct(self) -> None:
        try:
            self._try_construct()
        except SystemExit as leaving:
            exit_process(leaving)
        except BaseException as error:  # noqa: BLE001 user code; reported to owner and callers
            print_error(trace_of(error))
            self._finish(f"its constructor raised {summary_of(error)}", error)

    def _try_construct(self) -> None:
        made: Any = loads(self._made, self._spawn.buffers)
        cls, args, kwargs = made
        base = self._entries.begin(self._name, cls, self._place, self._info, self._actor)
        self._enter(base)
        set_caller(self._cancellations)
        methods = self._entries.endpoints.values()
        self._on_loop = bool(methods) and all(method.is_async for method in methods)
        self._entries.target = self._call(cls, *args, **kwargs)
        self._records.ready()
        self._made, self._spawn = b"", _NOTHING  # drop the packed arguments

    def _enter(self, context: Context) -> None:
        self._context = context
        set_context(context)

    def _handle(self, channel: MessageLink, frame: Frame, cost: int, arrived_ns: int) -> bool:
        """Run one call; False if it continues as a coroutine, whose end answers it and returns its credit."""
        method = ""
        cancellations, slot = self._cancellations, frame.reply
        cancellations.channel = channel
        cancellations.slot = slot
        if (cancellations.keys or slot >= LIMITED) and cancellations.refuses(channel, slot):
            return True
        handling = self._records.handling
        try:
            head, args, kwargs = unpack_call(frame)
            entry = self._entries[head]
            method = entry.method
            if entry.context is not self._context:
                self._enter(entry.context)
            if entry.plain is None:
                handling = self._records.begin_concurrent(channel, entry.name, slot, len(frame.body), arrived_ns)
                return self._start(channel, frame, cost, entry, args, kwargs, handling)
            handling.begin(entry.name, channel.mark or self._records.peer(channel), slot, len(frame.body), arrived_ns)
            self._busy = True
            value = entry.plain(*args, **kwargs)
            if type(value) is CoroutineType:  # a `def` that wraps an `async def`
                self._busy = False
                self._records.detach()
                return self._start(channel, frame, cost, entry, (), {}, handling, lambda: value)
        except SystemExit as leaving:
            exit_process(leaving)
        except BaseException as error:  # noqa: BLE001 user code; reported to the caller
            self._replies.fail(channel, slot, method, error, handling)
        else:
            if slot:
                self._replier.reply(channel, slot, value, self.where, method, handling)
            else:
                handling.end(0)
        self._busy = False
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
        function = begun or endpoint.__get__(self._entries.target, type(self._entries.target))
        cancellations = self._cancellations
        invocation = Invocation(self._replies, channel, slot, endpoint, cancellations.due(channel, slot), handling)
        if begun is None and not endpoint.is_async:
            self._busy = True
            invocation.call(function, args, kwargs)
            self._busy = False
            self._records.finish(handling)
            cancellations.over(channel, slot)
            return True

        def done(running: Running) -> None:
            self._running.discard(running)
            self._records.finish(handling)
            cancellations.over(channel, slot)
            channel.consumed(self._actor, cost)
            self._wake()

        running = invocation.running = self._process.loop.start(invocation.perform(function, args, kwargs), done)
        self._running.add(running)
        if slot:
            cancellations.runs(channel, slot, invocation)
        if running.over:
            self._running.discard(running)
            cancellations.over(channel, slot)
        if not endpoint.concurrent:
            self._wait(lambda: running.over or self._replies.ending, None)
        return False

    def _refuse(self, channel: MessageLink, slot: int, cost: int, limit_s: float) -> None:
        if cost:
            channel.consumed(self._actor, cost)
        self._replier.reply_failure(channel, slot, self.where, CallTimeout(self.where, (), limit_s))

    def _fail_after_call(self, cause: str, error: BaseException) -> None:
        if self._failure is None:
            self._failure = cause, error
            if threading.current_thread() is not self._thread:
                self._put_first(_END)

    def _call(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        """Call the constructor or a hook, on the event loop if this actor runs there."""
        if self._on_loop or inspect.iscoroutinefunction(function):
            return self._process.loop.call(lambda: function(*args, **kwargs), self._wait, self._wake)
        return function(*args, **kwargs)

    # ---- failures and the end ----

    def _supervise(self, failure: MeshFailure, reported: bool) -> None:
        assert self._entries.base_context is not None
        self._enter(self._entries.base_context)
        try:
            hook = getattr(self._entries.target, "__supervise__", None)
            handled = reported if hook is None else bool(self._call(hook, failure))
        except SystemExit as leaving:
            exit_process(leaving)
        except BaseException as error:  # noqa: BLE001 user code; reported to the next owner
            cause = f"its __supervise__ raised {summary_of(error)}, when called with the failure: {failure}"
            self._failure = cause, error
        else:
            if not handled:
                self._failure = f"it did not handle the failure: {failure}", RuntimeError(failure.report())

    def _finish(self, cause: str, error: BaseException | None = None) -> None:
        if self._failure is not None:
            cause, error = self._failure
        trace = "" if error is None else trace_of(error)
        if error is not None:
            failure = MeshFailure(self._name, self._place.rank, self.where, cause, trace)
            self._replier.report(self._channel, self._owner, self._actor, failure)
        self._replies.ending = True
        for running in list(self._running):
            running.cancel()
        self._wait(lambda: not self._running, CLEANUP_S)
        self._clean_up(error)
        self._entries.close_resources(self.where)
        self._process.stop_owned(self._actor)
        self._entries.close()
        self._failure = None
        if error is not None:
            traceback.clear_frames(traceback_of(error))  # its frames hold the object
        self._end_cause = f"{cause}\n{trace}".rstrip()
        self._records.ended(cause, failed=error is not None)
        self._process.forget(self._actor, self.where, self._end_cause)
        self._refuse_all()
        self.engine.wake_waiters()

    def _thread_failed(self, error: BaseException) -> None:
        print_error(f"{self.where} cannot go on:\n{trace_of(error)}")
        channel, slot = self._cancellations.channel, self._cancellations.slot
        try:
            if not self._end_cause:
                self._finish(f"its thread failed: {summary_of(error)}", error)
        finally:
            self._end_cause = self._end_cause or "its thread failed"
            self._refuse_all()
            if channel is not None and slot:  # a call that has been answered ignores this
                self._replier.reply_failure(channel, slot, self.where, ActorDied(self.where, self._end_cause))

    def _clean_up(self, error: BaseException | None) -> None:
        if self._entries.base_context is None or self._entries.target is None:
            return
        self._enter(self._entries.base_context)
        try:
            hook = getattr(self._entries.target, "__cleanup__", None)
            if hook is not None:
                self._call(hook, error)
        except BaseException as another:  # noqa: BLE001 user code; the actor ends all the same
            print_error(f"{self.where}: its __cleanup__ failed:\n{trace_of(another)}")

    def _refuse_all(self) -> None:
        while True:
            try:
                slot, channel, _, cost, _ = self._mailbox.popleft()
            except IndexError:
                return
            if channel is None:
                continue
            if cost > 0:
                channel.consumed(self._actor, cost)
                if slot:
                    self._cancellations.over(channel, slot)
                    self._replier.reply_failure(channel, slot, self.where, ActorDied(self.where, self._end_cause))
            elif slot:
                self._replier.reply(channel, slot, None)
