"""Wakes a thread from another one: out of a lock, or out of epoll."""

from __future__ import annotations

import _thread
import os
import threading

__all__ = ["Sleeper", "Wakeup"]


class Sleeper:
    """`sleep` blocks a thread until `wake`; an earlier `wake` is remembered."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        """Block until `wake` was called since the last `sleep`, or until *timeout_s* seconds have passed."""
        self._lock.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """End the sleep, or else the next one; from any thread."""
        try:
            self._lock.release()
        except RuntimeError:  # awake already
            pass


class Wakeup:
    """Wakes a thread out of epoll: an eventfd that becomes readable on `ring`, until `clear`.

    Attributes:
        fd: the descriptor to poll for reading.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = _thread.allocate_lock()
        self._closed = False

    def ring(self) -> None:
        """Wake the thread; no-op once closed."""
        # Locked against `close`: the number of a closed descriptor may have been reused.
        with self._lock:
            self.ring_unlocked()

    def ring_unlocked(self) -> None:
        """Like `ring`, for a signal handler: the interrupted thread may hold the lock."""
        if not self._closed:
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Reset to unreadable."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            self.close_unlocked()

    def close_unlocked(self) -> None:
        """Like `close`, for a forked child: a thread that does not exist there may have held the lock."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)
