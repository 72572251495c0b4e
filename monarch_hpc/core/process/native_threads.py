"""The threads of this process as the kernel sees them, also those that a library has started."""

from __future__ import annotations

import os
import threading
import time

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.machine.procfs import parse_stat

__all__ = ["thread_ids", "wait_until_asleep"]

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
