"""Threads that work whatever user code has done to `threading`.

Tests and libraries replace its classes; profilers and debuggers set functions that run first on each of its threads,
and may raise. A thread of ours that did not start would leave callers waiting; so would one that has no memory for its
first frame, which Python starts, and which ends without a word.
"""

from __future__ import annotations

import resource
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from os import getpid
from threading import main_thread
from weakref import ref

__all__ = ["Thread", "in_main_thread"]

_LOOK_S = 0.01
"""Time between looks whether a thread that has not begun has ended."""


class _Life:
    """An object that Python holds as long as a thread lives, whatever becomes of it."""

    __slots__ = ("__weakref__",)


class Thread:
    """A daemon thread that does *work*, from now on.

    Attributes:
        ident: its thread id.

    Raises:
        RuntimeError: the process cannot have another thread, it has no memory for it, or the interpreter is ending.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._begun, self._ended = allocate_lock(), allocate_lock()
        self._begun.acquire()
        self._ended.acquire()
        self._pid = getpid()
        life = _Life()
        self._life = ref(life)
        self.ident = start_new_thread(self._run, (life,))
        del life
        if _may_lack_memory():
            self._await_begin()

    @property
    def alive(self) -> bool:
        """Whether it still works; False in a forked child, which has no threads of its parent."""
        return self._ended.locked() and self._pid == getpid()

    def join(self, timeout_s: float = -1) -> None:
        """Wait for its end, at most *timeout_s* seconds unless negative; no-op on the thread itself, and in a fork."""
        if self.alive and get_ident() != self.ident and self._ended.acquire(timeout=timeout_s):
            self._ended.release()

    def _await_begin(self) -> None:
        while not self._begun.acquire(timeout=_LOOK_S):
            if self._life() is None and not self._begun.acquire(blocking=False):
                raise RuntimeError("there is no memory for a new thread")

    def _run(self, _life: _Life) -> None:
        self._begun.release()
        try:
            self._work()
        finally:
            del self._work  # nothing may keep alive what it used
            self._ended.release()


def _may_lack_memory() -> bool:
    """Whether memory of this process is limited such that it is refused, instead of ending the process by SIGKILL."""
    return any(resource.getrlimit(which)[0] >= 0 for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA))


def in_main_thread() -> bool:
    """Whether the calling thread is the main thread."""
    return get_ident() == main_thread().ident
