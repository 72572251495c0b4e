"""A child process of a test, which ends with the block that uses it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import AnyStr

__all__ = ["child"]


@contextlib.contextmanager
def child(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill the process at the end, if it still runs: `Popen` alone would wait for it, and a failed test would hang."""
    with process:
        try:
            yield process
        finally:
            process.kill()
