"""Lets a process that is to end with its input do so when its parent dies, though it is stopped itself."""

from __future__ import annotations

import ctypes
import signal

__all__ = ["continue_at_parents_death"]

_PR_SET_PDEATHSIG = 1


def continue_at_parents_death() -> None:
    """Have the kernel send this process SIGCONT when its parent dies.

    A process that a signal has stopped does not see that its input has ended: it, and all it has to end, would stay.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
