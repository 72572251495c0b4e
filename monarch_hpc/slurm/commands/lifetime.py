"""The lifetime of a command of Slurm's: it ends with the process that has started it, and by no SIGTERM before."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

from monarch_hpc.core.process.dumps import allow_core_dumps

__all__ = ["live_as_parent"]

_PR_SET_PDEATHSIG = 1


def live_as_parent() -> Callable[[], None]:
    """Return the function that a child runs before exec, so that it ends with this process, and by no SIGTERM before.

    Slurm may send SIGTERM to all processes of a job: a command that ends its own job must still get its exit status.
    """
    # Loaded before the fork: the child must not take the loader's lock.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arrange() -> None:
        # A job inherits the resource limits of the process that submits it.
        allow_core_dumps()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return arrange
