"""Forbids core dumps of our own processes, since they would contain an allocation's key; users' processes keep theirs.

Only the soft limit is lowered, so that users' processes can restore it. The process stays dumpable for the kernel
(PR_SET_DUMPABLE): otherwise its own user could not read its ``/proc``, which debuggers and the search for leftover
processes need.
"""

from __future__ import annotations

import contextlib
import resource
from _thread import allocate_lock
from collections.abc import Iterator

__all__ = ["allow_core_dumps", "forbid_core_dumps", "usual_core_dumps"]

_NONE_BYTES = 1
"""Not 0: where core dumps are piped to a program, the kernel ignores a limit of 0; with 1 it starts no program."""

_lock = allocate_lock()
_usual_bytes: int | None = None
"""The soft limit that this process was started with; None while dumps are not forbidden."""


def forbid_core_dumps() -> None:
    """Disable core dumps of this process and of its forked children."""
    global _usual_bytes
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        if _usual_bytes is None:
            _usual_bytes = soft
        _set(_NONE_BYTES if hard == resource.RLIM_INFINITY else min(_NONE_BYTES, hard))


def allow_core_dumps() -> None:
    """Undo `forbid_core_dumps` in a forked process that runs user code."""
    global _usual_bytes
    if _usual_bytes is not None:
        _set(_usual_bytes)
        _usual_bytes = None


@contextlib.contextmanager
def usual_core_dumps() -> Iterator[None]:
    """Give processes started in this context the limit that this process was started with."""
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
