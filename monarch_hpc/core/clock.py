"""The clock, also of programs that replace the functions of `time`; and deadlines on a clock that tests can replace.

Programs do so in their tests: freezegun replaces them in `time` and in every module that has imported them. A timeout
that stands still never ends, so ours use the functions that were there first, or the kernel's clock itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from types import BuiltinFunctionType

__all__ = ["Deadline", "monotonic", "monotonic_ns", "real_monotonic"]

_REAL: tuple[Callable[[], float], Callable[[], int]] = (
    (time.monotonic, time.monotonic_ns)
    if type(time.monotonic) is type(time.monotonic_ns) is BuiltinFunctionType
    else (
        functools.partial(time.clock_gettime, time.CLOCK_MONOTONIC),
        functools.partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC),
    )
)
"""In a tuple, which freezegun does not search."""

monotonic_ns = functools.partial(_REAL[1])
"""Nanoseconds, as `time.monotonic_ns`; no function of Python's, since it is called several times in each call."""


def monotonic() -> float:
    """Seconds, as `time.monotonic`."""
    return _REAL[0]()


def real_monotonic() -> Callable[[], float]:
    """The function behind `monotonic`; for an attribute of an object, not for a global of a module."""
    return _REAL[0]


class Deadline:
    """The moment *timeout_s* seconds after its construction.

    Args:
        timeout_s: seconds; infinite for a wait that only its caller ends.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = monotonic) -> None:
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
