"""The event loop of one actor, which runs on the actor's thread and needs neither a thread nor descriptors to wait."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import selectors
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from monarch_hpc.core.clock import monotonic
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["ActorLoop", "Running", "Wait"]

Wait = Callable[[Callable[[], bool], float | None], bool]
"""Waits until a condition holds, at most so many seconds; False if it timed out or the engine is closed."""

_STEPS = ("TaskStepMethWrapper", "TaskWakeupMethWrapper")
"""Types of the callbacks by which asyncio's C code runs tasks; no coroutine's exception passes through them."""

_CLOSE_S = 1.0
"""Time that tasks may take to end when the loop is closed; calls have had theirs before that."""


class Running:
    """A coroutine on the loop; *done* is called there when it has ended."""

    __slots__ = ("_done", "_loop", "_task", "over")

    def __init__(
        self, loop: ActorLoop, coroutine: Coroutine[object, object, None], done: Callable[[Running], None]
    ) -> None:
        self._loop = loop
        self._done = done
        self.over = False
        # Not `loop.create_task`: that calls a task factory, which users may set, and which may raise.
        self._task = asyncio.Task(coroutine, loop=loop, context=contextvars.copy_context())
        self._task.add_done_callback(self._finish)

    def _finish(self, _task: asyncio.Task[None]) -> None:
        self.over = True
        self._done(self)

    def cancel(self) -> None:
        """Raise CancelledError in the coroutine; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the coroutine ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # After its first step: a task that is cancelled before that never runs, and would never answer its caller.
        self._loop.call_soon(self._task.cancel)


class _Files(selectors.BaseSelector):
    """The descriptors that a loop watches, in an epoll of its own from the first one on.

    The engine watches that epoll while the loop does not run.

    Attributes:
        ready: whether a descriptor may be ready.
    """

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._wake = wake
        self._inner: selectors.EpollSelector | None = None
        self.ready = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.register`."""
        if self._inner is None:
            self._inner = selectors.EpollSelector()
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.unregister`."""
        if self._inner is None:
            raise KeyError(fileobj)
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.modify`."""
        if self._inner is None:
            raise KeyError(fileobj)
        return self._inner.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The descriptors that are ready; does not wait, because the loop has been stopped before each round."""
        self.ready = False
        return [] if self._inner is None else self._inner.select(0)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """See `selectors.BaseSelector.get_map`."""
        return {} if self._inner is None else self._inner.get_map()

    def watch(self) -> None:
        """Let the engine wake the loop when a descriptor becomes ready."""
        inner = self._inner
        if inner is not None and inner.get_map() and not self._engine.closed:
            self._engine.watch(inner.fileno(), self._on_ready)

    def _on_ready(self, _mask: int) -> None:
        if self._inner is not None:
            self._engine.unwatch(self._inner.fileno())  # it stays readable until the loop has run
        self.ready = True
        self._wake()

    def close(self) -> None:
        """See `selectors.BaseSelector.close`."""
        inner, self._inner = self._inner, None
        if inner is not None:
            self._engine.unwatch(inner.fileno())
            inner.close()


class ActorLoop(asyncio.SelectorEventLoop):
    """A loop that runs in rounds, on whichever thread the actor has.

    asyncio's own loop waits in a descriptor of its own, and has a pair of sockets for other threads to wake it: three
    descriptors, and a process may often open no more than 1024. This one leaves the waiting to the engine.

    Args:
        wake: makes the actor's thread run a round; called from any thread.

    Attributes:
        broken: why a task will never go on: user code has replaced what asyncio schedules it by.
    """

    # Names that asyncio does not document, the same ones from Python 3.4 to 3.14.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _asyncgens: weakref.WeakSet[object]

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self.broken: BaseException | None = None
        self._rouse = wake
        self._files = _Files(engine, wake)
        super().__init__(self._files)

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._rouse()

    def begin(self, coroutine: Coroutine[object, object, None], done: Callable[[Running], None]) -> Running:
        """Run *coroutine*, in a copy of the current context variables; *done* is called when it has ended."""
        return Running(self, coroutine, done)

    def time(self) -> float:
        """Seconds of the monotonic clock; asyncio looks `time.monotonic` up, which tests replace by one that stands."""
        return monotonic()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error, and note that of a task's own step: its coroutine has not seen it, and nothing wakes it."""
        callback = getattr(context.get("handle"), "_callback", None)
        if type(callback).__name__ in _STEPS or isinstance(getattr(callback, "__self__", None), asyncio.Future):
            self.broken = context.get("exception")
        super().call_exception_handler(context)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: object) -> None:
        """Refuse, as loops do that take no signals; libraries that ask for them go on without.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the loop of an actor takes no signals: its process belongs to all of its actors")

    def due(self) -> bool:
        """Whether a round has something to do."""
        if self._ready or self._files.ready:
            return True
        scheduled = self._scheduled
        return bool(scheduled) and scheduled[0].when() <= self.time()

    def next_s(self) -> float | None:
        """Seconds until a timer is due; None if there is none."""
        try:
            return max(self._scheduled[0].when() - self.time(), 0.0)
        except IndexError:
            return None

    def step(self) -> None:
        """Run one round; raises the SystemExit or KeyboardInterrupt of a task."""
        if self.is_closed():  # by user code
            self._ready.clear()
            self._scheduled.clear()
            return
        self.stop()  # after this round
        try:
            self.run_forever()
        finally:
            self._files.watch()

    def complete(self, function: Callable[[], object], wait: Wait) -> object:
        """Call *function* on the loop; return its result, awaited if it is awaitable.

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
            except BaseException as error:  # noqa: BLE001 raised again below
                raised.append(error)

        running = Running(self, perform(), lambda _running: None)
        self.run_until(lambda: running.over, wait, None)
        if raised:
            raise raised[0]
        if not outcome:
            raise RuntimeError("the process is ending")
        return outcome[0]

    def run_until(self, over: Callable[[], bool], wait: Wait, timeout_s: float | None) -> bool:
        """Run rounds until *over*; False if it took longer than *timeout_s*, or the engine is closed."""
        end_s = None if timeout_s is None else self.time() + timeout_s
        while not over():
            if self.due():
                self.step()
                continue
            left_s = None if end_s is None else end_s - self.time()
            if left_s is not None and left_s <= 0:
                return False
            next_s = self.next_s()
            limits_s = [limit_s for limit_s in (left_s, next_s) if limit_s is not None]
            if not wait(self.due, min(limits_s, default=None)) and not limits_s:
                return False  # the engine is closed
        return True

    def end(self, wait: Wait) -> None:
        """Cancel all tasks, and close the loop."""
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        self.run_until(lambda: all(task.done() for task in tasks), wait, _CLOSE_S)
        if self._asyncgens:
            closing = Running(self, self.shutdown_asyncgens(), lambda _running: None)
            self.run_until(lambda: closing.over, wait, _CLOSE_S)
        self.close()
