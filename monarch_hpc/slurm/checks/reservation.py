"""Fits a request into a reservation: its members, its window, its hosts.

Pure: Slurm's answer and the clock are arguments.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.slurm.commands.cluster import Reservation
from monarch_hpc.slurm.commands.fields import parse_time

__all__ = ["Fit", "Requester", "find_reservation", "fit_reservation"]

# Slurm keeps a job pending whose limit exceeds the reservation's end. The job starts within a minute or so of its
# request, and is given its full limit from then on.
_MARGIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Requester:
    """The person who asks: name, groups, and the account that the job names, if any."""

    user: str
    groups: frozenset[str]
    account: str | None


@dataclass(frozen=True, slots=True)
class Fit:
    """What becomes of a request in a reservation.

    Args:
        time_min: the time limit that fits, in minutes.
        opens: when the reservation begins, as Slurm prints it; empty if it has begun.
        notes: sentences for the user.
    """

    time_min: int
    opens: str
    notes: tuple[str, ...]


def find_reservation(reservations: Sequence[Reservation], name: str) -> Reservation:
    """Return the reservation of this name.

    Raises:
        ConfigError: there is none.
    """
    for found in reservations:
        if found.name == name:
            return found
    known = ", ".join(f"{found.name} from {found.start} to {found.end}" for found in reservations)
    raise _error(name, f"there is no such reservation; there are: {known}" if known else "there are no reservations")


def fit_reservation(
    found: Reservation, requester: Requester, time_min: int, num_hosts: str, num_free: int | None, now_s: float
) -> Fit:
    """Fit a request into a reservation.

    Args:
        found: the reservation.
        requester: who asks.
        time_min: the wanted time limit, in minutes.
        num_hosts: number of hosts, as Slurm takes it (``4``, ``2-4``).
        num_free: number of its nodes that no job uses; None if unknown.
        now_s: seconds since the epoch.

    Raises:
        ConfigError: the reservation is for others, over, about to end, or too small.
    """
    _check_member(found, requester)
    match = re.match(r"\d+", num_hosts)
    num = int(match[0]) if match else 1
    # A flexible reservation also gives hosts, and time, outside of its own.
    if "FLEX" in found.flags.split(","):
        return Fit(time_min, "", ())
    if found.num_nodes and num > found.num_nodes:
        raise _error(found.name, f"it has {found.num_nodes} hosts, and {num} were requested; ask for less with -N")
    notes: list[str] = []
    start_s, end_s = parse_time(found.start), parse_time(found.end)
    opens = found.start if start_s is not None and start_s > now_s else ""
    if end_s is not None:
        left_min = int((end_s - _MARGIN_S - max(now_s, start_s or now_s)) // 60)
        if left_min < 1:
            late = "is over since" if end_s <= now_s else "ends at"
            left = "" if end_s <= now_s else f", in {format_duration(end_s - now_s)}: too little for a job"
            raise _error(found.name, f"it {late} {_moment(found.end, now_s)}{left}")
        if left_min < time_min:
            notes.append(
                f"the time limit is {left_min} min instead of {time_min}: reservation {found.name} ends at "
                f"{_moment(found.end, now_s)}, and {_MARGIN_S / 60:.0f} min are left for the start"
            )
            time_min = left_min
    if opens:
        notes.append(f"reservation {found.name} begins at {_moment(opens, now_s)}; the job waits until then")
    elif num_free is not None and num > num_free:
        notes.append(f"{num_free} of the {found.num_nodes} hosts of reservation {found.name} are free; the job waits")
    return Fit(time_min, opens, tuple(notes))


def _check_member(found: Reservation, requester: Requester) -> None:
    lists = (
        ("user", found.users, {requester.user}),
        ("group", found.groups, set(requester.groups)),
        ("account", found.accounts, {requester.account} if requester.account else set()),
    )
    allowed: list[str] = []
    for kind, text, mine in lists:
        names = [name for name in text.split(",") if name]
        denied = mine & {name[1:] for name in names if name.startswith("-")}
        if denied:
            raise _error(found.name, f"it is closed to {kind} {', '.join(sorted(denied))}")
        named = [name for name in names if not name.startswith("-")]
        if mine & set(named):
            return
        if named:
            allowed.append(f"{kind}s {', '.join(named)}")
    if found.accounts and requester.account is None:
        return  # Slurm knows the default account, and decides
    if allowed:
        account = f" with account {requester.account}" if requester.account else ""
        raise _error(found.name, f"it is for {' and '.join(allowed)}, not for {requester.user}{account}")


def _moment(text: str, now_s: float) -> str:
    """Shorten Slurm's ``2026-11-21T13:37:17``: no seconds, and no date if it is today."""
    day, _, hour = text.partition("T")
    today = time.strftime("%Y-%m-%d", time.localtime(now_s))
    return hour[:5] if day == today else f"{day} {hour[:5]}"


def _error(name: str, problem: str) -> ConfigError:
    return ConfigError("slurm.reservation", name, "scontrol show reservation", problem)
