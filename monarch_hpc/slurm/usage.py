"""Time and node-hours of an allocation and of its reservation. Pure: Slurm's answers and the clock are arguments."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm.commands.cluster import Reservation
from monarch_hpc.slurm.commands.fields import parse_time
from monarch_hpc.slurm.commands.jobs import JobDetail

__all__ = ["JobUsage", "ReservationUsage", "idle_warning", "measure_job", "measure_reservation"]

# Sites that cancel an idle reservation count its hosts in jobs; less than half is idle.
_IDLE_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class JobUsage:
    """What a job has taken.

    Args:
        num_hosts: its hosts.
        used_s: time since its start; 0 while it waits.
        left_s: time to its end; None while it waits.
        node_hours: hosts times hours so far.
        node_hours_at_end: the same if it runs to its time limit; None while it waits.
        reservation: the name of its reservation; empty if it has none.
    """

    num_hosts: int
    used_s: float
    left_s: float | None
    node_hours: float
    node_hours_at_end: float | None
    reservation: str


@dataclass(frozen=True, slots=True)
class ReservationUsage:
    """What is used of a reservation, all of which is charged.

    Args:
        num_used: its hosts in jobs, of anybody; None if unknown.
        left_s: time to its end.
        node_hours: hosts times hours of its window so far.
        idle_s: longest time for which less than half of it may have been in use; 0 if at least half is.
    """

    name: str
    num_hosts: int
    num_used: int | None
    left_s: float
    node_hours: float
    idle_s: float


def measure_job(detail: JobDetail, now_s: float) -> JobUsage:
    """Return what a job has taken until *now_s*, seconds since the epoch."""
    start_s, end_s = parse_time(detail.start), parse_time(detail.end)
    if start_s is None or not detail.hosts or start_s > now_s:
        return JobUsage(detail.num_hosts, 0.0, None, 0.0, None, detail.reservation)
    ended_s = now_s if end_s is None else min(now_s, end_s)
    used_s = ended_s - start_s
    at_end = None if end_s is None else detail.num_hosts * (end_s - start_s) / 3600
    left_s = None if end_s is None else max(0.0, end_s - now_s)
    return JobUsage(detail.num_hosts, used_s, left_s, detail.num_hosts * used_s / 3600, at_end, detail.reservation)


def measure_reservation(
    found: Reservation, num_free: int | None, busy_s: float | None, now_s: float
) -> ReservationUsage:
    """Return what is used of a reservation.

    Args:
        num_free: number of its hosts in no job; None if unknown.
        busy_s: when half of it was last seen in use, in seconds since the epoch; None if never.
        now_s: now, by the same clock.
    """
    start_s, end_s = parse_time(found.start) or now_s, parse_time(found.end) or now_s
    num_used = None if num_free is None else found.num_nodes - num_free
    idle_s = 0.0
    # It is not watched in between: it may have been idle ever since.
    if num_used is not None and num_used < _IDLE_BELOW * found.num_nodes and start_s < now_s:
        idle_s = now_s - max(start_s, busy_s or 0.0)
    elapsed_s = max(0.0, min(now_s, end_s) - start_s)
    node_hours = found.num_nodes * elapsed_s / 3600
    return ReservationUsage(found.name, found.num_nodes, num_used, max(0.0, end_s - now_s), node_hours, idle_s)


def idle_warning(usage: ReservationUsage, limit_min: int | None) -> str:
    """Return the warning due at half of the site's limit for idle reservations; empty if none is."""
    if limit_min is None or usage.idle_s < limit_min * 60 / 2:
        return ""
    return (
        f"{usage.num_used} of {usage.num_hosts} hosts of reservation {usage.name} are in use, and up to "
        f"{format_duration(usage.idle_s)} long it was less than half: after {limit_min} min the site cancels it, and "
        "charges all of it"
    )
