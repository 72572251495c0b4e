"""Where the thread of an actor waits: in the engine, which it drives then, or beside it."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sleeper import Sleeper

__all__ = ["Wait", "idle_wait"]


Wait = Callable[[Callable[[], bool], float | None], bool]
"""Waits until something is so, for at most so many seconds; False if it is not, or if the engine is closed."""


def idle_wait(engine: Engine, *, drives: bool) -> tuple[Wait, Callable[[], None]]:
    """Return how one thread waits, and what wakes it: from any thread, and also before it waits.

    Args:
        drives: it waits in the engine.
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
