"""An eventfd that wakes a thread out of epoll, from any other thread."""

from __future__ import annotations

import _thread
import os

__all__ = ["Wakeup"]


class Wakeup:
    """Becomes readable on `ring`, until `clear`.

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
