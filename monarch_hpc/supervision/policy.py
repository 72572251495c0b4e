"""Restart policies: whether a proc that has ended is started again, and when.

Pure: the caller reads the clock and carries the decisions out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import Literal, get_args

from monarch_hpc.core.arguments import check_number, check_seconds, shown
from monarch_hpc.core.dataclass import dataclass

__all__ = ["MAX_LINES", "Again", "Failed", "Lives", "Restart"]

When = Literal["never", "on-failure", "always"]

MAX_LINES = 50
"""Lines of output that the error of a crash loop shows: a traceback of each of the last lives."""


@dataclass(frozen=True, slots=True, init=False)
class Restart:
    """When a proc that has ended is started again: ``Restart("on-failure", max_restarts=5)``.

    A proc that its program has stopped, or whose host is lost, is never started again by a policy.

    Args:
        when: ``never``; ``on-failure``: unless it ended by itself with exit code 0; or ``always``.
        max_restarts: how many restarts of one proc may begin in any *window_s* seconds. A proc that ends once more has
            failed, and stays so until `ProcMesh.heal`.
        window_s: seconds.
        backoff_s: seconds before the first restart of a window, which double with each further one; and their limit.

    Raises:
        TypeError: an argument of another type.
        ValueError: an unknown *when*, a negative number, or a limit below the first delay.
    """

    when: When
    max_restarts: int
    window_s: float
    backoff_s: tuple[float, float]

    def __init__(
        self,
        when: When = "on-failure",
        max_restarts: int = 3,
        window_s: float = 60.0,
        backoff_s: Sequence[float] = (0.1, 10.0),
    ) -> None:
        if when not in get_args(When):
            raise ValueError(f"when is {shown(when)}; it is one of {', '.join(map(repr, get_args(When)))}")
        if isinstance(backoff_s, str) or not isinstance(backoff_s, Sequence) or len(backoff_s) != 2:
            raise TypeError(f"backoff_s is {shown(backoff_s)}: give the first delay and the longest, as (0.1, 10)")
        first_s, limit_s = (check_seconds("backoff_s", delay_s, zero=True) for delay_s in backoff_s)
        if limit_s < first_s:
            raise ValueError(f"backoff_s is {shown(backoff_s)}: its limit is below the first delay")
        object.__setattr__(self, "when", when)
        object.__setattr__(self, "max_restarts", check_number("max_restarts", max_restarts, least=0))
        object.__setattr__(self, "window_s", check_seconds("window_s", window_s))
        object.__setattr__(self, "backoff_s", (first_s, limit_s))


@dataclass(frozen=True, slots=True)
class Again:
    """Start the proc again after *delay_s* seconds; *number* counts the restarts within the policy's window."""

    delay_s: float
    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Leave the proc dead.

    Attributes:
        reason: empty if the policy asks for no restart; else why there is none any more, in words.
        last_lines: the last lines that the lives of the proc wrote; empty if *reason* is.
    """

    reason: str = ""
    last_lines: tuple[str, ...] = ()


@dataclass(slots=True)
class Lives:
    """The restarts of one proc under a policy.

    Attributes:
        begun_s: when the restarts within the window began.
        lines: the last lines that all lives wrote.
    """

    policy: Restart
    begun_s: deque[float] = field(default_factory=deque)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))

    def on_end(self, now_s: float, *, succeeded: bool, last_lines: Sequence[str] = ()) -> Again | Failed:
        """Decide what follows the end of the proc, or of an attempt to start it.

        Args:
            now_s: the time, in seconds of any monotonic clock.
            succeeded: whether the proc has ended by itself with exit code 0.
            last_lines: what it wrote last.
        """
        policy = self.policy
        if policy.when == "never" or (policy.when == "on-failure" and succeeded):
            return Failed()
        self.lines.extend(last_lines)
        # Strictly less: a restart exactly window_s ago has left the window, so that max_restarts=1, window_s=60 reads
        # "one a minute".
        while self.begun_s and now_s - self.begun_s[0] >= policy.window_s:
            self.begun_s.popleft()
        num = len(self.begun_s)
        if num >= policy.max_restarts:
            times = "once" if num == 1 else f"{num} times"
            reason = f"it was started again {times} within {policy.window_s:g} s, as its restart policy allows"
            if not num:
                reason = "its restart policy allows no restart"
            return Failed(reason, tuple(self.lines))
        first_s, limit_s = policy.backoff_s
        delay_s = min(first_s * 2.0 ** min(num, 64), limit_s)
        self.begun_s.append(now_s + delay_s)
        return Again(delay_s, num + 1)
