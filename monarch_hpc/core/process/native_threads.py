"""The threads of this process as the kernel sees them, also those that a library has started."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.machine.procfs import parse_stat

__all__ = ["thread_frames", "thread_ids", "wait_until_asleep"]

_TASKS = "/proc/self/task"

_LOOK_S = 0.005
"""Time between two looks. A thread that waits for the interpreter sleeps, too, and gets its turn meanwhile: it is the
length of such a turn (`sys.getswitchinterval`)."""

_LOOKS = 3
"""Looks in a row that find all other threads asleep, before they count as idle."""


def wait_until_asleep(limit_s: float) -> bool:
    """Wait until no other thread of this process has work, at most for *limit_s*; return whether none has.

    The interpreter ends a thread that asks for it while it shuts down, and if C++ code of a library asks, this ends the
    process: "terminate called without an active exception". A thread that finishes something when the program ends,
    and then lets go of an object, has done so before it sleeps.
    """
    deadline = Deadline(limit_s)
    asleep = 0
    while asleep < _LOOKS:
        others = [state for thread, state in _states() if thread != threading.get_native_id()]
        if not others:
            return True
        asleep = asleep + 1 if all(state == "S" for state in others) else 0
        if deadline.passed():
            return False
        time.sleep(_LOOK_S)
    return True


def thread_ids() -> set[int]:
    """The ids of all threads."""
    return {int(name) for name in os.listdir(_TASKS)}


def thread_frames() -> dict[int, FrameType]:
    """The frame of each thread that the interpreter knows, by its `threading.get_ident`.

    Empty once code in C has ended a thread of Python by itself, as `pthread_exit` does: the interpreter, up to 3.12,
    would look for its frame on the stack that it had, which ends the process by SIGSEGV.
    """
    lost = _started() - thread_ids()
    if lost & _started():  # those that ended by themselves meanwhile have left the list
        return {}
    return sys._current_frames()


def _started() -> set[int]:
    """The kernel's ids of the threads that `threading` has started; the main one has its parent's after a fork."""
    main = threading.main_thread()
    return {
        thread.native_id
        for thread in threading.enumerate()
        # A dummy stands for a thread of other origin, and may outlive it.
        if not (thread is main or thread.native_id is None or isinstance(thread, threading._DummyThread))
    }


def _states() -> list[tuple[int, str]]:
    """The id and the state of each thread, by the kernel's letters: ``R`` runs or could, ``S`` sleeps."""
    found = []
    for name in os.listdir(_TASKS):
        try:
            with open(f"{_TASKS}/{name}/stat", "rb") as file:
                stat = parse_stat(file.read())
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if stat is not None:
            found.append((int(name), stat.state))
    return found
