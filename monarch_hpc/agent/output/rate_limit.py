"""How fast a host reads what its procs print, and how much of it goes on to the program. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["FairShare", "TokenBucket", "cost_bytes"]

_LINE_BYTES = 64
"""What a line costs besides its text, on its way and in the program: many empty ones are a flood too."""

_WINDOW_S = 0.05
"""Short enough that a proc which must wait is not seen to stutter, long enough for many reads."""


class FairShare:
    """Shares reading among the procs of a host: one that pours gets what the others leave, and delays nobody.

    Time runs in windows. In each, every reader may take the same share, or *least_bytes* if that is more. Only those
    that used theirs up in the window before are counted for the share, so that one that is alone gets all.

    Args:
        rate_bytes: in a second, all readers together; 0 sets no limit.
        least_bytes: what a reader may take in any window, and what it may take at a time.
    """

    def __init__(self, rate_bytes: int, least_bytes: int) -> None:
        self._quota_bytes = int(rate_bytes * _WINDOW_S)
        self._least_bytes = least_bytes
        self._window = -1
        self._share_bytes = self._quota_bytes
        self._taken: dict[Hashable, int] = {}
        self._exhausted: set[Hashable] = set()

    def take(self, reader: Hashable, num_bytes: int, now_s: float) -> float:
        """Note that *reader* has read so much; return for how many seconds it must not read again, 0 for none."""
        if not self._quota_bytes:
            return 0.0
        window = int(now_s / _WINDOW_S)
        if window != self._window:
            # Windows may lie between in which nobody read.
            exhausted = self._exhausted if window == self._window + 1 else set()
            # What the last read took beyond the share counts for this window.
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
    """How much of a proc's output goes to the program: so much a second, after a first burst of four times that.

    Once used up it stays so until a second's worth has come together: few pieces to read instead of many shreds.

    Args:
        rate_bytes: in a second; 0 sets no limit.
    """

    def __init__(self, rate_bytes: int, now_s: float) -> None:
        self._rate_bytes = rate_bytes
        self._left_bytes = 4.0 * rate_bytes
        self._updated_s = now_s
        self._used_up = False

    def take(self, num_bytes: int, now_s: float) -> bool:
        """Take so much if there is any left."""
        rate = self._rate_bytes
        if not rate:
            return True
        self._left_bytes = min(self._left_bytes + (now_s - self._updated_s) * rate, 4.0 * rate)
        self._updated_s = now_s
        if self._left_bytes >= rate:
            self._used_up = False
        # What is more than ever comes together passes when as much has come together as can.
        if self._used_up or num_bytes > self._left_bytes < 4.0 * rate:
            self._used_up = True
            return False
        self._left_bytes -= num_bytes
        return True


def cost_bytes(num_lines: int, num_bytes: int) -> int:
    """Return what lines take from an allowance."""
    return num_bytes + _LINE_BYTES * num_lines
