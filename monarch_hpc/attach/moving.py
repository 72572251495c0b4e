"""Lets the hosts of an unused allocation join another one: asks its head, decides the move, and ends its agents."""

from __future__ import annotations

from monarch_hpc.attach.head.orders import shut_down
from monarch_hpc.attach.head.status import query_status
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError, TransportError
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
    if problem := move_refusal(allocations.registry, home, other) or _use(other):
        raise AllocationError(other.name, problem)
    job = decide_move(config, allocations.registry, home, other)
    failpoint("move.recorded")
    try:
        shut_down(other.directory, config.procs.stop_s)
    except (TransportError, OSError) as error:
        return job, str(error)
    return job, ""


def _use(other: AllocationRecord) -> str:
    """Say what uses an allocation; empty if nothing does."""
    try:
        head = query_status(other.directory, _ASK_S)
    except (TransportError, OSError) as error:
        return f"cannot be asked whether it is used: {error}"
    if head is None:
        return "has no head that could say whether it is used; see 'monarch-hpc status'"
    if head["runs"]:
        runs = ", ".join(str(run.get("run")) for run in head["runs"])
        return f"is used by run {runs}; its hosts can move once that is over"
    if head["kept"]:
        return f"keeps mesh {head['kept'][0]['name']}; 'monarch-hpc mesh stop' frees it"
    return ""
