"""The place of a process: two with the same one can share memory."""

from __future__ import annotations

import functools
import os
from pathlib import Path

__all__ = ["read_place"]


@functools.cache
def read_place() -> str:
    """What two processes have in common when they can share memory: kernel, user, process ids and /dev/shm."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        shared = os.stat("/dev/shm")
        return f"{boot} {os.getuid()} {os.readlink('/proc/self/ns/pid')} {shared.st_dev} {shared.st_ino}"
    except OSError:
        return ""
