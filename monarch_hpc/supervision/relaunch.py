"""Agents that have died are started again: when, how often, and when no more. A machine without I/O.

An agent may be started only where Slurm says that its host is in the job and works; while Slurm does not answer, none
is. Attempts of all hosts share one limit.
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from dataclasses import field, replace

from monarch_hpc.core.dataclass import dataclass

__all__ = ["AskStanding", "GiveUp", "HostStanding", "LaunchAgent", "LaunchLimit", "Relaunches", "Step"]

_HOUR_S = 3600.0

_NUM_SOON = 4
"""Refusals during which a host is expected back within seconds: 30 s with the default backoff. A slurmctld that was
started again hears of its hosts within some ten."""


class HostStanding(enum.Enum):
    """What Slurm says of a host of the job."""

    UP = "it is in the job, and works"
    NOT_UP = "it is in the job, and does not work or does not answer"
    GONE = "it is not in the job any more, or the job ends"
    UNKNOWN = "Slurm does not answer"


@dataclass(frozen=True, slots=True)
class AskStanding:
    """Ask Slurm for the host's standing after a delay.

    Args:
        why: not at once; empty if at once.
        soon: whether the host may be back within seconds all the same.
    """

    delay_s: float
    why: str = ""
    soon: bool = False


@dataclass(frozen=True, slots=True)
class LaunchAgent:
    """Start the agent; *number* counts the attempts of a loss from 1, *ticket* is of this one alone."""

    number: int
    ticket: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The host stays lost."""

    why: str


Step = AskStanding | LaunchAgent | GiveUp


@dataclass(slots=True)
class _Absence:
    """A host without an agent.

    Attributes:
        num_started: number of attempts that count.
        num_refused: number of those that Slurm refused.
        num_asked: number of questions since the last attempt.
        ticket: that of the attempt that is under way; 0 for none.
    """

    num_started: int = 0
    num_refused: int = 0
    num_asked: int = 0
    ticket: int = 0


@dataclass(slots=True)
class LaunchLimit:
    """Limits on the attempts of an allocation; see config keys `heal.max_pending` and `heal.per_hour`."""

    max_pending: int
    per_hour: int
    _started: deque[float] = field(default_factory=deque)

    def problem(self, now_s: float, num_pending: int) -> str:
        """Return why no attempt may begin now; empty if one may."""
        while self._started and now_s - self._started[0] >= _HOUR_S:
            self._started.popleft()
        if num_pending >= self.max_pending:
            return f"{num_pending} other agents are being started (config key heal.max_pending)"
        if len(self._started) >= self.per_hour:
            return f"{len(self._started)} agents were started within an hour (config key heal.per_hour)"
        return ""

    def take(self, now_s: float) -> None:
        """Count an attempt."""
        self._started.append(now_s)

    def give_back(self) -> None:
        """Count the last attempt no more."""
        if self._started:
            self._started.pop()


class Relaunches:
    """Decides for each host without an agent what to do next.

    Args:
        tries: most attempts for one loss; config key `heal.tries`.
        backoff_s, backoff_max_s: config keys `heal.backoff_s` and `heal.backoff_max_s`.
    """

    def __init__(self, tries: int, backoff_s: float, backoff_max_s: float, limit: LaunchLimit) -> None:
        self._tries = tries
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._limit = limit
        self._absences: dict[int, _Absence] = {}
        self._tickets = itertools.count(1)

    @property
    def waiting(self) -> frozenset[int]:
        """Ranks of the hosts that may come back."""
        return frozenset(self._absences)

    def ticket(self, rank: int) -> int:
        """The ticket of the attempt that is under way for a host; 0 for none."""
        absence = self._absences.get(rank)
        return 0 if absence is None else absence.ticket

    def lose(self, rank: int, *, silent: bool = False) -> Step:
        """Handle the loss of a host's agent.

        Args:
            silent: whether the host itself is likely to be lost, which Slurm finds out later.
        """
        if not self._tries:
            return GiveUp("agents are not started again (config key heal.tries)")
        absence = self._absences[rank] = _Absence()
        return self._ask(absence, "") if silent else AskStanding(0.0)

    def answer(self, rank: int, standing: HostStanding, now_s: float) -> Step | None:
        """Handle Slurm's answer about a host; None if it is not waited for any more."""
        absence = self._absences.get(rank)
        if absence is None or absence.ticket:
            return None
        match standing:
            case HostStanding.GONE:
                return self._give_up(rank, standing.value)
            case HostStanding.NOT_UP | HostStanding.UNKNOWN:
                return self._ask(absence, standing.value)
            case HostStanding.UP:
                num_pending = sum(other.ticket > 0 for other in self._absences.values())
                problem = self._limit.problem(now_s, num_pending)
                if problem:
                    return self._ask(absence, problem)
                self._limit.take(now_s)
                absence.ticket = next(self._tickets)
                absence.num_started += 1
                absence.num_asked = 0
                return LaunchAgent(absence.num_started, absence.ticket)

    def fail(self, rank: int, ticket: int, cause: str, *, refused: bool = False) -> Step | None:
        """Handle the end of an attempt whose agent has not joined; None if it is not the present one.

        Args:
            refused: Slurm has not tried to start it, but may later. That uses up no attempt, like a silent Slurm.
        """
        absence = self._absences.get(rank)
        if absence is None or absence.ticket != ticket:
            return None
        absence.ticket = 0
        if refused:
            absence.num_started -= 1
            absence.num_refused += 1
            absence.num_asked = absence.num_refused - 1
            self._limit.give_back()
            why = f"Slurm starts no step for it yet: {cause}"
            return replace(self._ask(absence, why), soon=absence.num_refused <= _NUM_SOON)
        why = f"attempt {absence.num_started} of {self._tries}: {cause}"
        if absence.num_started >= self._tries:
            return self._give_up(rank, why)
        absence.num_asked = absence.num_started - 1  # the backoff goes on
        return self._ask(absence, why)

    def end(self, rank: int) -> None:
        """Forget a host: its agent has joined, or it is not wanted any more."""
        self._absences.pop(rank, None)

    def end_all(self) -> None:
        """Forget all hosts: the allocation ends."""
        self._absences.clear()

    def _give_up(self, rank: int, why: str) -> GiveUp:
        del self._absences[rank]
        return GiveUp(why)

    def _ask(self, absence: _Absence, why: str) -> AskStanding:
        delay_s = min(self._backoff_s * 2.0 ** min(absence.num_asked, 30), self._backoff_max_s)
        absence.num_asked += 1
        return AskStanding(delay_s, why)
