"""Rate limits: reading of procs' output on a host, and its forwarding to the program. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["FairShare", "TokenBucket", "cost_bytes"]

_LINE_BYTES = 64
"""Overhead of a line besides its text, in transit and in the program: many empty lines are a flood, too."""

_WINDOW_S = 0.05
"""Short enough that a throttled proc does not visibly stutter, long enough for many reads."""


class FairShare:
    """Shares a host's read rate among its procs: a flooding proc gets only what the others leave, and delays no other.

    Time is divided into windows. In each, every reader may take an equal share, or *least_bytes* if that is more. Only
    readers that exhausted their share in the previous window count for the division, so that a single one gets all.

    Args:
        rate_bytes: bytes per second, for all readers together; 0 for no limit.
        least_bytes: minimum of a reader's share; also the largest single read.
    """

    def __init__(self, rate_bytes: int, least_bytes: int) -> None:
        self._quota_bytes = int(rate_bytes * _WINDOW_S)
        self._least_bytes = least_bytes
        self._window = -1
        self._share_bytes = self._quota_bytes
        self._taken: dict[Hashable, int] = {}
        self._exhausted: set[Hashable] = set()

    def take(self, reader: Hashable, num_bytes: int, now_s: float) -> float:
        """Record that *reader* has read *num_bytes*; return for how many seconds it must pause, 0 for none."""
        if not self._quota_bytes:
            return 0.0
        window = int(now_s / _WINDOW_S)
        if window != self._window:
            # Windows without any read may lie between.
            exhausted = self._exhausted if window == self._window + 1 else set()
            # A read beyond the share is charged to this window.
            self._taken = {each: self._taken[each] - self._share_bytes for each in exhausted}
            self._window = window
            self._exhausted = set()
            self._share_bytes = max(self._least_bytes, self._quota_bytes // max(len(exhausted), 1))
        taken = self._taken[reader] = self._taken.get(reader, 0) + num_bytes
        if taken < self._share_bytes:
            return 0.0
        self._exhausted.add(reader)
        return (window + 1) * _WINDOW_S - now_s


class TokenBucket:
    """Limits output that is forwarded to the program, with an initial burst of four seconds' worth.

    Once exhausted it stays so until a second's worth has accumulated: the program gets few long pieces, not many short.

    Args:
        rate_bytes: bytes per second; 0 for no limit.
    """

    def __init__(self, rate_bytes: int, now_s: float) -> None:
        self._rate_bytes = rate_bytes
        self._left_bytes = 4.0 * rate_bytes
        self._updated_s = now_s
        self._used_up = False

    def take(self, num_bytes: int, now_s: float) -> bool:
        """Take *num_bytes* if the bucket allows; return whether it does."""
        rate = self._rate_bytes
        if not rate:
            return True
        self._left_bytes = min(self._left_bytes + (now_s - self._updated_s) * rate, 4.0 * rate)
        self._updated_s = now_s
        if self._left_bytes >= rate:
            self._used_up = False
        # A piece larger than the bucket passes when the bucket is full.
        if self._used_up or num_bytes > self._left_bytes < 4.0 * rate:
            self._used_up = True
            return False
        self._left_bytes -= num_bytes
        return True


def cost_bytes(num_lines: int, num_bytes: int) -> int:
    """Return the cost of lines for a `TokenBucket`."""
    return num_bytes + _LINE_BYTES * num_lines
