"""What the engine asks for events beside the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Poller"]


class Poller(Protocol):
    """A library with events of its own, which must be asked before a thread may sleep."""

    @property
    def fd(self) -> int:
        """Readable when there is something to ask for."""
        ...

    def poll(self, epoll_fd: int, spin_s: float, timeout_s: float) -> Sequence[tuple[int, int]]:
        """Wait for events of its own or of *epoll_fd*, in which *fd* is; at most *timeout_s* (-1: for ever).

        Returns:
            The descriptors of *epoll_fd* that are ready, with their event masks.
        """
        ...

    def wait_away(self) -> None:
        """Return when nobody has polled for some milliseconds, or the poller is closed; from any thread.

        Whoever waits here costs nothing while others come and go.
        """
        ...

    def dispatch(self) -> None:
        """Hand out its own events."""
        ...
