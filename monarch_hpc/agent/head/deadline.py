"""The end of the job at the head: gives programs notice of it, and time after SIGTERM to act on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.agent.head.hosts.losses import AskSlurm
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.allocation import AllocationEnds
from monarch_hpc.wire.control.deadline import (
    SIGTERM,
    TIME_LIMIT,
    AwaitDeadline,
    DeadlineMet,
    DeadlineNear,
    JobEnd,
    SetJobEnd,
)

__all__ = ["HeadDeadline", "Later"]

_RESERVE_SHARE = 0.5
"""Largest part of the time after SIGTERM that the procs' own end may take from the programs' hooks."""

_RESERVE_S = 1.0
"""Time that agents need to end beyond `procs.stop_s`, which their procs have: to sweep their host and to report."""

_LATE_S = 60.0
"""Slurm ends a job up to 30 s after its time limit, and sends SIGTERM again at the end of a preemption's grace time. A
SIGTERM within this time of an end that programs had notice of is no other deadline."""

_ALONE_S = 3.0
"""Time between the first and the last agent's SIGTERM when Slurm ends a job: its daemons pass it on as a tree, and
hosts whose processes all end at once are busy. An agent taken for the only one would be missing when programs save."""

_log = Logger(__name__)


class _Timer(Protocol):
    def cancel(self) -> object: ...


Later = Callable[[float, Callable[[], None]], _Timer]
"""Runs a callback after a delay in seconds."""

Resign = Callable[[float, Death | None, Callable[[], None]], bool]
"""Ends only the hosts of the head's own job, where others stay; returns False if the allocation ends with them."""


@dataclass(frozen=True, slots=True)
class _Notice:
    end_s: float
    cause: str


class HeadDeadline:
    """Decides when programs get notice of the end, and when the agents end after SIGTERM. It does no I/O.

    Args:
        state: the head's state, which has the programs.
        peers: their links.
        clock: monotonic time in seconds.
        later: runs a callback after a delay in seconds.
        end: ends the allocation's agents, whose procs have the given number of seconds, because of the given death.
        ask: asks Slurm why it ends the job.
        prepare, resign: `begin` and `take` of the head's `agent.head.hosts.resignation.Resignation`.
        notice_s: config key `slurm.notice_s`.
        now_s: the time of day, in seconds since the epoch.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        clock: Callable[[], float],
        later: Later,
        end: Callable[[float, Death | None], None],
        ask: AskSlurm,
        notice_s: float,
        prepare: Callable[[], None],
        resign: Resign,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._later = later
        self._state = state
        self._peers = peers
        self._end = end
        self._ask = ask
        self._prepare = prepare
        self._resign = resign
        self._why: Death | None = None
        self._answered = False
        self._now_s = now_s
        self._longest_notice_s = notice_s
        self._settled = False
        self._end_s: float | None = None
        self._longest_s = 0.0
        self._notice: _Notice | None = None
        self._timer: _Timer | None = None
        self._awaiting: list[Link] = []
        self._busy: list[Link] = []
        self._ending_s: float | None = None

    # ---- what Slurm says ----

    def on_job_end(self, left_s: float | None) -> None:
        """Slurm ends the job in *left_s* seconds; None if that cannot be learned."""
        self._settled = True
        if left_s is not None:
            self._end_s = self._clock() + left_s
            self._longest_s = max(self._longest_s, left_s)
            if self._notice is not None and left_s > self._notice_s and self._ending_s is None:
                self._notice = None  # it was extended
            self._arm()
        for link in self._members():
            self.report(link)

    def on_warning(self) -> None:
        """Slurm has sent the batch script the signal of `--signal`; it decides only where the end is unknown."""
        if self._end_s is None and self._notice is None:
            self._give_notice(self._longest_notice_s, TIME_LIMIT)

    def on_sigterm(self, grace_s: float, stop_s: float) -> None:
        """Slurm ends the job: it kills all processes in *grace_s* seconds, of which procs need *stop_s* to end.

        The agents end at once unless a program awaits this, and otherwise when all such programs are done, or in time
        for their procs to end.
        """
        if self._ending_s is not None:
            return
        self._prepare()
        reserve_s = min(stop_s + _RESERVE_S, grace_s * _RESERVE_SHARE)
        stop_s = min(stop_s, reserve_s)
        self._ending_s = stop_s
        known = self._notice is not None and self._notice.end_s <= self._clock() + grace_s + _LATE_S
        if not known and self._awaiting:
            _log.info("SIGTERM: programs have %.0f s to handle it", grace_s - reserve_s)
            self._give_notice(grace_s - reserve_s, SIGTERM)
        if known:
            self._why = Death(DeathKind.TIME_LIMIT, "the job reaches its time limit")
        self._later(grace_s - reserve_s, lambda: self._finish(stop_s))
        self._ask("", self._on_why)

    def _on_why(self, death: Death | None) -> None:
        """Slurm has said why it ends the job, or will not."""
        self._why, self._answered = death or self._why, True
        self._end_if_handled()

    def on_agent(self, dismiss: Callable[[], None], *, together: bool) -> None:
        """An agent got SIGTERM: *dismiss* it, unless the head gets one, too, and ends all agents *together*."""

        def dismiss_alone() -> None:
            if self._ending_s is None or not together:
                dismiss()

        self._later(_ALONE_S, dismiss_alone)

    # ---- programs ----

    def report(self, link: Link) -> None:
        """Send the time left, if it was asked for already."""
        if self._settled:
            link.send(JobEnd(-1.0 if self._end_s is None else max(self._end_s - self._clock(), 0.0)))

    def on_client(self, link: Link, message: SetJobEnd | AwaitDeadline | DeadlineMet) -> None:
        """Handle the message of a program or a tool."""
        match message:
            case SetJobEnd():
                self.on_job_end(max(message.end_s - self._now_s(), 0.0))
                self.report(link)
            case AwaitDeadline():
                if link not in self._awaiting:
                    self._awaiting.append(link)
                    if self._notice is not None and self._notice.end_s > self._clock():
                        self._busy.append(link)
                        link.send(DeadlineNear(self._notice.end_s - self._clock(), self._notice.cause))
            case DeadlineMet():
                if link in self._busy:
                    self._busy.remove(link)
                self._end_if_handled()

    def forget(self, link: Link) -> None:
        """Wait no more for a program that is gone."""
        for links in (self._awaiting, self._busy):
            if link in links:
                links.remove(link)
        self._end_if_handled()

    # ---- decisions ----

    def _members(self) -> list[Link]:
        return self._peers.of({member for run in self._state.runs.values() for member in run.members})

    @property
    def _notice_s(self) -> float:
        """A short job has half of its time: notice at its start would tell nothing."""
        return min(self._longest_notice_s, self._longest_s / 2)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._end_s is not None and self._notice is None:
            self._timer = self._later(max(self._end_s - self._clock() - self._notice_s, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._end_s is not None and self._notice is None:
            self._give_notice(self._end_s - self._clock(), TIME_LIMIT)

    def _give_notice(self, left_s: float, cause: str) -> None:
        self._notice = _Notice(self._clock() + left_s, cause)
        self._busy = list(self._awaiting)
        for link in self._members():
            link.send(DeadlineNear(left_s, cause))

    def _end_if_handled(self) -> None:
        if self._ending_s is not None and self._answered and not self._busy:
            self._finish(self._ending_s)

    def _finish(self, stop_s: float) -> None:
        if not self._resign(stop_s, self._why, lambda: self._end_all(stop_s)):
            self._end_all(stop_s)

    def _end_all(self, stop_s: float) -> None:
        if self._why is not None and self._state.shutting_down is None:
            for link in self._members():
                link.send(AllocationEnds(self._why.kind.value, self._why.cause))
        self._end(stop_s, self._why)
