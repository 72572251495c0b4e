"""How long calls took, counted by powers of two: small, never full, and added up across processes. Pure.

Bucket 0 counts what took less than 2**BUCKET_BITS ns, bucket n what took at least 2**(BUCKET_BITS + n - 1) and less
than twice that; the last one has no upper end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from monarch_hpc.telemetry.layout import BUCKET_BITS, NUM_BUCKETS

__all__ = ["added", "bucket_of", "quantile"]

_FIRST_S = (1 << BUCKET_BITS) * 1e-9


def bucket_of(ns: int) -> int:
    """Return where a time that is not negative is counted."""
    bits = (ns >> BUCKET_BITS).bit_length()
    return bits if bits < NUM_BUCKETS else NUM_BUCKETS - 1


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the counts of both together; missing ones at the end are 0."""
    return [first + second for first, second in zip_longest(one, other, fillvalue=0)]


def quantile(counts: Sequence[int], share: float, longest_s: float) -> float:
    """Return an estimate of the time in seconds that a share of the calls did not exceed; 0 if there were none.

    It lies in the right bucket, so it is wrong by less than a factor of two where buckets have an end.

    Args:
        share: 0.99 for all but one of a hundred.
        longest_s: the longest of them, which bounds it.
    """
    left = share * sum(counts)
    for bucket, count in enumerate(counts):
        if count and left <= count:
            start_s = 0.0 if bucket == 0 else (1 << (BUCKET_BITS + bucket - 1)) * 1e-9
            end_s = longest_s if bucket >= NUM_BUCKETS - 1 else min(2 * max(start_s, _FIRST_S / 2), longest_s)
            return start_s + max(end_s - start_s, 0.0) * left / count
        left -= count
    return longest_s if any(counts) else 0.0
