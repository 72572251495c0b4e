"""Ends a program's use of its allocation before the program itself ends."""

from __future__ import annotations

import math

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.mesh.program.controller import Controller

__all__ = ["shutdown_context"]


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End everything that this program started: actors, procs, and the allocation if it ends with the program.

    The end of the program does the same. Does nothing in a proc, or if the program has no allocation.

    Args:
        host_timeout: seconds; checked, but not used: procs have `procs.stop_s` (config key) to end.

    Returns:
        A future that is done already: the call blocks until everything has ended.

    Raises:
        TypeError: *host_timeout* is not a number.
        ValueError: *host_timeout* is negative, infinite or NaN.
    """
    if host_timeout is not None and not (math.isfinite(host_timeout) and host_timeout >= 0):
        raise ValueError(f"host_timeout is {host_timeout}; give seconds, 0 or more")
    Controller.close_any()
    return completed(None)
