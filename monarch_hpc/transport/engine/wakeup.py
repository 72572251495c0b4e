"""An eventfd that ends a thread's sleep in epoll, from any other thread."""

from __future__ import annotations

import _thread
import os

__all__ = ["Wakeup"]


class Wakeup:
    """Readable once it was rung, until `clear`.

    Attributes:
        fd: what to poll for reading.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = _thread.allocate_lock()
        self._closed = False

    def ring(self) -> None:
        """End the sleep; no-op once closed."""
        # Locked against `close`: the number of a closed descriptor may be somebody else's by now.
        with self._lock:
            self.ring_unlocked()

    def ring_unlocked(self) -> None:
        """`ring`, for a signal handler: the thread that it interrupts may hold the lock."""
        if not self._closed:
            os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Be unreadable again."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Free the descriptor."""
        with self._lock:
            self.close_unlocked()

    def close_unlocked(self) -> None:
        """`close`, in a forked child: a thread that is not there may have held the lock."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)
