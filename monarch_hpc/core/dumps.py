"""Core dumps, which hold an allocation's key: none of our own processes; those of users' processes as they want them.

Only the soft limit is lowered, so that users' processes can have theirs back. The process stays dumpable for the kernel
(PR_SET_DUMPABLE): else its own user could not read its ``/proc``, which finds leftovers and serves debuggers.
"""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Iterator

__all__ = ["allow_core_dumps", "forbid_core_dumps", "usual_core_dumps"]

_NONE_BYTES = 1
"""Not 0, which the kernel does not heed where it pipes core dumps to a program; with 1 it starts none."""

_lock = threading.Lock()
_usual_bytes: int | None = None
"""The soft limit that this process was started with; None where dumps were not forbidden."""


def forbid_core_dumps() -> None:
    """Leave no core dump of this process, nor of what it forks."""
    global _usual_bytes
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        if _usual_bytes is None:
            _usual_bytes = soft
        _set(_NONE_BYTES if hard == resource.RLIM_INFINITY else min(_NONE_BYTES, hard))


def allow_core_dumps() -> None:
    """Undo `forbid_core_dumps`, in a forked process that runs a user's code."""
    global _usual_bytes
    if _usual_bytes is not None:
        _set(_usual_bytes)
        _usual_bytes = None


@contextlib.contextmanager
def usual_core_dumps() -> Iterator[None]:
    """Let a process that is started in this context have the limit that this process was started with."""
    if _usual_bytes is None:
        yield
        return
    with _lock:
        forbidden = resource.getrlimit(resource.RLIMIT_CORE)[0]
        _set(_usual_bytes)
        try:
            yield
        finally:
            _set(forbidden)


def _set(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (soft, resource.getrlimit(resource.RLIMIT_CORE)[1]))
