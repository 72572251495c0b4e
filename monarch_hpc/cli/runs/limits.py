"""This machine's limits on a process, which login nodes set so that programs run elsewhere."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.core.text.units import format_duration, format_size

__all__ = ["LimitWatch", "cpu_limit_s"]

_PART = 0.5
"""The part of a limit that a program may use before it is warned: time to move it, or to save its work."""


def cpu_limit_s() -> int | None:
    """The CPU time after which the kernel signals a process of this machine; None if there is no limit."""
    return _limit(resource.RLIMIT_CPU)


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


class LimitWatch:
    """Warns once when a program on this machine has used half of its CPU time, and once for its address space.

    Args:
        pid: the program's process, which has this process's limits.
        warn: called with a sentence.
    """

    period_s = 2.0

    def __init__(self, pid: int, warn: Callable[[str], None]) -> None:
        self._pid = pid
        self._warn = warn
        self._cpu_s = cpu_limit_s()
        self._memory_bytes = _limit(resource.RLIMIT_AS)

    @property
    def needed(self) -> bool:
        """Whether there is a limit that was not warned of."""
        return self._cpu_s is not None or self._memory_bytes is not None

    def check(self) -> None:
        """Compare what the program has used with the limits."""
        found = read_stat(self._pid)
        if found is None:
            return
        if self._cpu_s is not None and found.cpu_s >= self._cpu_s * _PART:
            used, most = format_duration(found.cpu_s), format_duration(self._cpu_s)
            self._cpu_s = None
            self._warn(f"the program has used {used} of the {most} of CPU time that a process may {_ADVICE}")
        if self._memory_bytes is not None and (size := _address_space_bytes(self._pid)) >= self._memory_bytes * _PART:
            used, most = format_size(size), format_size(self._memory_bytes)
            self._memory_bytes = None
            self._warn(f"the program has used {used} of the {most} of address space that a process may {_ADVICE}")


_ADVICE = "use on this machine; 'monarch-hpc run --on host0' runs it on the allocation's first host"


def _address_space_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
