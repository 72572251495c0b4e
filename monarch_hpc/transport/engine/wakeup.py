"""Wakes a thread from another one: out of a lock, or out of epoll."""

from __future__ import annotations

from _thread import RLock, allocate_lock
from collections.abc import Callable
from os import EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd, eventfd_read, eventfd_write
from threading import TIMEOUT_MAX

__all__ = ["Sleeper", "Wakeup", "holds"]


class Sleeper:
    """`sleep` blocks a thread until `wake`; an earlier `wake` is remembered."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float | None) -> None:
        """Block until `wake` was called since the last `sleep`, or until *timeout_s* seconds have passed."""
        self._lock.acquire(timeout=-1 if timeout_s is None else min(timeout_s, TIMEOUT_MAX))

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
        self.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self._lock = RLock()
        self._closed = False

    def ring(self) -> None:
        """Wake the thread; no-op once closed."""
        # Locked against `close`: the number of a closed descriptor may have been reused.
        with self._lock:
            self.ring_unlocked()

    def ring_unlocked(self) -> None:
        """Like `ring`, for a signal handler: the interrupted thread may hold the lock."""
        if not self._closed:
            eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Reset to unreadable."""
        try:
            eventfd_read(self.fd)
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
            close(self.fd)


def holds(condition: Callable[[], bool]) -> bool:
    """Whether a sleeping thread's *condition* holds, or raises: then that thread is woken, whose exception it is."""
    try:
        return condition()
    except Exception:  # noqa: BLE001 raised again where it belongs
        return True
