"""Sources of the events that the engine serves beside descriptors: timers, and libraries that must be polled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

__all__ = ["Poller", "Timer"]


class Timer:
    """A callback that will run once, unless cancelled first."""

    __slots__ = ("_callback", "at_s")

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevent the callback from running."""
        self._callback = None

    def fire(self) -> None:
        """Run the callback, unless it was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


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
