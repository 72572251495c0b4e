"""Lets a thread sleep until another one wakes it."""

from __future__ import annotations

import _thread
import threading

__all__ = ["Sleeper"]


class Sleeper:
    """`sleep` blocks a thread until `wake`; an earlier `wake` is remembered."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        self._lock.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # awake already
            pass
