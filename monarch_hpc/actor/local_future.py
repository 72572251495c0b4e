"""Futures completed within this process: by a coroutine, or by a thread."""

from __future__ import annotations

import contextvars
import functools
import inspect
from _thread import RLock, allocate_lock
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.running_loop import running_loop
from monarch_hpc.core.process.fork import Owned
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.engine.engine import Engine

if TYPE_CHECKING:
    import asyncio

__all__ = ["completed", "pending", "returns_future"]

P = ParamSpec("P")
T = TypeVar("T")


class _WaitingThreads(Owned):
    """Stands in for an engine: blocks and wakes threads, without any I/O to drive."""

    driving = False
    closed = False

    def __init__(self) -> None:
        self._changed = Condition(RLock())

    def check_works(self) -> None:
        """See `Engine.check_works`; this one cannot fail."""
        self.check_own()

    def wake_waiters(self) -> None:
        """Make all waiting threads check their conditions."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until *ready* returns True; False if it timed out."""
        with self._changed:
            return self._changed.wait_for(ready, timeout_s)


class _SharedCoroutine(Future[T], Generic[T]):
    """Runs a coroutine at the first read, and gives its outcome to all readers."""

    def __init__(self, body: Coroutine[Any, Any, T], context: contextvars.Context) -> None:
        super().__init__(cast(Engine, _WaitingThreads()), lambda: getattr(body, "__qualname__", "a coroutine"))
        self._body: Coroutine[Any, Any, T] | None = body
        self._context = context
        self._claiming = allocate_lock()
        self._task: asyncio.Task[T] | None = None

    def __del__(self) -> None:
        if (body := self.__dict__.get("_body")) is not None:
            body.close()  # never read: suppresses the 'never awaited' warning

    def _claim(self) -> Coroutine[Any, Any, T] | None:
        with self._claiming:
            body, self._body = self._body, None
        return body

    def _wait(self, timeout: float | None) -> None:
        body = self._claim()
        loop = running_loop()
        if body is None:
            if loop is not None and self._task is not None and self._task.get_loop() is loop:
                raise RuntimeError(f"{self._waits_for()} runs on the event loop that get() would block: await it")
            super()._wait(timeout)
        elif loop is None:
            self._perform(body, timeout)
        else:  # a loop cannot run inside of another one
            Thread(partial(self._perform, body, timeout))
            super()._wait(None)

    def _perform(self, body: Coroutine[Any, Any, T], timeout: float | None) -> None:
        import asyncio

        try:
            with asyncio.Runner() as runner:
                self.set_result(runner.run(asyncio.wait_for(body, timeout), context=self._context))
        except Exception as error:  # noqa: BLE001 raised by this and every later read
            self.set_exception(error)
        except BaseException:
            self.cancel()
            raise

    def __await__(self) -> Generator[object, None, T]:
        body = self._claim()
        if body is not None:
            from asyncio import get_running_loop

            self._task = get_running_loop().create_task(body, context=self._context)
            self._task.add_done_callback(self._take)
        return (yield from super().__await__())

    def _take(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.cancel()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


def returns_future(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Future[T]]:
    """Make an ``async def`` return a `Future`, for callers with and without an event loop.

    Calling it starts nothing. A first ``await`` runs the body on the awaiting loop, a first ``get()`` in the calling
    thread, or on another one if an event loop runs there; later readers get the same outcome. A ``get`` that times out
    cancels the body; cancelling an ``await`` does not.

    Raises:
        TypeError: *function* is not an ``async def``.
    """
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"returns_future takes an 'async def', not {function!r}")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return _SharedCoroutine(function(*args, **kwargs), contextvars.copy_context())

    return call


def completed(value: T) -> Future[T]:
    """Return a future that is already done."""
    future: Future[T] = pending("this process")
    future.set_result(value)
    return future


def pending(waits_for: str) -> Future[Any]:
    """Return a future for a thread of this process to complete."""
    return Future(cast(Engine, _WaitingThreads()), lambda: waits_for)
