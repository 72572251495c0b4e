"""The answer to a call that may not be there yet."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast

from monarch_hpc.core.arguments import check_seconds
from monarch_hpc.core.description import trace_of
from monarch_hpc.core.logger import Logger
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Future"]

T = TypeVar("T")

_RUNNING = "RUNNING"
_FINISHED = "FINISHED"
_CANCELLED = "CANCELLED_AND_NOTIFIED"
"""The words that `concurrent.futures.wait` and `as_completed` look for."""

_state_lock = _thread.allocate_lock()
"""Held for the few instructions in which any future changes its state: a lock for each would cost more."""

_REBUILDING = object()
_MOMENT_S = 0.0005

_log = Logger(__name__)


def _an_answer() -> str:
    return "whoever was asked"


class Future(concurrent.futures.Future[T], Generic[T]):
    """One result: read it with `get()` from a thread or with `await` from a coroutine.

    A timed-out read leaves the future as it is; a stored exception is raised at every read. It is a
    `concurrent.futures.Future` as well, for `wait`, `as_completed` and whatever else takes one.

    Args:
        waits_for: whose answer is missing, in words, for who waited too long.
        give_up: tells whoever was asked that the future was cancelled; from any thread.
    """

    # Here, and not in each of them: a future is made with every call.
    _state = _RUNNING
    _value: T | None = None
    _error: BaseException | None = None
    _raw: Any = None  # what `_rebuild` makes the value of; None when that is done
    _callbacks: Sequence[Callable[[Future[T]], object]] = ()
    _recorder: Recorder | None = None
    _calls: Callable[[], tuple[int, int]]

    def __init__(
        self, engine: Engine, waits_for: Callable[[], str] = _an_answer, give_up: Callable[[], None] | None = None
    ) -> None:
        # Not the base's constructor: its condition alone costs more than all of this. See `__getattr__`.
        self._engine = engine
        self._waits_for = waits_for
        if give_up is not None:
            self._give_up = give_up  # type: ignore[method-assign]  # as `waits_for`, which subclasses have as a method

    def _give_up(self) -> None:
        """Tell whoever was asked that nobody waits any more."""

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":
            return self.__dict__.setdefault(name, threading.Condition())
        if name == "_waiters":
            return self.__dict__.setdefault(name, [])
        if name in ("_result", "_exception") and self._state is _FINISHED:  # `asyncio.wrap_future` from Python 3.14 on
            error = self.exception()
            return error if name == "_exception" else self._value
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        state = {_RUNNING: "waiting for", _FINISHED: "answered by", _CANCELLED: "cancelled, was waiting for"}
        return f"<Future {state[self._state]} {self._waits_for()}>"

    def watch(self, recorder: Recorder, calls: Callable[[], tuple[int, int]]) -> None:
        """Let *recorder* know of those who wait for this future: its `wait` is given what *calls* returns."""
        self._recorder = recorder
        self._calls = calls

    # ---- reading ----

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value; the waiting thread drives the I/O itself.

        Args:
            timeout: seconds; None waits until the value comes or the other side is known to be gone.

        Raises:
            TimeoutError: nothing came in time; the future can be read again.
            TypeError: *timeout* is not a number; ValueError for one that is too large.
            RuntimeError: called where an event loop runs, which it would block, or in a callback.
            concurrent.futures.CancelledError: it was cancelled.
            Exception: what the endpoint raised, or why it cannot answer.
        """
        # Also where it would not block, this time: whether it does must not depend on who is faster.
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("get() would block the running event loop: write 'await future' instead")
        if timeout is not None:
            _check_timeout(timeout)
        if self._state is _RUNNING:
            self._wait(timeout)
        return self._read()

    def result(self, timeout: float | None = None) -> T:
        """Like `get`; where an event loop runs it may be called once the future is done."""
        if timeout is not None:
            _check_timeout(timeout)
        if self._state is _RUNNING:
            return self.get(timeout)
        return self._read()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`; return the exception instead of raising it, None if there is a value."""
        try:
            self.result(timeout)
        except BaseException as error:
            if error is self._error:
                return error
            raise
        return None

    def __await__(self) -> Generator[object, None, T]:
        if not self.done():
            self._engine.check_own()
            self._check_may_wait()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def done(_future: Future[T]) -> None:
                with contextlib.suppress(RuntimeError):  # the loop was closed, and whoever waited there is gone
                    loop.call_soon_threadsafe(wake)

            self.add_done_callback(done)
            place = self._begin_wait()
            try:
                yield from waiter.__await__()
            except BaseException:
                self._abandon(done)
                raise
            finally:
                self._end_wait(place)
        if self._state is _CANCELLED:
            raise asyncio.CancelledError
        return self._read()

    def as_asyncio(self) -> asyncio.Future[T]:
        """A future of the running event loop with the same outcome.

        Cancelling it, as `asyncio.wait_for` does when its time is over, leaves this one as it is.
        """
        return asyncio.ensure_future(self._awaited())

    async def _awaited(self) -> T:
        return await self

    def done(self) -> bool:
        """Whether a read would return or raise at once."""
        return self._state is not _RUNNING

    def running(self) -> bool:
        """Whether there is no outcome yet: calls are under way from the start."""
        return self._state is _RUNNING

    def cancelled(self) -> bool:
        """Whether `cancel` came first."""
        return self._state is _CANCELLED

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call *callback* with this future when it is done, or now.

        It runs on the thread that drives all I/O, so it must be short, and must not wait for others.
        """
        with _state_lock:
            if self._state is _RUNNING:
                self._callbacks = (*self._callbacks, callback)
                return
        self._run(callback)

    # ---- ending ----

    def cancel(self) -> bool:
        """Give up the answer; return whether there is none.

        Whoever was asked is told: a call that has not begun does not run, and a coroutine is cancelled. A function
        goes on; what it answers is dropped. A future that is done stays as it is.
        """
        if self._end(_CANCELLED):
            self._give_up()
        return self._state is _CANCELLED

    def set_result(self, value: T) -> None:
        """Complete the future; for whoever made it. Only the first completion counts."""
        self._end(_FINISHED, value=value)

    def set_exception(self, error: BaseException | None) -> None:
        """Complete the future with *error*; otherwise as `set_result`."""
        self._end(_FINISHED, error=error, fails=error is not None)

    def set_resolver(self, resolve: Callable[[], T], *, fails: bool = False) -> None:
        """Complete the future with what *resolve* returns or raises, in the thread that first reads it.

        User values are rebuilt by user code, which must not run where the I/O is driven.

        Args:
            fails: *resolve* will raise, for who waits for a first failure.
        """
        self._complete(resolve, fails)

    def _complete(self, raw: object, fails: bool) -> bool:
        """Complete the future with what `_rebuild` will make of *raw*; False if it was complete."""
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
        """Tell those who did not wait in `get`; once."""
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
            self._engine.defer(error)

    # ---- the parts of a read ----

    def _wait(self, timeout: float | None) -> None:
        self._check_may_wait()
        place = self._begin_wait()
        try:
            ended = self._engine.wait(self._has_ended, timeout)
        finally:
            self._end_wait(place)
        if not ended and self._state is _RUNNING:
            if self._engine.closed:
                raise RuntimeError("the connection to the allocation was closed while a call was under way")
            raise TimeoutError(f"no answer in {timeout} s from {self._waits_for()}; the future can be read again")

    def _check_may_wait(self) -> None:
        if self._engine.driving:
            raise RuntimeError("a done-callback must not wait for a future: add a callback to that one")

    def _begin_wait(self) -> int:
        return -1 if self._recorder is None else self._recorder.wait(*self._calls())

    def _end_wait(self, place: int) -> None:
        if self._recorder is not None and place >= 0:
            self._recorder.waited(place)

    def _has_ended(self) -> bool:
        return self._state is not _RUNNING

    def _abandon(self, callback: Callable[[Future[T]], object]) -> None:
        """Forget *callback*: the coroutine that waited was cancelled."""
        with _state_lock:
            self._callbacks = tuple(kept for kept in self._callbacks if kept is not callback)

    def _read(self) -> T:
        if self._state is _CANCELLED:
            raise concurrent.futures.CancelledError
        if self._raw is not None:
            self._settle()
        if self._error is not None:
            # Each reader gets its own traceback, not the one of those who read before.
            raise BaseException.with_traceback(self._error, None)  # of its class it may be anything
        return cast(T, self._value)

    def _settle(self) -> None:
        raw = None
        try:
            with _state_lock:
                raw = self._raw
                if raw is not None:
                    self._raw = _REBUILDING
            if raw is _REBUILDING:  # by another reader, in a moment; a lock for each future would cost more than it all
                while self._raw is _REBUILDING:
                    time.sleep(_MOMENT_S)
            elif raw is not None:
                self._value = self._rebuild(raw)
                self._raw = None
        except Exception as error:  # noqa: BLE001 what a remote rank raised, or user code that rebuilds values
            self._error = error
            self._raw = None
        except BaseException:  # of this thread's own, Ctrl-C at any of these lines too: the next reader tries again
            if raw is not None and raw is not _REBUILDING:
                self._raw = raw
            raise

    def _rebuild(self, raw: Any) -> T:
        """The value, or the exception raised; on the thread that reads first, once."""
        value: T = raw()
        return value


def _check_timeout(timeout: object) -> None:
    # What is left until a deadline may be less than nothing: then nothing is waited for.
    if not isinstance(timeout, (int, float)) or not timeout < 0:
        check_seconds("timeout", timeout, zero=True)
