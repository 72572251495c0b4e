"""Finds and kills processes by their environment, so that nothing that procs started outlives them.

Killing a process group or session is not enough: daemons leave both. The environment is inherited for life unless a
process clears it; the orphans among those are found because the kernel reparents them to the agent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.machine.procfs import PROC, each_pid, read_environ, read_stat
from monarch_hpc.wire.start import COOKIE, HOST_COOKIE, MESH_COOKIE, RUN_COOKIE

__all__ = ["cookies", "find", "has_entries", "kill_matching", "kill_runs", "orphans", "sweep"]


def cookies(allocation: str, host: int | None = None, run: str | None = None) -> list[bytes]:
    """Return the environment entries that mark the processes of an allocation, of one host, of one run."""
    entries = [f"{COOKIE}={allocation}"]
    if host is not None:
        entries.append(f"{HOST_COOKIE}={host}")
    if run is not None:
        entries.append(f"{RUN_COOKIE}={run}")
    return [entry.encode() for entry in entries]


def has_entries(environ: bytes, entries: Collection[bytes]) -> bool:
    """Tell whether ``/proc/PID/environ`` holds all of *entries*."""
    if not all(entry in environ for entry in entries):
        return False
    present = set(environ.split(b"\0"))
    return all(entry in present for entry in entries)


def find(entries: Collection[bytes]) -> list[int]:
    """Return this user's processes whose environment holds all of *entries*, without this process and its ancestors."""
    return [pid for pid in _others() if has_entries(read_environ(pid) or b"", entries)]


def kill_matching(entries: Collection[bytes]) -> int:
    """Send SIGKILL to every process that `find` would return.

    Returns:
        The number of those processes, and of those within an exec, which may be others: 0 if nothing is left to do.
    """
    return sum(_kill(pid, entries) for pid in _others())


def kill_runs(allocation: str, host: int, runs: Iterable[str], kept: Iterable[int] = ()) -> Counter[str]:
    """Do the same as `kill_matching` for each of *runs* in one scan; return the number of processes by run.

    Args:
        kept: numbers of meshes whose procs, and what these have started, are spared.
    """
    common = cookies(allocation, host)
    wanted = {f"{RUN_COOKIE}={run}".encode(): run for run in runs}
    spared = {f"{MESH_COOKIE}={mesh}".encode() for mesh in kept}
    found: Counter[str] = Counter()
    for pid in _others():
        environ = read_environ(pid)
        if environ is None:
            found.update(wanted.values())
            continue
        entries = set(environ.split(b"\0"))
        for entry in wanted.keys() & entries if spared.isdisjoint(entries) else ():
            found[wanted[entry]] += _kill(pid, [*common, entry], spared)
    return found


def orphans(known: Collection[int]) -> list[int]:
    """Return the live children of this process that are not in *known*: orphans that the kernel reparented to it."""
    own = os.getpid()
    return [pid for pid in _others() if pid not in known and _is_live_child(pid, own)]


def sweep(entries: Collection[bytes], timeout_s: float) -> int:
    """Kill matching processes until none is left; return how many are left at the deadline.

    Blocks, so it must not be called from the engine's callbacks.
    """
    deadline = Deadline(timeout_s)
    while kill_matching(entries):
        if deadline.passed():
            return len(find(entries))
        time.sleep(0.005)
    return 0


def _others() -> Iterator[int]:
    spared = set(_ancestors())
    own_uid = os.geteuid()
    for pid in each_pid():
        if pid not in spared:
            with contextlib.suppress(OSError):  # the process has just ended
                # Root's procs may have become another user's, and a change of user clears PR_SET_PDEATHSIG.
                if own_uid == 0 or os.stat(f"{PROC}/{pid}").st_uid == own_uid:
                    yield pid


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid:
        yield pid
        found = read_stat(pid)
        pid = found.parent if found is not None else 0


def _is_live_child(pid: int, parent: int) -> bool:
    found = read_stat(pid)
    return found is not None and not found.has_ended and found.parent == parent


def _kill(pid: int, entries: Collection[bytes], spared: Set[bytes] = frozenset()) -> bool:
    """Kill a process that holds all of *entries* and none of *spared*; tell whether it must be looked at again."""
    first = read_environ(pid)
    if first is not None and not has_entries(first, entries):
        return False  # as most of a machine's processes
    try:
        # Before another look: the environment that is read and the process that is killed are then of the same process.
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        environ = read_environ(pid)
        if environ is None:
            return True
        if not has_entries(environ, entries) or not spared.isdisjoint(environ.split(b"\0")):
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
