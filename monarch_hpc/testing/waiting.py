"""Waits for a condition, with a deadline whose error shows the last state; tests wait in no other way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

T = TypeVar("T")


# A probe starts a command: two thirds of the time are left to what is awaited, and to other tests.
_PAUSE_PER_CALL = 2.0
# One that takes longer than half of this waits for something itself.
_LONGEST_PAUSE_S = 1.0


def wait_until(
    what: str,
    probe: Callable[[], T],
    timeout_s: float = 60.0,
    *,
    accept: Callable[[T], object] = bool,
    interval_s: float = 0.02,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first result of *probe* that *accept* accepts.

    Args:
        what: description of the condition, for the error.
        probe: called at least twice: at once, and after the timeout. Its exceptions end the wait.
        timeout_s: timeout, in seconds.
        accept: whether a result is the awaited one; by default, whether it is true.
        interval_s: pause between two calls of *probe*, in seconds; at least twice as long as the call took, up to a
            second, so that a probe that starts a command leaves the processors to what is awaited.
        clock: a monotonic clock, in seconds.
        sleep: pauses for the given number of seconds.

    Raises:
        TimeoutError: the condition did not come true; the message has the last result.
    """
    deadline_s = clock() + timeout_s
    while True:
        begun_s = clock()
        late = begun_s >= deadline_s
        answer = probe()
        if accept(answer):
            return answer
        if late:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}; last seen: {answer!r}")
        sleep(max(interval_s, min(_PAUSE_PER_CALL * (clock() - begun_s), _LONGEST_PAUSE_S)))
