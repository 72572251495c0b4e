"""Deadlines for waits, on a clock that tests can replace."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Deadline"]


class Deadline:
    """The moment *timeout_s* seconds after its construction.

    Args:
        timeout_s: seconds; infinite for a wait that only its caller ends.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._start_s = clock()

    def elapsed_s(self) -> float:
        """Seconds since construction."""
        return self._clock() - self._start_s

    def left_s(self) -> float:
        """Seconds left, never negative: usable as a timeout."""
        return max(0.0, self.timeout_s - self.elapsed_s())

    def passed(self) -> bool:
        """Tell whether the deadline has passed."""
        return self.elapsed_s() >= self.timeout_s
