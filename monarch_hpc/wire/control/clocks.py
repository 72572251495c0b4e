"""Messages that compare the clocks of hosts, see `telemetry.clock`."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["AskClock", "ClockTold"]


@dataclass(frozen=True, slots=True)
class AskClock(Message):
    """Agent to head: what time is it? *ticket* is the agent's number of the exchange."""

    ticket: int


@dataclass(frozen=True, slots=True)
class ClockTold(Message):
    """Head to agent: the clock of the head's host, in nanoseconds of Unix time."""

    ticket: int
    realtime_ns: int
