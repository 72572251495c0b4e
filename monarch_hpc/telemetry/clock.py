"""Compares this host's clock with that of the head's host: exchanges of messages, of which the fastest counts. Pure.

Records are in local time (CLOCK_MONOTONIC), and are corrected when they are read: a correction that gets better does so
for older records, too.
"""

from __future__ import annotations

from collections.abc import Callable
from time import CLOCK_REALTIME, clock_gettime_ns

from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.clocks import AskClock, ClockTold
from monarch_hpc.wire.tables.clocks import HostClock

__all__ = ["ClockComparison", "Correction", "realtime_ns", "uncompared"]

_DRIFT = 50e-6
"""Allowance for the difference in speed of two clocks: quartz is within 20 ppm, and NTP slews a little more."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What turns local time of records into time by the head's clock.

    Args:
        offset_ns: to be added to CLOCK_MONOTONIC for Unix time.
        error_us: upper bound on the error; -1 if it is unknown.
    """

    offset_ns: int
    error_us: float


@dataclass(frozen=True, slots=True)
class _Exchange:
    offset_ns: int
    round_trip_ns: int
    at_ns: int

    def error_ns(self, now_ns: int) -> float:
        return self.round_trip_ns / 2 + max(now_ns - self.at_ns, 0) * _DRIFT


def realtime_ns() -> int:
    """The clock of the day, in nanoseconds of Unix time."""
    return max(clock_gettime_ns(CLOCK_REALTIME), 0)  # tests replace `time.time_ns`


def uncompared() -> Correction:
    """The correction where only the clock of the process's own host is available."""
    return Correction(realtime_ns() - monotonic_ns(), -1.0)


class ClockComparison:
    """One host's part in comparing clocks. All methods must be called from one thread.

    Args:
        host: name of this host.
        num_exchanges: config key `telemetry.clock_exchanges`.
        interval_s: config key `telemetry.clock_interval_s`.
        send: sends a message to the head.
        later: runs a callback after a delay in seconds.
        now_ns: CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        host: str,
        num_exchanges: int,
        interval_s: float,
        send: Callable[[AskClock], None],
        later: Callable[[float, Callable[[], None]], object],
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._host = host
        self._num_exchanges = num_exchanges
        self._interval_s = interval_s
        self._send = send
        self._later = later
        self._now_ns = now_ns
        self._kept: _Exchange | None = None
        self._best: _Exchange | None = None  # of this round
        self._asked_ns: dict[int, int] = {}  # at most one exchange is in flight
        self._ticket = 0
        self._left = 0

    def start(self) -> None:
        """Begin a round of exchanges, and later ones at the interval; answers to an earlier round no longer count."""
        self._left = self._num_exchanges
        self._best = None
        self._ask()
        self._later(self._interval_s, self.start)

    def _ask(self) -> None:
        self._left -= 1
        self._ticket += 1
        self._asked_ns = {self._ticket: self._now_ns()}
        self._send(AskClock(self._ticket))

    def take(self, told: ClockTold) -> None:
        """Handle the head's answer."""
        now_ns = self._now_ns()
        asked_ns = self._asked_ns.pop(told.ticket, None)
        if asked_ns is None:
            return
        exchange = _Exchange(told.realtime_ns - (asked_ns + now_ns) // 2, now_ns - asked_ns, now_ns)
        if self._best is None or exchange.round_trip_ns < self._best.round_trip_ns:
            self._best = exchange
        if self._kept is None or self._best.error_ns(now_ns) <= self._kept.error_ns(now_ns):
            self._kept = self._best
        if self._left > 0:
            self._ask()

    def correction(self) -> Correction:
        """The present correction."""
        kept, now_ns = self._kept, self._now_ns()
        return uncompared() if kept is None else Correction(kept.offset_ns, kept.error_ns(now_ns) / 1000)

    def row(self) -> HostClock:
        """This host's row of the table of clocks."""
        kept, now_ns = self._kept, self._now_ns()
        if kept is None:
            return HostClock(self._host, 0.0, -1.0, 0.0, 0.0, self._ticket)
        ahead_ns = realtime_ns() - (now_ns + kept.offset_ns)
        return HostClock(
            self._host,
            round(ahead_ns / 1000, 1),
            round(kept.error_ns(now_ns) / 1000, 1),
            round(kept.round_trip_ns / 1000, 1),
            round((now_ns - kept.at_ns) * 1e-9, 3),
            self._ticket,
        )
