"""Breakages: what programs and their libraries do to their own process, and our code must not depend on."""

from __future__ import annotations

import _thread
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["close_descriptors", "freeze_time", "replace_waiting", "set_failing_hooks", "take_threading_away"]

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")


def freeze_time() -> None:
    """Let time stand still as freezegun does: in `time`, and in each module that has imported a function of it."""
    standing: dict[int, Callable[[], object]] = {}
    for name in _CLOCKS:
        real = getattr(time, name)
        # A moment before the epoch: some of our fields could not even take it.
        value = -1_000_000 if name.endswith("ns") else -1e-3
        standing[id(real)] = lambda value=value: value  # type: ignore[misc]  # bound now
        setattr(time, name, standing[id(real)])
    for module in list(sys.modules.values()):
        # As freezegun, which leaves these alone.
        if isinstance(module, ModuleType) and not module.__name__.startswith(("threading", "multiprocessing")):
            for name, value in list(vars(module).items()):
                if id(value) in standing:
                    setattr(module, name, standing[id(value)])


def close_descriptors(kind: str) -> None:
    """Close the descriptors of this process whose file has *kind* in its name."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if entry.is_symlink() and kind in os.readlink(entry):
            os.close(int(entry.name))


def fail(*_: object, **__: object) -> Any:
    """Take the place of any function."""
    raise RuntimeError("broken on purpose")


def take_threading_away() -> None:
    """Take away what a test of threads may replace in `threading`."""
    for name in (
        "Thread",
        "Lock",
        "RLock",
        "Condition",
        "Event",
        "current_thread",
        "get_ident",
        "main_thread",
        "local",
    ):
        setattr(threading, name, None)


def set_failing_hooks() -> None:
    """Set what profilers and debuggers set for later threads; here it raises."""
    threading.setprofile(fail)
    threading.settrace(fail)


def replace_waiting() -> None:
    """Replace what waits, as libraries of green threads do; their own works only in their loop, so here never."""

    class Green(socket.socket):
        __init__ = fail

    for module in (threading, _thread):
        for name in ("_start_new_thread", "start_new_thread"):
            setattr(module, name, lambda *_: 0)
    _thread.get_ident = lambda: 1
    _thread.allocate_lock = fail
    for name in ("epoll", "poll"):
        delattr(select, name)
    select.select = time.sleep = fail
    socket.socket = Green  # type: ignore[misc]
    socket.create_connection = socket.getaddrinfo = socket.socketpair = fail
