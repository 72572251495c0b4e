"""Threads that work whatever user code has done to `threading`.

Tests and libraries replace its classes; profilers and debuggers set functions that run first on each of its threads,
and may raise. A thread of ours that did not start would leave callers waiting.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from os import getpid
from threading import main_thread

__all__ = ["Thread", "in_main_thread"]


class Thread:
    """A daemon thread that does *work*, from now on.

    Attributes:
        ident: its thread id.

    Raises:
        RuntimeError: the process cannot have another thread, or the interpreter is ending.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ended = allocate_lock()
        self._ended.acquire()
        self._pid = getpid()
        self.ident = start_new_thread(self._run, ())

    @property
    def alive(self) -> bool:
        """Whether it still works; False in a forked child, which has no threads of its parent."""
        return self._ended.locked() and self._pid == getpid()

    def join(self, timeout_s: float = -1) -> None:
        """Wait for its end, at most *timeout_s* seconds unless negative; no-op on the thread itself, and in a fork."""
        if self.alive and get_ident() != self.ident and self._ended.acquire(timeout=timeout_s):
            self._ended.release()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            del self._work  # nothing may keep alive what it used
            self._ended.release()


def in_main_thread() -> bool:
    """Whether the calling thread is the main thread."""
    return get_ident() == main_thread().ident
