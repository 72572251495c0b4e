"""Identifies the process that makes an allocation, so that others can tell whether it still runs.

A pid alone does not suffice, since it may have been reused.
"""

from __future__ import annotations

import os

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_boot_id, read_stat

__all__ = ["OwnerProcess", "current_owner", "owner_lives"]


@dataclass(frozen=True, slots=True)
class OwnerProcess:
    """A process, identified by machine, boot, pid and start time.

    Args:
        host: name of the machine.
        boot_id: Linux's id of that machine's boot.
        pid: process id.
        start_ticks: start time, in clock ticks since boot.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


def current_owner() -> OwnerProcess:
    """Return this process."""
    pid = os.getpid()
    return OwnerProcess(os.uname().nodename, read_boot_id(), pid, _start_ticks(pid) or 0)


def owner_lives(owner: OwnerProcess) -> bool | None:
    """Tell whether *owner* still runs; None if that cannot be seen from this machine."""
    if owner.host != os.uname().nodename:
        return None
    return owner.boot_id == read_boot_id() and _start_ticks(owner.pid) == owner.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process; None if it does not exist, or is a zombie."""
    found = read_stat(pid)
    return None if found is None or found.has_ended else found.start_ticks
