"""The table of the hosts' clocks, which `monarch-hpc status --clocks` shows."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.schema import Table

__all__ = ["CLOCKS", "HostClock"]


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clock of one host, compared with that of the head's host."""

    host: Annotated[str, "name of the host"]
    ahead_us: Annotated[float, "how far its clock of the day is ahead of that of the head's host, in microseconds"]
    error_us: Annotated[float, "upper bound on the error of that, in microseconds; -1 if it has not been compared"]
    round_trip_us: Annotated[float, "the shortest round trip of the comparison, in microseconds"]
    age_s: Annotated[float, "time since the comparison, in seconds"]
    num_exchanges: Annotated[int, "messages exchanged for comparisons so far"]


CLOCKS = Table("clocks", HostClock, "Clocks of hosts, compared with that of the head's host.")
