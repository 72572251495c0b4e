"""The end of a program's part in its allocation, before the program itself ends."""

from __future__ import annotations

import math

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.mesh.program.controller import Controller

__all__ = ["shutdown_context"]


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """End all that this program started: actors, procs, and the allocation where it ends with the program.

    It happens at the end of the program by itself. Where there is nothing to end, nothing happens; so too in a proc.

    Args:
        host_timeout: seconds, checked only: procs have those of config key `procs.stop_s`.

    Returns:
        A future that is done: it has happened when this returns.

    Raises:
        ValueError: *host_timeout* is negative, or no number.
    """
    if host_timeout is not None and not (math.isfinite(host_timeout) and host_timeout >= 0):
        raise ValueError(f"host_timeout is {host_timeout}; give seconds, 0 or more")
    Controller.close_any()
    return completed(None)
