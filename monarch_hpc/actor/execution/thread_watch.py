"""Watches the threads that run user code: C code can end one behind the interpreter's back, with `pthread_exit`."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Collection

from monarch_hpc.core.process.native_threads import thread_ids
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["ThreadWatch"]

_LOOK_S = 1.0
"""Interval of looks. The callers of an actor whose thread was ended learn of it this late; a look costs a few
microseconds, and there is none in a process whose actors are idle."""


class ThreadWatch:
    """Looks whether the kernel still has the threads that work.

    A thread that ends in C unwinds no frame of Python: no `finally` on it runs, and nothing that it owes is done.

    Args:
        working: returns the kernel's ids of the threads that work.
        lost: called on the driver with the id of one that is gone.

    Attributes:
        on: whether it looks; `start` it before a thread begins to work.
    """

    def __init__(self, engine: Engine, working: Callable[[], Collection[int]], lost: Callable[[int], None]) -> None:
        self.on = False
        self._engine = engine
        self._working = working
        self._lost = lost
        self._lock = allocate_lock()

    def start(self) -> None:
        """Look from time to time until no thread works; from any thread."""
        with self._engine.undisturbed(), self._lock:
            if self.on or self._engine.closed:
                return
            self.on = True
        self._engine.call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self.on = False  # first: a thread that begins to work meanwhile starts this again
        working = self._working()
        if working:
            there = thread_ids()
            for kernel_id in working:
                if kernel_id not in there:
                    self._lost(kernel_id)
            self.start()
