"""Futures: the results of calls in flight."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from _thread import RLock
from collections.abc import Callable, Generator, Sequence
from threading import Condition
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from monarch_hpc.actor.running_loop import keep_awake, running_loop, warn_of_blocking
from monarch_hpc.core.arguments import check_seconds
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.signals import from_handler, may_be_signal
from monarch_hpc.core.text.description import trace_of
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine

if TYPE_CHECKING:
    import asyncio

__all__ = ["Future"]

T = TypeVar("T")

_RUNNING = "RUNNING"
_FINISHED = "FINISHED"
_CANCELLED = "CANCELLED_AND_NOTIFIED"
"""The states that `concurrent.futures.wait` and `as_completed` compare with."""

_state_lock = RLock()
"""Held for the few instructions in which a future changes state; shared by all, as a lock for each would cost more."""

_REBUILDING = object()
_MOMENT_S = 0.0005

_log = Logger(__name__)


def _running_task() -> asyncio.Task[object] | None:
    import asyncio

    return asyncio.current_task()


def _an_answer() -> str:
    return "the callee"


class Future(concurrent.futures.Future[T], Generic[T]):
    """One result: read it with `get()` from a thread or with `await` from a coroutine.

    A timed-out read leaves the future as it is; a stored exception is raised at every read. It is also a
    `concurrent.futures.Future`, and works with `wait`, `as_completed` and everything else that takes one.

    Args:
        waits_for: describes the callee, for the text of `TimeoutError`.
        give_up: called when the future is cancelled, to cancel the call; from any thread.
    """

    # Class attributes, not set in each instance: every call creates a future.
    _state = _RUNNING
    _value: Any = None
    _error: BaseException | None = None
    _raw: Any = None  # input of `_rebuild`; None once the value is rebuilt
    _callbacks: Sequence[Callable[[Future[T]], object]] = ()
    _recorder: Recorder | None = None
    _calls: Callable[[], tuple[int, int]]

    def __init__(
        self, engine: Engine, waits_for: Callable[[], str] = _an_answer, give_up: Callable[[], None] | None = None
    ) -> None:
        # The base's constructor is not called: its condition alone costs more than all of this. See `__getattr__`.
        self._engine = engine
        self._waits_for = waits_for
        if give_up is not None:
            self._give_up = give_up  # type: ignore[method-assign]  # an attribute here, like `_waits_for`; a method in subclasses

    def _give_up(self) -> None:
        """Cancel the call at the callee."""

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":
            return self.__dict__.setdefault(name, Condition(RLock()))
        if name == "_waiters":
            return self.__dict__.setdefault(name, [])
        if name in ("_result", "_exception") and self._state is _FINISHED:  # `asyncio.wrap_future` from Python 3.14 on
            error = self.exception()
            return error if name == "_exception" else self._value
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a future stays in its process: send its result, from get() or await")

    def __repr__(self) -> str:
        state = {_RUNNING: "waiting for", _FINISHED: "answered by", _CANCELLED: "cancelled, was waiting for"}
        return f"<Future {state[self._state]} {self._waits_for()}>"

    def watch(self, recorder: Recorder, calls: Callable[[], tuple[int, int]]) -> None:
        """Record waits for this future in *recorder*; *calls* returns the range of call numbers waited for."""
        self._recorder = recorder
        self._calls = calls

    # ---- reading ----

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value; the waiting thread drives the I/O itself.

        A running event loop of this thread is blocked meanwhile, with a warning at the first such read of each line;
        in a cell of a notebook without one. There, Ctrl-C ends the wait, and nothing else.

        Args:
            timeout: seconds; None waits until there is an answer, or the callee is known to be gone.

        Raises:
            TimeoutError: there was no answer in time; the future can be read again.
            TypeError: *timeout* is not a number.
            ValueError: *timeout* is too large.
            RuntimeError: called in a callback.
            asyncio.CancelledError: the task of this coroutine was cancelled meanwhile, as Ctrl-C does in `asyncio.run`.
            concurrent.futures.CancelledError: the future was cancelled.
            Exception: raised by the endpoint, or the reason why it cannot answer.
        """
        # Also if the future is done: whether a line is warned of must not depend on a race.
        warn_of_blocking()
        if timeout is not None:
            _check_timeout(timeout)
        if self._state is _RUNNING:
            self._wait(timeout)
        return self._read()

    def result(self, timeout: float | None = None) -> T:
        """Like `get`; without a warning if the future is done."""
        if timeout is not None:
            _check_timeout(timeout)
        if self._state is _RUNNING:
            return self.get(timeout)
        return self._read()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`; return the exception instead of raising it, or None if there is a value."""
        try:
            self.result(timeout)
        except BaseException as error:
            if error is self._error:
                return error
            raise
        return None

    def __await__(self) -> Generator[object, None, T]:
        import asyncio

        if not self.done():
            self._engine.check_works()
            self._check_may_wait()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def done(_future: Future[T]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the waiting coroutine gone
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(done)
            place = self._begin_wait()
            rest = keep_awake(loop)
            try:
                yield from waiter.__await__()
            except BaseException:
                self._abandon(done)
                raise
            finally:
                rest()
                self._end_wait(place)
        if self._state is _CANCELLED:
            raise asyncio.CancelledError
        return self._read()

    def as_asyncio(self) -> asyncio.Future[T]:
        """A future of the running event loop with the same outcome.

        Cancelling that future, as `asyncio.wait_for` does on timeout, does not cancel this one.
        """
        import asyncio

        return asyncio.ensure_future(self._awaited())

    async def _awaited(self) -> T:
        return await self

    def done(self) -> bool:
        """Whether a read returns or raises at once."""
        return self._state is not _RUNNING

    def running(self) -> bool:
        """Whether there is no outcome yet: a call is in flight from the start."""
        return self._state is _RUNNING

    def cancelled(self) -> bool:
        """Whether the future was cancelled before it was done."""
        return self._state is _CANCELLED

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call *callback* with this future when it is done; at once if it is done already.

        The callback may run on the thread that drives all I/O, so it must be short and must not wait for other futures.
        What it raises there is logged, `SystemExit` too.
        """
        with _state_lock:
            if self._state is _RUNNING:
                self._callbacks = (*self._callbacks, callback)
                return
        self._run(callback)

    # ---- ending ----

    def cancel(self) -> bool:
        """Cancel the future and its call; return whether the future is cancelled.

        At the callee, a call that has not begun does not run, and a coroutine is cancelled. A function runs to its end,
        and its answer is dropped. A future that is done stays as it is.
        """
        if self._end(_CANCELLED):
            self._give_up()
        return self._state is _CANCELLED

    def set_result(self, value: T) -> None:
        """Complete the future with *value*; for the code that created it. Only the first completion counts."""
        self._end(_FINISHED, value=value)

    def set_exception(self, error: BaseException | None) -> None:
        """Complete the future with *error*; otherwise like `set_result`."""
        self._end(_FINISHED, error=error, fails=error is not None)

    def set_resolver(self, resolve: Callable[[], T], *, fails: bool = False) -> None:
        """Complete the future with the outcome of *resolve*, which runs in the first thread that reads it.

        Unpickling runs user code, which must not run on the thread that drives the I/O.

        Args:
            fails: whether *resolve* will raise; needed for `concurrent.futures.FIRST_EXCEPTION`.
        """
        self._complete(resolve, fails)

    def _complete(self, raw: object, fails: bool) -> bool:
        """Complete the future with *raw*, from which `_rebuild` makes the value; False if it was complete already."""
        with _state_lock:
            if self._state is not _RUNNING:
                return False
            self._raw = raw
            self._state = _FINISHED
        self._engine.wake_waiters()
        self._notify(fails)
        return True

    def _end(
        self, state: str, *, value: T | None = None, error: BaseException | None = None, fails: bool = False
    ) -> bool:
        with _state_lock:
            if self._state is not _RUNNING:
                return False
            self._value, self._error = value, error
            self._state = state
        self._engine.wake_waiters()
        self._notify(fails)
        return True

    def _notify(self, fails: bool) -> None:
        """Run the callbacks and wake the waiters of `concurrent.futures`; once."""
        if "_condition" in self.__dict__:
            self._notify_waiters(fails)
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, ()
            for callback in callbacks:
                self._run(callback)

    def _notify_waiters(self, fails: bool) -> None:
        with self._condition:
            for waiter in self._waiters:
                if self._state is _CANCELLED:
                    waiter.add_cancelled(self)
                elif fails:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            self._condition.notify_all()

    def _run(self, callback: Callable[[Future[T]], object]) -> None:
        try:
            callback(self)
        except Exception as error:  # noqa: BLE001 user code; the other callbacks must be called too
            _log.error("a callback of %r failed:\n%s", self, trace_of(error))
        except BaseException as error:
            if not self._engine.driving:
                raise
            if from_handler(error):
                self._engine.defer(error)
            else:  # the thread that drives is not the callback's to end
                _log.error("a callback of %r failed:\n%s", self, trace_of(error))

    # ---- the parts of a read ----

    def _wait(self, timeout: float | None) -> None:
        self._check_may_wait()
        place = self._begin_wait()
        task = None if running_loop() is None else _running_task()
        try:
            if task is None:
                ended = self._engine.wait(self._has_ended, timeout)
            else:
                ended = self._wait_in(task, timeout)
        finally:
            self._end_wait(place)
        if not ended and self._state is _RUNNING:
            if self._engine.closed:
                raise RuntimeError("the connection to the allocation was closed while a call was in flight")
            raise TimeoutError(f"no answer in {timeout} s from {self._waits_for()}; the future can be read again")

    def _wait_in(self, task: asyncio.Task[object], timeout: float | None) -> bool:
        """Wait in *task*, until it is cancelled: by a signal handler, because its loop runs nothing meanwhile."""
        before = task.cancelling()

        def cancelled() -> bool:
            # Perhaps just before this read: then the task would learn of it only after it.
            return task.cancelling() > before or bool(getattr(task, "_must_cancel", False))

        ended = self._engine.wait(lambda: self._has_ended() or cancelled(), timeout)
        if self._state is _RUNNING and cancelled():
            from asyncio import CancelledError

            raise CancelledError
        return ended

    def _check_may_wait(self) -> None:
        if self._engine.driving:
            raise RuntimeError("a done-callback, or a __del__ inside one, must not wait for a future: add a callback")

    def _begin_wait(self) -> int:
        return -1 if self._recorder is None else self._recorder.wait(*self._calls())

    def _end_wait(self, place: int) -> None:
        if self._recorder is not None and place >= 0:
            self._recorder.waited(place)

    def _has_ended(self) -> bool:
        return self._state is not _RUNNING

    def _abandon(self, callback: Callable[[Future[T]], object]) -> None:
        """Remove *callback*: the coroutine that waited was cancelled."""
        with _state_lock:
            self._callbacks = tuple(kept for kept in self._callbacks if kept is not callback)

    def _read(self) -> T:
        if self._state is _CANCELLED:
            raise concurrent.futures.CancelledError
        while self._raw is not None:  # again, if another reader was interrupted at it
            self._settle()
        if self._error is not None:
            # Each reader gets a fresh traceback, without the frames of earlier readers.
            raise BaseException.with_traceback(self._error, None)  # unbound: the class may override it
        return cast("T", self._value)

    def _settle(self) -> None:
        raw = None
        try:
            with _state_lock:
                raw = self._raw
                if raw is not None:
                    self._raw = _REBUILDING
            if raw is _REBUILDING:  # another reader is at it, for a moment; a lock per future would cost more
                while self._raw is _REBUILDING:
                    time.sleep(_MOMENT_S)
            elif raw is not None:
                self._value = self._rebuild(raw)
                self._raw = None
        except BaseException as error:
            try:
                if issubclass(type(error), Exception) and not may_be_signal(error):  # remote, or of code that rebuilds
                    self._error, self._raw = error, None
                    return
            finally:
                # Such as Ctrl-C at any of these lines, or no memory for a look at the error: the next one retries.
                if self._raw is _REBUILDING and raw is not None and raw is not _REBUILDING:
                    self._raw = raw
            raise

    def _rebuild(self, raw: Callable[[], T]) -> T:
        """Return the value or raise the exception; runs once, on the first thread that reads."""
        return raw()


def _check_timeout(timeout: object) -> None:
    # The time left until a deadline may be negative: then the read does not wait.
    if not isinstance(timeout, (int, float)) or not timeout < 0:
        check_seconds("timeout", timeout, zero=True)
