"""The one way in which tests wait: on a condition, with a deadline, telling what was seen last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["wait_until"]

T = TypeVar("T")


def wait_until(
    what: str,
    probe: Callable[[], T],
    timeout_s: float = 30.0,
    *,
    accept: Callable[[T], object] = bool,
    interval_s: float = 0.02,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return the first answer of *probe* that *accept* takes.

    Args:
        what: the condition in words, for the error.
        probe: asked at least twice: at once, and when the time is over. What it raises ends the wait.
        timeout_s: how long to go on asking, in seconds.
        accept: tells whether an answer is the awaited one; by default, whether it is true.
        interval_s: pause between two questions, in seconds.
        clock: seconds that only grow.
        sleep: pauses for so many seconds.

    Raises:
        TimeoutError: the condition did not come true; it says what the last answer was.
    """
    deadline_s = clock() + timeout_s
    while True:
        late = clock() >= deadline_s
        answer = probe()
        if accept(answer):
            return answer
        if late:
            raise TimeoutError(f"waited {timeout_s:g} s for: {what}; last seen: {answer!r}")
        sleep(interval_s)
