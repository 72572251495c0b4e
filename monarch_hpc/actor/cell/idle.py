"""Waiting for an actor's idle thread: inside the engine, driving it, or outside."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.wakeup import Sleeper

__all__ = ["Wait", "idle_wait"]


Wait = Callable[[Callable[[], bool], float | None], bool]
"""Waits until a condition holds, at most so many seconds; False if it timed out or the engine is closed."""


def idle_wait(engine: Engine, *, drives: bool) -> tuple[Wait, Callable[[], None]]:
    """Return the wait function of one thread, and the function that wakes it from any thread, also ahead of the wait.

    Args:
        drives: whether the thread waits in the engine, and thereby drives it.
    """
    if drives:
        return engine.wait, engine.wake_waiters
    sleeper = Sleeper()

    def wait(ready: Callable[[], bool], timeout_s: float | None) -> bool:
        end_s = None if timeout_s is None else engine.clock() + timeout_s
        while not ready():
            left_s = None if end_s is None else end_s - engine.clock()
            if engine.closed or (left_s is not None and left_s <= 0):
                return False
            sleeper.sleep(left_s)
        return True

    return wait, sleeper.wake
