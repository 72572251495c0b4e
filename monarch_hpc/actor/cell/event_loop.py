"""The event loop of a process, which runs the coroutines of all its actors."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine

from monarch_hpc.actor.cell.idle import Wait
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.description import trace_of

__all__ = ["EventLoop", "Running"]

_log = Logger(__name__)

_CLOSE_S = 1.0
"""Time that coroutines may take to end when the loop is closed; actors have waited for theirs before that."""


class Running:
    """A coroutine on the loop; *done* is called there when it has ended."""

    __slots__ = ("_done", "_loop", "_task", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[Running], None]) -> None:
        self._loop = loop
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self.over = False

    def begin(self, coroutine: Coroutine[object, object, None], context: contextvars.Context) -> None:
        """Make the coroutine a task; on the loop."""
        # Not `loop.create_task`: that calls a task factory, which users may set, and which may raise.
        self._task = asyncio.Task(coroutine, loop=self._loop, context=context)
        self._task.add_done_callback(self._finish)

    def _finish(self, _task: asyncio.Task[None]) -> None:
        self.over = True
        self._done(self)

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine; from any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # After its first step: a task that is cancelled before that never runs, and would never answer its caller.
        if self._task is not None:
            self._loop.call_soon(self._task.cancel)


class EventLoop:
    """An asyncio loop on a dedicated thread, which the first coroutine starts.

    Args:
        exit_process: ends the process when a task raises SystemExit.
    """

    def __init__(self, exit_process: Callable[[SystemExit], None]) -> None:
        self._exit_process = exit_process
        self._closing = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, coroutine: Coroutine[object, object, None], done: Callable[[Running], None]) -> Running:
        """Run *coroutine*, which must not raise, in a copy of the calling thread's context."""
        loop = self._loop or self._open()
        running = Running(loop, done)
        loop.call_soon_threadsafe(running.begin, coroutine, contextvars.copy_context())
        return running

    def call(self, function: Callable[[], object], wait: Wait, wake: Callable[[], None]) -> object:
        """Call *function* on the loop; return its result, awaited if it is awaitable.

        Args:
            wait, wake: how the calling thread waits, see `actor.cell.idle`.

        Raises:
            RuntimeError: the process is ending.
            BaseException: what *function* raises.
        """
        outcome: list[object] = []
        raised: list[BaseException] = []

        async def perform() -> None:
            try:
                value = function()
                outcome.append(await value if inspect.isawaitable(value) else value)
            except BaseException as error:  # noqa: BLE001 raised again in the calling thread
                raised.append(error)

        running = self.start(perform(), lambda _running: wake())
        wait(lambda: running.over, None)
        if raised:
            raise raised[0]
        if not outcome:
            raise RuntimeError("the process is ending")
        return outcome[0]

    def _open(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(loop,), name="monarch-asyncio", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        # A user's task can stop the loop of all actors: by `loop.stop()`, or by what asyncio does not catch.
        while not self._closing:
            try:
                loop.run_forever()
            except SystemExit as leaving:
                self._exit_process(leaving)
            except BaseException as error:  # noqa: BLE001 also raised where the task is awaited
                _log.error("a task on the event loop of the actors failed:\n%s", trace_of(error))

    def close(self) -> None:
        """End the loop and its thread; from any other thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end_all(), loop)
        thread.join(2 * _CLOSE_S)
        if not thread.is_alive():
            loop.close()

    async def _end_all(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        await loop.shutdown_asyncgens()
        self._closing = True
        loop.stop()
