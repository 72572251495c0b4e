"""The place of a process: processes with equal places can share memory."""

from __future__ import annotations

import functools
import os
from pathlib import Path

__all__ = ["read_place"]


@functools.cache
def read_place() -> str:
    """Return this process's place: boot id, user, PID namespace and /dev/shm; empty if it cannot be read."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        shared = os.stat("/dev/shm")
        return f"{boot} {os.getuid()} {os.readlink('/proc/self/ns/pid')} {shared.st_dev} {shared.st_ino}"
    except OSError:
        return ""
