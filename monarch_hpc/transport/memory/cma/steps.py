"""Spans of memory in steps, each copied by one system call. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from monarch_hpc.core.dataclass import dataclass

__all__ = ["MAX_SPANS", "STEP_BYTES", "CopyStep", "plan_steps"]

MAX_SPANS = 1023
"""Spans of a step on one side: the kernel takes 1024 (UIO_MAXIOV), and one more is added to each."""

STEP_BYTES = 16 * 2**20
"""Upper bound on the bytes of a step: it takes some milliseconds, within which a transfer can be stopped."""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Spans of this process and of another one, which have the same number of bytes together.

    Attributes:
        local, remote: address and length of each span, one after the other: the kernel's ``struct iovec``.
    """

    local: array[int]
    remote: array[int]
    num_bytes: int


def plan_steps(spans: Iterable[tuple[int, int, int]]) -> list[CopyStep]:
    """Cut *spans* into steps of at most `STEP_BYTES` and `MAX_SPANS`; neighbours in memory become one span.

    Args:
        spans: local address, remote address and number of bytes of each.
    """
    steps: list[CopyStep] = []
    local, remote, filled_bytes = array("Q"), array("Q"), 0
    for here, there, num_bytes in spans:
        at = 0
        while at < num_bytes:
            size = min(num_bytes - at, STEP_BYTES - filled_bytes)
            _append(local, here + at, size)
            _append(remote, there + at, size)
            at += size
            filled_bytes += size
            if filled_bytes == STEP_BYTES or len(local) == 2 * MAX_SPANS or len(remote) == 2 * MAX_SPANS:
                steps.append(CopyStep(local, remote, filled_bytes))
                local, remote, filled_bytes = array("Q"), array("Q"), 0
    if filled_bytes:
        steps.append(CopyStep(local, remote, filled_bytes))
    return steps


def _append(spans: array[int], address: int, num_bytes: int) -> None:
    if spans and spans[-2] + spans[-1] == address:
        spans[-1] += num_bytes
    else:
        spans.append(address)
        spans.append(num_bytes)
