"""The place of a process: processes with equal places can share memory."""

from __future__ import annotations

import functools
import os

from monarch_hpc.core.machine.procfs import read_boot_id

__all__ = ["read_place"]


@functools.cache
def read_place() -> str:
    """Return this process's place: boot id, user, PID namespace and /dev/shm; empty if it cannot be read."""
    try:
        shared = os.stat("/dev/shm")
        return f"{read_boot_id()} {os.getuid()} {os.readlink('/proc/self/ns/pid')} {shared.st_dev} {shared.st_ino}"
    except OSError:
        return ""
