"""The answer to a call that may not be there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Generic, TypeVar, cast

from monarch_hpc.transport.engine import Engine

__all__ = ["Future"]

T = TypeVar("T")


class Future(Generic[T]):
    """One result: read it with `get()` from a thread or with `await` from a coroutine.

    A timed-out `get` leaves the future as it is; a stored exception is raised at every read.
    """

    __slots__ = ("_callbacks", "_done", "_engine", "_error", "_resolve", "_value")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._resolve: Callable[[], T] | None = None
        self._callbacks: list[Callable[[Future[T]], None]] = []

    def done(self) -> bool:
        """Whether `get` would return or raise at once."""
        return self._done

    def get(self, timeout: float | None = None) -> T:
        """Wait for the value; the waiting thread drives the I/O itself.

        Args:
            timeout: seconds; None waits until the value comes or the other side is known to be gone.

        Raises:
            TimeoutError: nothing came in time; the future can be read again.
            RuntimeError: called where an event loop runs, which it would block.
            Exception: what the endpoint raised, or why it cannot answer.
        """
        if not self._done:
            if asyncio._get_running_loop() is not None:
                raise RuntimeError("get() would block the running event loop: write 'await future' instead")
            if not self._engine.wait(self.done, timeout) and not self._done:
                if self._engine.closed:
                    raise RuntimeError("the connection to the allocation was closed while a call was under way")
                raise TimeoutError(f"no answer in {timeout} s; the call goes on and can be read again")
        resolve = self._resolve
        if resolve is not None:
            try:
                self._value = resolve()
            except Exception as error:  # noqa: BLE001 what a remote rank raised, or user code that rebuilds values
                self._error = error
            self._resolve = None
        if self._error is not None:
            # Each reader gets its own traceback, not the one of those who read before.
            raise self._error.with_traceback(None)
        return cast(T, self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `get`; return the exception instead of raising it, None if there is a value."""
        try:
            self.get(timeout)
        except BaseException as error:
            if error is self._error:
                return error
            raise
        return None

    def __await__(self) -> Generator[object, None, T]:
        loop = asyncio.get_running_loop()
        if not self._done:
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def done(_future: Future[T]) -> None:
                loop.call_soon_threadsafe(wake)

            self.add_done_callback(done)
            yield from waiter.__await__()
        return self.get()

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call *callback* with this future when it is done, or now; it must be short."""
        self._callbacks.append(callback)
        if self._done:
            self._run_callbacks()

    def set_result(self, value: T) -> None:
        """Complete the future; for whoever made it. Only the first completion counts."""
        if not self._done:
            self._value = value
            self._complete()

    def set_resolver(self, resolve: Callable[[], T]) -> None:
        """Complete the future with what *resolve* returns or raises, in the thread that first reads it.

        User values are rebuilt by user code, which must not run where the I/O is driven.
        """
        if not self._done:
            self._resolve = resolve
            self._complete()

    def _complete(self) -> None:
        self._done = True
        self._engine.wake_waiters()
        if self._callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        # pop() is atomic, so that a callback added while these run is called exactly once.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            callback(self)
