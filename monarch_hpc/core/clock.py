"""Deadlines: every wait has one, and a test can pass any clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Deadline"]


class Deadline:
    """A moment *timeout_s* seconds from its making.

    Args:
        timeout_s: seconds; infinite for a wait that only its owner ends.
        clock: what tells the time, in seconds that never go back.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._start_s = clock()

    def elapsed_s(self) -> float:
        """Seconds since its making."""
        return self._clock() - self._start_s

    def left_s(self) -> float:
        """Seconds left, never negative: usable as a timeout."""
        return max(0.0, self.timeout_s - self.elapsed_s())

    def passed(self) -> bool:
        """Tell whether the moment has come."""
        return self.elapsed_s() >= self.timeout_s
