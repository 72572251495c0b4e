"""Failures of GPUs, as they show in what a process wrote before it died: ECC and Xid errors, a device off the bus."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["find_gpu_error"]

_FAILED = re.compile(
    r"uncorrectable ECC error|ECC_?UNCORRECTABLE|ECC_?NOT_?CORRECTABLE|NVLINK_UNCORRECTABLE|\bXid\b.*\d|"
    r"fallen off the bus|GPU is lost|HARDWARE_STACK_ERROR|hardware stack error",
    re.IGNORECASE,
)
"""Words of CUDA, HIP, NCCL and the driver for broken hardware; not those for errors that a program can cause."""

_MAX_CHARS = 200


def find_gpu_error(lines: Iterable[str]) -> str:
    """Return the first of *lines* that says that a GPU has failed; empty if none does."""
    return next((line.strip()[:_MAX_CHARS] for line in lines if _FAILED.search(line)), "")
