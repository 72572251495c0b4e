"""Histograms of durations in power-of-two buckets: fixed size, and additive across processes. Pure.

Bucket 0 counts durations below 2**BUCKET_BITS ns, bucket n those from 2**(BUCKET_BITS + n - 1) up to twice that; the
last bucket has no upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from monarch_hpc.telemetry.layout import BUCKET_BITS, NUM_BUCKETS

__all__ = ["added", "bucket_of", "quantile"]

_FIRST_S = (1 << BUCKET_BITS) * 1e-9


def bucket_of(ns: int) -> int:
    """Return the bucket of a duration that is not negative."""
    bits = (ns >> BUCKET_BITS).bit_length()
    return bits if bits < NUM_BUCKETS else NUM_BUCKETS - 1


def added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the sum of two histograms; missing buckets at the end count as 0."""
    return [first + second for first, second in zip_longest(one, other, fillvalue=0)]


def quantile(counts: Sequence[int], share: float, longest_s: float) -> float:
    """Return an estimate of a quantile of the durations, in seconds; 0 for an empty histogram.

    The estimate lies in the right bucket, so its error is less than a factor of two in bounded buckets.

    Args:
        share: the quantile, such as 0.99.
        longest_s: the longest duration, an upper bound on the estimate.
    """
    left = share * sum(counts)
    for bucket, count in enumerate(counts):
        if count and left <= count:
            start_s = 0.0 if bucket == 0 else (1 << (BUCKET_BITS + bucket - 1)) * 1e-9
            end_s = longest_s if bucket >= NUM_BUCKETS - 1 else min(2 * max(start_s, _FIRST_S / 2), longest_s)
            return start_s + max(end_s - start_s, 0.0) * left / count
        left -= count
    return longest_s if any(counts) else 0.0
