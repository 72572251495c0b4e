"""Faults of processes, done from outside: stopped, short of memory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from monarch_hpc.testing.waiting import wait_until

__all__ = ["alive", "memory_group", "stopped"]

_MEMORY = Path("/sys/fs/cgroup/memory")
"""Control groups of version 1; those of version 2 do not let processes into a group beside other groups."""


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    return _state(f"/proc/{pid}/stat") not in "ZX"


def _stands_still(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return all(_state(f"/proc/{pid}/task/{thread}/stat") in "tTZX" for thread in threads)
    except OSError:
        return True  # it has ended


def _state(path: str) -> str:
    try:
        return Path(path).read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes by SIGSTOP; those that are left go on when the context ends.

    All their threads stand still when it begins: the kernel stops those that run a moment after the signal.
    """
    done: list[int] = []
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            done.append(pid)
        wait_until("the processes to stand still", lambda: all(map(_stands_still, done)), interval_s=0.001)
        yield
    finally:
        for pid in done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Callable[[int], None]]:
    """Make a memory control group, in which the kernel kills what takes more than *limit_bytes* in all.

    Yields:
        A function that moves a process into the group; memory that it has already stays where it counts.

    Raises:
        OSError: no group can be made here.
    """
    group = _MEMORY / f"monarch-hpc-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))

        def add(pid: int) -> None:
            (group / "cgroup.procs").write_text(str(pid))

        yield add
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(member)
        group.rmdir()
