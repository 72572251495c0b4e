"""Chooses the calls that are kept when there are more of them than a host may keep. Pure.

Caller and callee choose by the number of the call, which both know: each half that one host leaves out is one that
others leave out no later, so that what is kept of a call is kept on both sides.
"""

from __future__ import annotations

from monarch_hpc.telemetry.layout import CAST, FAILED, RECORD_BYTES

__all__ = ["choose", "halvings"]

_MAX_HALVINGS = 20
_SLOW_NS = 1_000_000_000
"""A call that takes longer is kept in any case, as is one that fails."""

_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def halvings(rate: float, limit: float) -> int:
    """Return how often *rate*, in records a second, must be halved to be within *limit*."""
    num = 0
    while rate > limit and num < _MAX_HALVINGS:
        rate, num = rate / 2, num + 1
    return num


def choose(records: bytes, num_halvings: int) -> bytes:
    """Return the records of calls that are kept: one of 2**num_halvings, and those that failed or were slow."""
    if not num_halvings:
        return records
    mask = (1 << num_halvings) - 1
    words = memoryview(records).cast("Q")
    durations = memoryview(records).cast("q")[5::8].tolist()
    chosen = []
    for index, (kinds, number, duration) in enumerate(
        zip(words[1::8].tolist(), words[3::8].tolist(), durations, strict=True)
    ):
        if not (_hash(number & ~CAST) & mask) or kinds >> 16 & FAILED or duration >= _SLOW_NS:
            chosen.append(records[index * RECORD_BYTES : (index + 1) * RECORD_BYTES])
    return b"".join(chosen)


def _hash(number: int) -> int:
    mixed = number * _MIX & _WORD
    mixed ^= mixed >> 29
    return (mixed * _MIX & _WORD) >> 32
