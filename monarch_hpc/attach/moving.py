"""Lets the hosts of an unused allocation join another one: asks its head, decides the move, and ends its agents."""

from __future__ import annotations

import contextlib

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.head.orders import shut_down, vacate
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.slurm import AllocationRecord, Allocations, decide_move, move_refusal

__all__ = ["move_hosts"]

_ASK_S = 8.0


def move_hosts(
    config: Config, allocations: Allocations, home: AllocationRecord, other: AllocationRecord
) -> tuple[AllocationRecord, str]:
    """Let the hosts of *other* join *home*; return the record of its job, and why its agents were not told, if so.

    Raises:
        AllocationError: they cannot, or something uses *other*.
    """
    if problem := move_refusal(allocations.registry, home, other):
        raise AllocationError(other.name, problem)
    with contextlib.closing(HeadClient(other.directory)) as head:
        use = vacate(head, _ASK_S)
        if use is None:
            use = "has no head that could say whether it is used; see 'monarch-hpc status'"
        if use:
            raise AllocationError(other.name, use)
        job = decide_move(config, allocations.registry, home, other)
        failpoint("move.recorded")
        told = shut_down(head, config.procs.stop_s)
    return job, "" if told is not None else "its head did not answer"
