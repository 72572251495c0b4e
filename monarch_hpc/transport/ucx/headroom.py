"""Checks that this process has room for UCX: memory, descriptors and threads.

Where one of them is short, loading UCX and starting it end the process: libnuma, which it loads, exits or crashes, and
libucs asserts that its own thread has started (`ucs_async_thread_start`, in 1.13.1 and in 1.22.0).
"""

from __future__ import annotations

import os
import resource
from _thread import allocate_lock
from pathlib import Path

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.text.units import format_size

__all__ = ["ROOM_BYTES", "find_memory_shortage", "find_shortage"]

ROOM_BYTES = 512 << 20
"""Address space that must be free. Loading takes 75 MiB, the start 25 MiB and the stacks of two threads; the rest is
for peers, a few MiB each, and for what the program maps meanwhile."""

_ROOM_DESCRIPTORS = 64
"""Descriptors that must be free: the start takes 17, a peer over tcp one."""

_ROOM_THREADS = 4
"""Threads that must be possible: UCX has one, the binding has one, and the program may start others meanwhile."""


def find_shortage() -> str:
    """Return why UCX must not be loaded or started in this process now; empty if it may.

    Other threads may use up what is found free here before UCX asks for it; the margins are made for that.
    """
    return _find_memory_shortage() or _find_descriptor_shortage() or _find_thread_shortage()


def find_memory_shortage(statm: str, page_bytes: int, space_bytes: int, data_bytes: int) -> str:
    """Return which limit leaves too little memory; empty if none does.

    Args:
        statm: contents of /proc/self/statm.
        page_bytes: size of its pages.
        space_bytes: the limit of the address space, negative for none.
        data_bytes: the limit of private writable memory, negative for none.
    """
    sizes = [int(pages) * page_bytes for pages in statm.split()]
    for limit_bytes, used_bytes, flag in ((space_bytes, sizes[0], "v"), (data_bytes, sizes[5], "d")):
        if 0 <= limit_bytes < used_bytes + ROOM_BYTES:
            left = format_size(max(limit_bytes - used_bytes, 0))
            return (
                f"UCX needs {format_size(ROOM_BYTES)} of memory that may be mapped, and the limit of "
                f"{format_size(limit_bytes)} (ulimit -{flag}) leaves {left}"
            )
    return ""


def _find_memory_shortage() -> str:
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    statm = Path("/proc/self/statm").read_text()
    return find_memory_shortage(statm, resource.getpagesize(), *limits)


def _find_descriptor_shortage() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 0:
        return ""
    # The limit is one of numbers: descriptors above it, from before it was lowered, take no room.
    num_free = limit - sum(int(name) < limit for name in os.listdir("/proc/self/fd"))
    if num_free >= _ROOM_DESCRIPTORS:
        return ""
    return (
        f"UCX needs {_ROOM_DESCRIPTORS} free file descriptors, and the limit of {limit} (ulimit -n) leaves {num_free}"
    )


def _find_thread_shortage() -> str:
    over = allocate_lock()
    over.acquire()

    def wait() -> None:
        with over:
            pass

    threads = []
    try:
        for _ in range(_ROOM_THREADS):
            threads.append(Thread(wait))
    except RuntimeError as error:
        return (
            f"UCX needs {_ROOM_THREADS} more threads, and a limit (ulimit -u, a cgroup) leaves {len(threads)}: {error}"
        )
    finally:
        over.release()
        for thread in threads:
            thread.join()
    return ""
