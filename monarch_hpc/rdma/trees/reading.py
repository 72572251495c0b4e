"""The future of something that takes several transfers, one after the other, done in a thread of its own."""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Reading"]

T = TypeVar("T")
S = TypeVar("S")

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02
"""Pauses between two looks at the owner's marks: from a round trip on, to one that costs the owner nothing."""


class Reading(Future[T]):
    """Done when *work* has returned; it fails with what that raises. Then nothing touches local memory any more.

    Args:
        what: describes it, in errors.
        timeout_s: time limit in seconds for all of it; None for none.
        work: gets this object, whose `wait` and `pause` it uses.
    """

    def __init__(self, engine: Engine, what: str, timeout_s: float | None, work: Callable[[Reading[T]], T]) -> None:
        super().__init__(engine, lambda: what)
        self._what = what
        self._timeout_s = timeout_s
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._work = work
        self._current: concurrent.futures.Future[Any] | None = None
        self._unwanted = threading.Event()
        self._pause_s = _FIRST_PAUSE_S
        run = contextvars.copy_context().run
        Thread(partial(run, self._perform))

    def _perform(self) -> None:
        try:
            result = self._work(self)
        except (concurrent.futures.CancelledError, Exception) as error:  # noqa: BLE001 raised by the future
            if self._unwanted.is_set():
                super().cancel()
            elif isinstance(error, TimeoutError):
                self.set_exception(TimeoutError(f"not done after {self._timeout_s:g} s: {self._what}"))
            else:
                self.set_exception(error)
        else:
            self.set_result(result)
        finally:
            del self._work  # and with it the memory that was read into

    def wait(self, begin: Callable[[float | None], Future[S]]) -> S:
        """The result of the future that *begin* returns for the time that is left; in the thread.

        Raises:
            TimeoutError, CancelledError: no time is left, or the result is not wanted any more.
            Exception: what the future fails with.
        """
        future = begin(self._left())
        self._current = future
        if self._unwanted.is_set():
            future.cancel()
        return future.get()

    def pause(self) -> None:
        """Wait a moment for the owner, longer each time; in the thread.

        Raises:
            TimeoutError, CancelledError: as `wait`.
        """
        self._left()
        if self._unwanted.wait(self._pause_s):
            raise concurrent.futures.CancelledError
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _left(self) -> float | None:
        if self._until_s is None:
            return None
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def cancel(self) -> bool:
        """Stop it; return whether it has been cancelled already. If not, it ends as soon as it can be stopped."""
        if not self.done():
            self._unwanted.set()
            current = self._current
            if current is not None:
                current.cancel()
        return self.cancelled()
