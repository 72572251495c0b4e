"""The interface of an event source that the engine polls together with the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Poller"]


class Poller(Protocol):
    """A library with its own events, which must be polled before a thread may sleep."""

    @property
    def fd(self) -> int:
        """A descriptor that is readable when there are events."""
        ...

    def poll(self, epoll_fd: int, spin_s: float, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Wait for the library's events or *epoll_fd*, which contains *fd*; at most *timeout_s* seconds (-1: for ever).

        Returns:
            The descriptors of *epoll_fd* that are ready, with their event masks.
        """
        ...

    def wait_away(self) -> None:
        """Return when no thread has polled for some milliseconds, or the poller is closed; from any thread.

        A thread that waits here costs nothing while drivers come and go.
        """
        ...

    def dispatch(self) -> None:
        """Deliver the library's events."""
        ...
